"""Details of a vertex or edge: subtasks, timelines, latency, stacks; channels and hot keys."""

import time
from dataclasses import replace

import pytest
from msgspec import structs
from playwright.sync_api import expect
from tests.ui.support_browser import column, edge, moving, number, select, vertex, wait_until

from headgate.observe import ChannelProgress


def test_subtasks_are_sorted_by_any_column_and_come_in_pages(serve, visit):
    job = moving(3, 45)
    page = visit(serve({"job-5eed": job}).server.url)
    panel = select(page, vertex(page, 1))
    expect(panel.locator("tbody tr[data-key='0']")).to_be_visible()
    assert column(panel, "Subtasks of", "Subtask") == [str(one) for one in range(20)]
    busy = panel.get_by_role("button", name="Busy", exact=True)
    busy.click()
    rates = [one.records_in_per_s for one in job.shown.progress.vertices[1].subtasks]
    shares = [one.busy for one in job.shown.progress.vertices[1].subtasks]
    seen = [int(text.split()[0]) for text in column(panel, "Subtasks of", "Busy")]
    assert seen == [round(share * 100) for share in sorted(shares, reverse=True)[:20]]
    assert busy.locator("..").get_attribute("aria-sort") == "descending"
    busy.click()
    assert busy.locator("..").get_attribute("aria-sort") == "ascending"
    panel.get_by_role("button", name="In/s", exact=True).click()
    seen = [number(text) for text in column(panel, "Subtasks of", "In/s")]
    assert seen == sorted(seen, reverse=True)
    assert abs(seen[0] - max(rates)) <= max(rates) / 100
    panel.get_by_role("button", name="Next page of Subtasks").click()
    expect(panel.locator(".pager", has_text="of 45")).to_contain_text("21 to 40 of 45")
    panel.get_by_role("button", name="Next page of Subtasks").click()
    assert len(column(panel, "Subtasks of", "In/s")) == 5
    assert panel.get_by_role("button", name="Next page of Subtasks").is_disabled()


