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


def test_without_a_browser_the_result_is_none():
    assert found() is None


def test_a_browser_on_the_path_takes_precedence_over_playwrights(tmp_path):
    own = program(tmp_path / "own" / "chromium-1254" / "chrome-linux64" / "chrome")
    assert found() == own
    there = program(tmp_path / "bin" / "chromium")
    assert found() == there


def test_a_browser_named_by_the_variable_takes_precedence(tmp_path, monkeypatch):
    program(tmp_path / "bin" / "chromium")
    named = program(tmp_path / "mine")
    monkeypatch.setenv("HEADGATE_BROWSER", named)
    assert found() == named
    monkeypatch.setenv("HEADGATE_BROWSER", "none")
    assert found() is None


def test_a_failed_installation_of_the_browser_is_no_error(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(browser, "_run", lambda command: asked.append(command) or False)
    assert browser.find_browser.__wrapped__() is None
    assert asked[0][1:] == ["-m", "playwright", "install", "chromium"]
