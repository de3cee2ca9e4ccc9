"""Helpers for tests of the page in a browser."""

import time
from collections.abc import Callable
from dataclasses import replace

from playwright.sync_api import Locator, Page, expect
from tests.support.job_views import FakeWatched, synthetic_view

from headgate.observe import JobView, VertexProgress

PATIENCE_MS = 25_000
"""Far more than anything takes, also on a busy machine."""

ELSEWHERE = "elsewhere.test"
"""A name that leads the tests' browser to this machine."""


class Moving(FakeWatched):
    """A job whose clock goes on, and whose figures can be changed while it is looked at."""

    def view(self, *, timeline: bool = False) -> JobView:
        return replace(super().view(timeline=timeline), at_ms=round(time.time() * 1000))

    def change(self, change: Callable[[VertexProgress], VertexProgress]) -> None:
        """Let every vertex be another one from now on."""
        progress = self.shown.progress
        changed = replace(progress, vertices=tuple(change(one) for one in progress.vertices))
        self.shown = replace(self.shown, progress=changed)


def moving(vertices: int = 5, subtasks: int = 4, **options: object) -> Moving:
    return Moving(synthetic_view(vertices, subtasks, **options))


def vertex(page: Page, number: int) -> Locator:
    return page.locator(f".vertex[data-vertex='{number}']")


def edge(page: Page, number: int) -> Locator:
    return page.locator(f".edge[data-edge='{number}']")


def open_tab(page: Page, name: str) -> Locator:
    """Open a tab and return its panel."""
    tab = page.get_by_role("tab", name=name)
    tab.click()
    return page.locator(f"#{tab.get_attribute('aria-controls')}")


def select(page: Page, thing: Locator) -> Locator:
    """Choose a vertex or an edge and return the panel that shows it."""
    thing.click()
    panel = page.locator("#panel-selected")
    expect(panel.get_by_role("heading", level=2)).to_be_visible()
    return panel


def column(panel: Locator, caption: str, label: str) -> list[str]:
    """The texts of a table's column."""
    table = panel.locator("table", has=panel.page.locator("caption", has_text=caption))
    table.wait_for()
    heads = [text.strip() for text in table.locator("thead th").all_inner_texts()]
    place = heads.index(label) + 1
    return table.locator(f"tbody tr > :nth-child({place})").all_inner_texts()


def number(text: str) -> float:
    """What a figure on the page says: '1.20 k/s' -> 1200."""
    digits, _, unit = text.replace("/s", "").partition(" ")
    return float(digits) * {"k": 1e3, "M": 1e6, "KiB": 1024, "MiB": 1 << 20}.get(unit.strip(), 1)


def wait_until(page: Page, said: str, argument: object = None) -> None:
    """Wait until JavaScript says so. Playwright's own way needs `eval`, which the page's policy forbids."""
    deadline_s = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(said, argument):
        assert time.monotonic() < deadline_s, f"never: {said}"
        page.wait_for_timeout(30)
