"""The page of a job with 200 vertices of 100 subtasks each is fast."""

import pytest
from playwright.sync_api import expect
from tests.ui.support_browser import column, edge, moving, open_tab, select, vertex, wait_until

LONG_MS = 200
ROUNDS = 3


def long_tasks(page):
    """Tasks of the page's thread that took long, since the last time it was asked."""
    return page.evaluate("() => window.tasks.splice(0)")


@pytest.mark.timing
def test_200_vertices_of_100_subtasks_do_not_block_the_page(serve, visit):
    job = moving(200, 100)
    page = visit(serve({"job-5eed": job}).server.url)
    expect(page.locator(".vertex")).to_have_count(200)
    page.evaluate(
        "(long) => { window.tasks = []; new PerformanceObserver((list) => { for (const one of list.getEntries())"
        " if (one.duration > long) tasks.push(Math.round(one.duration)); }).observe({ type: 'longtask' }); }",
        LONG_MS,
    )
    wait_until(page, "() => window.Plotly !== undefined")  # loaded once, when nothing else is to be done

    def rounds(wanted=ROUNDS):
        before = job.calls.count("view")
        while job.calls.count("view") < before + wanted:
            page.wait_for_timeout(100)

    long_tasks(page)
    rounds()
    assert len(long_tasks(page)) <= 1, "the graph and the lists"
    panel = select(page, vertex(page, 100))
    expect(panel.locator("tbody tr[data-key='19']")).to_be_visible()
    panel.locator(".chart").first.scroll_into_view_if_needed()
    panel.locator(".scatterlayer .trace").first.wait_for(state="attached")
    long_tasks(page)
    rounds()
    assert len(long_tasks(page)) <= 2, "a vertex with its time-lines"
    assert len(column(panel, "Subtasks of", "Subtask")) == 20
    keyed = next(one for one in job.shown.graph.edges if one.consumer == 100)
    panel = select(page, edge(page, keyed.id))
    panel.locator(".chart").scroll_into_view_if_needed()
    wait_until(page, "() => document.querySelector('#panel-selected .chart').data?.[0].z.flat().length === 10000")
    long_tasks(page)
    rounds()
    assert len(long_tasks(page)) <= 2, "a matrix of ten thousand channels"
    open_tab(page, "Time-lines").locator(".chart").scroll_into_view_if_needed()
    wait_until(page, "() => document.querySelector('#panel-past .chart').data?.[0].z.length === 200")
    long_tasks(page)
    rounds()
    assert len(long_tasks(page)) <= 2, "the past of all vertices"
