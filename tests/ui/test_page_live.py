"""A real, back-pressured job on the page."""

import pytest
from playwright.sync_api import expect
from tests.support.slow_pipelines import QUICK, look_up
from tests.ui.support_browser import column, edge, number, select, vertex, wait_until

import headgate as hg


@pytest.fixture
def held_back():
    """A source that could do much more, and a consumer in other workers that waits for something at each record."""
    env = hg.environment(local=True, parallelism=2, settings=QUICK)
    numbers = env.generate(lambda number: number).name("numbers")
    numbers.rebalance().map(look_up).name("look up").key_by(lambda number: number % 7).for_each(
        lambda number: None
    ).name("store")
    job = env.execute_async("held back")
    yield job
    job.cancel()


@pytest.mark.spec("B1", "B2")
def test_real_back_pressure_is_shown_sampled_and_explained(held_back, serve, visit):
    page = visit(serve({str(held_back.id): held_back}).server.url)
    source, slow, last = (vertex(page, place) for place in range(3))
    expect(source).to_have_attribute("data-state", "back")
    expect(source).to_contain_text("Back-pressured")
    expect(slow).to_have_attribute("data-state", "busy")
    expect(slow).to_contain_text("Busy")
    expect(last).to_have_attribute("data-state", "idle")
    wait_until(page, "() => document.querySelector('.edge.held') !== null")
    records, size, backlog = edge(page, 0).locator("span:not(.unseen)").all_inner_texts()
    assert number(records) > 0
    assert number(size) > 0
    assert int(backlog.removeprefix("backlog ")) > 0
    panel = select(page, edge(page, 0))
    wait_until(page, "() => document.querySelector('#panel-selected .chart').data?.[0].z.length === 2")
    credit = panel.locator(".chart").evaluate("one => one.data[0].z")
    assert [[cell is None for cell in row] for row in credit] == [[True, False], [False, True]]
    panel.locator("label", has_text="Backlog").click()
    wait_until(page, "() => document.querySelector('#panel-selected .chart').data[0].z.flat().some((one) => one > 0)")
    panel = select(page, slow)
    expect(panel.locator(".scatterlayer .trace").first).to_be_attached()
    panel.get_by_role("button", name="Sample stacks").click()
    expect(panel.get_by_text("Back pressure OK")).to_be_visible()
    assert any(text.startswith("look_up") for text in column(panel, "Hottest functions", "Function"))
    page.get_by_role("button", name="Find out why").click()
    expect(page.locator(".cause")).to_have_text("An operator waits in its code")
    expect(page.locator(".facts")).to_contain_text("look up")
    held_back.cancel()
    expect(page.locator("#job-status")).to_have_text("Cancelled")
    expect(page.locator("#live")).to_contain_text("Over")
