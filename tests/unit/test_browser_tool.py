"""Finding a browser: what is named, then what is there; nothing is installed here."""

import pytest
from tools import browser


@pytest.fixture(autouse=True)
def nothing_is_there(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADGATE_BROWSER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "own"))


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def found():
    return browser.find_browser.__wrapped__(install=False)


def test_there_is_none():
    assert found() is None


def test_one_on_the_path_comes_before_playwrights_own(tmp_path):
    own = program(tmp_path / "own" / "chromium-1254" / "chrome-linux64" / "chrome")
    assert found() == own
    there = program(tmp_path / "bin" / "chromium")
    assert found() == there


def test_one_that_is_named_comes_first(tmp_path, monkeypatch):
    program(tmp_path / "bin" / "chromium")
    named = program(tmp_path / "mine")
    monkeypatch.setenv("HEADGATE_BROWSER", named)
    assert found() == named
    monkeypatch.setenv("HEADGATE_BROWSER", "none")
    assert found() is None


def test_what_cannot_be_installed_is_no_error(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(browser, "_run", lambda command: asked.append(command) or False)
    assert browser.find_browser.__wrapped__() is None
    assert asked[0][1:] == ["-m", "playwright", "install", "chromium"]
