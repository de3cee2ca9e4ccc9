"""Finds a Chromium for the tests of the page and for its screenshots, or installs one.

In this order: HEADGATE_BROWSER; the PATH; Playwright's own; then Playwright installs its own, and as root apt-get
installs one, each once and with a time limit. `python tools/browser.py` prints its path.
"""  # noqa: INP001 - a script, which tests import as well

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser, Playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOW_TO_GET_ONE: Final = (
    "no Chromium was found: install one (Debian: apt-get install chromium; anywhere: playwright install chromium), "
    "or name one: HEADGATE_BROWSER=/path/to/chromium"
)
_INSTALL_S: Final = 180.0


@cache
def find_browser(*, install: bool = True) -> str | None:
    """Return the path of a browser; None if none can be found or installed, or with HEADGATE_BROWSER=none."""
    named = os.environ.get("HEADGATE_BROWSER")
    if named:
        return None if named == "none" else shutil.which(named)
    found = _on_path() or _playwrights_own()
    if found is None and install:
        found = _from_playwright() or _from_apt()
    return found


def launch(playwright: Playwright, path: str, *switches: str) -> Browser:
    """Start it without a window, as root without a sandbox, and without shared memory, which small machines lack."""
    usual = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    return playwright.chromium.launch(executable_path=path, args=[*usual, *switches])


def _on_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _playwrights_own() -> str | None:
    """Return the browser that Playwright has installed, found by its path: its API would need its server."""
    given = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folder = Path(given) if given else Path.home() / ".cache" / "ms-playwright"
    for pattern in ("chromium-*/chrome-linux*/chrome", "chromium_headless_shell-*/chrome-linux*/headless_shell"):
        if found := sorted(folder.glob(pattern)):
            return str(found[-1])
    return None


def _from_playwright() -> str | None:
    _run([sys.executable, "-m", "playwright", "install", "chromium"])
    return _playwrights_own()


def _from_apt() -> str | None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return None
    if not _run([apt, "install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        _run([apt, "update", "-qq"])
        _run([apt, "install", "-y", "-qq", "--no-install-recommends", "chromium"])
    return _on_path()


def _run(command: Sequence[str]) -> bool:
    """Return True if the command succeeded; without a network it may not."""
    sys.stderr.write(f"no browser yet: {' '.join(command)}\n")
    try:
        quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, check=False, capture_output=True, timeout=_INSTALL_S, env=quietly)  # noqa: S603 - our own
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    path = find_browser()
    sys.stdout.write(f"{path or HOW_TO_GET_ONE}\n")
    sys.exit(path is None)