def test_time_lines_are_stacked_areas_that_can_be_read_as_a_table(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    panel = select(page, vertex(page, 1))
    chart = panel.locator("figure", has_text="Busy, back-pressured, idle")
    expect(chart.locator(".scatterlayer .trace")).to_have_count(3)
    stacked = chart.locator(".chart").evaluate(
        "one => one.data.map((trace) => [trace.name, trace.stackgroup, trace.fillpattern.shape])"
    )
    assert stacked == [["Busy", "shares", ""], ["Back-pressured", "shares", "/"], ["Idle", "shares", "."]]
    sums = chart.locator(".chart").evaluate(
        "one => one.data[0].y.map((_, i) => one.data.reduce((a, t) => a + t.y[i], 0))"
    )
    assert sums[0] == 0, "what is not known is not drawn"
    assert all(abs(share - 100) < 1 for share in sums[len(sums) // 2 :])
    records = panel.locator("figure", has_text="Records").locator(".chart")
    expect(records.locator(".scatterlayer .trace")).to_have_count(2)
    panel.get_by_text("Time-lines as a table").click()
    assert len(column(panel, "Past of", "Back-pressured")) == 15
    before = chart.locator(".chart").evaluate("one => one.data[0].x.at(-1) - one.data[0].x[0]")
    panel.locator("label", has_text="3 min").click()
    wait_until(
        page,
        "before => { const x = document.querySelector('.chart').data[0].x; return x.at(-1) - x[0] > 2 * before; }",
        before,
    )


def test_a_vertex_shows_latency_watermark_counters_and_totals(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url)
    panel = select(page, vertex(page, 2))
    expect(panel.locator("[data-figure='lag']")).to_have_text("1 s")
    expect(panel.locator("[data-figure='total']")).to_have_text("360 k in, 360 k out")
    assert column(panel, "Latency of markers", "Median") == ["7.0 ms"]
    assert column(panel, "Latency of markers", "99th percentile") == ["22 ms"]
    assert column(panel, "Counters", "Sum") == ["6"]


@pytest.mark.spec("K1")
def test_a_vertex_shows_the_records_of_each_operator(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    panel = select(page, vertex(page, 1))
    assert column(panel, "Operators of", "Operator") == list(job.shown.graph.vertices[1].operators)
    assert column(panel, "Operators of", "In so far") == ["4.00 k", "8.00 k"]
    assert column(panel, "Operators of", "Out so far") == ["2.00 k", "4.00 k"]
    assert column(panel, "Operators of", "Records in/s") == ["10/s", "20/s"]
    assert column(panel, "Operators of", "Side outputs") == ["\N{EN DASH}", "late: 7"]


def test_stacks_are_sampled_on_request_only(serve, visit):
    job = moving(sampled=False)
    page = visit(serve({"job-5eed": job}).server.url)
    panel = select(page, vertex(page, 2))
    expect(panel.locator("tbody tr[data-key='0']")).to_be_visible()
    assert "pressure" not in job.calls
    job.gate.clear()
    panel.get_by_role("button", name="Sample stacks").click()
    waiting = panel.get_by_role("progressbar", name="Sampling stacks")
    expect(waiting).to_be_visible()
    expect(panel.get_by_text("Sampling for about 5 s")).to_be_visible()
    wait_until(page, "() => document.querySelector('#panel-selected progress').value > 0")
    job.gate.set()
    expect(waiting).to_be_hidden()
    expect(panel.get_by_text("Back pressure OK")).to_be_visible()
    assert column(panel, "Hottest functions", "Function") == ["loads (json.py:30)", "parse (job.py:12)"]
    panel.locator(".slice").first.wait_for()
    parts = panel.locator(".slice").evaluate_all("all => all.map((one) => one.textContent)")
    assert any("parse (job.py:12)" in part for part in parts)
    panel.locator("label", has_text="All").click()
    expect(panel.locator(".slice", has_text="headgate")).to_be_visible()


def test_the_matrix_shows_credit_and_backlog_of_every_channel_as_they_change(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    panel = select(page, edge(page, 1))
    chart = panel.locator(".chart")
    expect(chart.locator(".heatmaplayer image, .heatmaplayer .hm").first).to_be_attached()

    def cells():
        return chart.evaluate("one => one.data[0].z")

    assert cells() == [[None if row == place else 0 for place in range(4)] for row in range(4)]
    expect(panel.get_by_text("4 of 16 channels are within one worker")).to_be_visible()
    expect(panel.locator("[data-figure='starved']")).to_have_text("12")
    panel.locator("label", has_text="Backlog").click()
    known = {
        (one.producer, task.subtask): one for task in job.shown.progress.vertices[2].subtasks for one in task.channels
    }
    wait_until(page, "() => document.querySelector('#panel-selected .chart').data[0].z[0][0] > 0")
    assert cells() == [[known[row, place].backlog for place in range(4)] for row in range(4)]

    def drained(one):
        tasks = tuple(
            replace(task, channels=tuple(structs.replace(channel, backlog=1, credit=7) for channel in task.channels))
            for task in one.subtasks
        )
        return replace(one, subtasks=tasks)

    job.change(drained)
    wait_until(
        page, "() => document.querySelector('#panel-selected .chart').data[0].z.flat().every((one) => one === 1)"
    )
    panel.locator("label", has_text="Table").click()
    expect(panel.locator("tbody tr[data-key='1-0']")).to_be_visible()
    assert column(panel, "Channels of", "Credit").count("7") == 12
    assert chart.is_hidden()


def test_hot_keys_of_an_edge_are_named_with_their_share(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url)
    panel = select(page, edge(page, 1))
    assert column(panel, "Keys with many", "Key") == ["'london'"]
    assert column(panel, "Keys with many", "Share of records") == ["61 %"]
    panel = select(page, edge(page, 2))
    expect(panel.get_by_text("No key has 5 %")).to_be_visible()


def test_an_edge_of_one_channel_and_one_without_any_are_shown(serve, visit):
    job = moving(3, 1)
    page = visit(serve({"job-5eed": job}).server.url)
    panel = select(page, edge(page, 0))
    expect(panel.locator("[data-figure='channels']")).to_have_text("1, 1 local")
    job.change(lambda one: replace(one, subtasks=tuple(replace(task, channels=()) for task in one.subtasks)))
    expect(panel.locator("[data-figure='channels']")).to_have_text("0")
    uneven = ChannelProgress(exchange=0, producer=0, bytes_in=10)
    job.change(lambda one: replace(one, subtasks=tuple(replace(task, channels=(uneven,)) for task in one.subtasks)))
    expect(panel.locator("[data-figure='channels']")).to_have_text("1")


def test_the_selection_is_in_the_address(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    select(page, vertex(page, 3))
    page.reload()
    expect(page.locator("#panel-selected h2")).to_have_text(job.shown.graph.vertices[3].name)
    expect(vertex(page, 3)).to_have_attribute("aria-pressed", "true")
    deadline_s = time.monotonic() + 20
    while "timeline" not in job.calls and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert "timeline" in job.calls
