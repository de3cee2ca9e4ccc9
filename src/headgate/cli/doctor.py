"""`headgate doctor`: checks of everything that a pipeline needs, and of insecure settings."""

import json
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from ipaddress import ip_address
from typing import Annotated

import typer

from headgate.api.running import showing_activity
from headgate.cli.tables import show_table
from headgate.config import load_settings
from headgate.config.units import format_size
from headgate.errors import HeadgateError
from headgate.version import __version__

__all__ = ["Finding", "Severity", "doctor", "examine"]


_WORKERS = 2


class Severity(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"  # it works, with a restriction
    BAD = "bad"  # a pipeline will fail


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    verdict: Severity  # its name in the JSON
    text: str


def doctor(
    spark: Annotated[bool, typer.Option("--spark", help="Also start Spark, and run a small pipeline on it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check everything that a pipeline needs: Python, Java, PySpark, ports, settings, security.

    Exits with 1 if a check fails.
    """
    findings = list(examine())
    if spark:
        findings.append(_try_spark())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        rows = [[one.verdict.value, one.what, one.text] for one in findings]
        show_table(["verdict", "what", "found"], rows, whole=2, styles={"ok": "green", "note": "yellow", "bad": "red"})
    if any(finding.verdict is Severity.BAD for finding in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Yield the findings of all quick checks; no JVM is started.

    >>> next(examine()).what
    'headgate'
    """
    yield Finding("headgate", Severity.OK, __version__)
    yield _python()
    yield _guarded("Java", _java)
    yield _package("pyspark", needed=True)
    yield _package("pyarrow", needed=True)
    yield _package("pandas", needed=False, why="map_batches(form='pandas') and Spark's toPandas need it")
    yield _package("crc32c", needed=False, why="network.checksum needs it")
    yield _guarded("ports", _ports)
    yield _memory()
    yield from _settings()


def _guarded(what: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (HeadgateError, OSError) as error:
        return Finding(what, Severity.BAD, str(error))


def _python() -> Finding:
    version, system = platform.python_version(), platform.system()
    if system != "Linux":
        return Finding("Python", Severity.NOTE, f"{version} on {system}: only Linux is tested")
    return Finding("Python", Severity.OK, f"{version}, {platform.python_implementation()}, {sys.executable}")


def _java() -> Finding:
    from headgate.spark.java import find_java  # noqa: PLC0415 - rarely needed

    java = find_java()
    return Finding("Java", Severity.OK, f"{java.version} ({java.origin}): {java.home}")


def _package(name: str, *, needed: bool, why: str = "") -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if needed:
            return Finding(name, Severity.BAD, f"not installed: pip install {name}")
        return Finding(name, Severity.NOTE, f"not installed; {why}")
    wanted = _wanted(name)
    if not _fits(version, wanted):
        return Finding(name, Severity.NOTE, f"{version}, but headgate requires {wanted}")
    return Finding(name, Severity.OK, version)


def _wanted(name: str) -> str:
    """Return the versions of a package that headgate requires, such as `<4.4,>=4.3`."""
    try:
        lines = metadata.requires("headgate") or []
    except metadata.PackageNotFoundError:  # headgate is on the path, but not installed
        return ""
    found = (re.match(rf"{name}(?![\w.-])\s*(?:\[.*?\])?\s*([^;]*)", line, re.IGNORECASE) for line in lines)
    return next((one[1].strip() for one in found if one), "")


def _fits(version: str, wanted: str) -> bool:
    """Return True if a version is within bounds; `packaging` may not be installed.

    >>> _fits("4.3.1", "<4.4,>=4.3"), _fits("4.10", "<4.4,>=4.3"), _fits("4", ">=4.0"), _fits("5.0rc1", "")
    (True, False, True, True)
    """
    for how, bound in re.findall(r"(>=|<)\s*([\d.]+)", wanted):
        ours, theirs = _numbers(version), _numbers(bound)
        size = max(len(ours), len(theirs))
        below = ours + (0,) * (size - len(ours)) < theirs + (0,) * (size - len(theirs))
        if below != (how == "<"):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _ports() -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client, server.accept()[0] as accepted:
            client.sendall(b"headgate")
            if accepted.recv(8) != b"headgate":
                return Finding("ports", Severity.BAD, "bytes sent over loopback did not arrive")
    return Finding("ports", Severity.OK, "workers can listen and connect on loopback")


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("memory", Severity.OK, f"{format_size(total // 2**20 * 2**20)}, {os.cpu_count()} cores")


def _settings() -> Iterator[Finding]:
    try:
        settings = load_settings()
    except HeadgateError as error:
        yield Finding("settings", Severity.BAD, str(error))
        return
    changed = [row for row in settings.describe() if row.origin != "default"]
    text = ", ".join(f"{row.setting.key} = {row.text} ({row.origin})" for row in changed)
    yield Finding("settings", Severity.OK, text or "all are defaults")
    network = settings.network
    if network.insecure_plaintext:
        text = "network.insecure_plaintext is on: anyone with access to the network can read and change the data"
        yield Finding("security", Severity.NOTE, text)
    elif not ip_address(network.bind_address).is_loopback:
        yield Finding("security", Severity.OK, f"workers listen on {network.bind_address}, with TLS")
    else:
        yield Finding(
            "security", Severity.OK, "workers listen on loopback; beyond it there is TLS, with certificates per job"
        )


def _try_spark() -> Finding:
    began_s = time.monotonic()
    try:
        with showing_activity("starting Spark"):
            import headgate as hg  # noqa: PLC0415 - rarely needed
            from headgate.spark.session import local_session, master_of  # noqa: PLC0415

            spark = local_session(_WORKERS)
            env = hg.environment(spark, parallelism=_WORKERS)
            found = sorted(env.from_collection(range(10)).map(lambda n: n + 1).execute_and_collect("doctor"))
    except Exception as error:  # noqa: BLE001 - any error is a finding
        return Finding("Spark", Severity.BAD, f"{type(error).__name__}: {error}")
    if found != list(range(1, 11)):
        return Finding("Spark", Severity.BAD, f"a small pipeline returned {found}")
    took_s = time.monotonic() - began_s
    return Finding("Spark", Severity.OK, f"{spark.version}, {master_of(spark)}: a pipeline ran within {took_s:.0f} s")
