"""A Chromium without a window for the tests of the page, and pages in it that must not complain or go elsewhere.

Each module has its own: while Playwright is there, its event loop counts as running in this thread, which other tests
could not stand.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.support.page_server import Client, serving
from tests.ui.support_browser import ELSEWHERE, PATIENCE_MS
from tools.browser import HOW_TO_GET_ONE, find_browser, launch

INSTALLING_S = 600.0
"""The first test may have to wait for a browser to be installed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0]
    mine = [item for item in items if str(item.path).startswith(here)]
    for item in mine[:1]:
        item.add_marker(pytest.mark.timeout(INSTALLING_S))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(HOW_TO_GET_ONE)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = launch(playwright, path, f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1")
        yield browser
        browser.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Client]]:
    """Start a server of some jobs, which is there until the pages that show it are closed."""
    with ExitStack() as stack:
        yield lambda *jobs, **options: stack.enter_context(serving(*jobs, **options))


@pytest.fixture
def visit(browser: Browser, serve: object) -> Iterator[Callable[..., Page]]:
    """Open an address. Unless `strict` is false, the page must report no error and send requests only to its server."""
    contexts: list[BrowserContext] = []
    troubles: list[str] = []

    def open_page(url: str, *, width: int = 1280, height: int = 800, strict: bool = True, **options: object) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        if strict:
            home = urlsplit(url)[:2]
            page.on("console", lambda said: troubles.append(said.text) if said.type in {"error", "warning"} else None)
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("request", lambda asked: None if _at_home(asked.url, home) else troubles.append(asked.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == [], "the page reported an error, or sent a request to another host"


def _at_home(url: str, home: tuple[str, str]) -> bool:
    return url.startswith("data:") or urlsplit(url)[:2] == home
