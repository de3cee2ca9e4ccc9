"""The panels about the whole job: why, lists, history, workers, events, settings, and the header."""

import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect
from tests.ui.support_browser import column, moving, open_tab, select, vertex, wait_until

from headgate.errors import HeadgateError
from headgate.observe import (
    Cause,
    Diagnosis,
    JobStatus,
    PressureLevel,
    Stack,
    SubtaskPressure,
    VertexPressure,
)


def test_why_names_cause_place_evidence_and_advice(serve, visit):
    job = moving(sampled=False)
    page = visit(serve({"job-5eed": job}).server.url)
    why = page.get_by_role("region", name="Why is it not faster?")
    expect(why.locator(".cause")).to_have_count(0)
    job.gate.clear()
    why.get_by_role("button", name="Find out why").click()
    expect(why.get_by_role("progressbar")).to_be_visible()
    job.gate.set()
    expect(why.locator(".cause")).to_have_text("An operator's own work")
    expect(why.get_by_text("is busy all of the time")).to_be_visible()
    assert why.locator("li").all_inner_texts() == list(job.shown.diagnosis.evidence)
    expect(why.locator(".advice")).to_have_text(job.shown.diagnosis.advice)
    expect(why.get_by_text("parse (job.py:12)", exact=True)).to_be_visible()
    expect(page.locator("#announcer")).to_contain_text("busy all of the time")
    why.get_by_role("button", name="map(enrich), subtask 0").click()
    expect(page.locator("#panel-selected h2")).to_have_text(job.shown.graph.vertices[2].name)
    expect(vertex(page, 2)).to_have_attribute("aria-pressed", "true")


def test_no_diagnosis_is_requested_before_the_first_view(serve, visit):
    page = visit(serve({"job-5eed": moving(sampled=False)}).server.url)
    button = page.get_by_role("button", name="Find out why")
    expect(button).to_be_enabled()
    held, holding = [], [True]

    def hold(route):
        if holding:
            held.append(route)
        else:
            route.continue_()

    page.route(re.compile(r"/jobs/job-5eed([?].*)?$"), hold)
    with page.expect_request(re.compile(r"/jobs/job-5eed([?].*)?$")):
        page.reload()
    expect(button).to_be_disabled()
    holding.clear()
    for route in held:
        route.continue_()
    expect(button).to_be_enabled()


def test_why_shows_a_hot_key_its_edge_and_diagnoses_of_other_clients(serve, visit):
    found = Diagnosis(
        cause=Cause.HOT_KEY,
        vertex=2,
        operator="map(enrich)",
        exchange=1,
        key="'london'",
        share=0.6,
        summary="One key.",
        at_ms=5,
    )
    job = moving()
    job.shown = replace(job.shown, diagnosis=found)
    page = visit(serve({"job-5eed": job}).server.url)
    why = page.get_by_role("region", name="Why is it not faster?")
    expect(why.locator(".cause")).to_have_text("A hot key")
    expect(why.get_by_text("'london'", exact=True)).to_be_visible()
    why.get_by_role("button", name="map(clean) -> filter(wanted) → map(enrich)").click()
    expect(page.locator("#panel-selected .panel-head")).to_contain_text("edge 1, hash")
    # Somebody asks by another way: the page shows the newer answer by itself.
    job.shown = replace(
        job.shown, diagnosis=replace(found, cause=Cause.NONE, key=None, summary="All is well.", at_ms=6)
    )
    expect(why.locator(".cause")).to_have_text("No bottleneck")


def test_lists_have_all_vertices_and_edges_and_are_filtered(serve, visit):
    job = moving(30, 2)
    page = visit(serve({"job-5eed": job}).server.url)
    panel = page.locator("#panel-lists")
    expect(panel.locator(".pager").first).to_contain_text("1 to 25 of 30")
    panel.get_by_label("Filter vertices").fill("rate")
    expect(panel.locator("table").first.locator("tbody tr")).to_have_count(8)
    panel.get_by_label("Filter vertices").fill("no such thing")
    expect(panel.get_by_text("Nothing has these words.")).to_be_visible()
    panel.get_by_label("Filter edges").fill("global")
    some = sum(one.ship == "global" for one in job.shown.graph.edges)
    expect(panel.locator("table").last.locator("tbody tr")).to_have_count(some)
    panel.locator("table").last.locator("tbody button").first.click()
    expect(page.locator("#panel-selected .panel-head")).to_contain_text("global")


def test_strips_show_back_pressure_over_time(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    panel = open_tab(page, "Time-lines")
    wait_until(page, "() => document.querySelector('#panel-past .chart').data?.[0].z.length === 5")
    rows = panel.locator(".chart").evaluate("one => one.data[0].z.map((row) => row.at(-1))")
    assert [value > 50 for value in rows] == [True, True, False, False, False]
    panel.locator("label", has_text="Busy").click()
    wait_until(page, "() => document.querySelector('#panel-past .chart').data[0].z[2].at(-1) > 90")


def test_workers_settings_and_events_are_listed(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url)
    workers = open_tab(page, "Workers")
    expect(workers.locator("tbody tr[data-key='0']")).to_be_visible()
    assert column(workers, "Workers of", "Memory") == ["300 MiB"] * 4
    assert column(workers, "Workers of", "CPUs") == ["0.70"] * 4
    assert column(workers, "Workers of", "Network buffers") == ["548 of 2.05 k"] * 4
    assert len(column(workers, "Connections", "Round trip")) == 12
    settings = open_tab(page, "Settings")
    assert column(settings, "Settings", "Setting") == [
        "execution.buffer_timeout",
        "memory.segment_size",
        "network.buffers_per_channel",
    ]
    settings.get_by_label("Filter settings").fill("segment")
    assert column(settings, "Settings", "Value") == ["32 KiB"]
    events = open_tab(page, "Events")
    assert column(events, "What happened", "Level") == ["Warning", "Info", "Info"], "the last first"
    expect(events.get_by_text("holds the pipeline back")).to_be_visible()


def test_connections_of_many_workers_are_requested_with_their_tab(serve, visit):
    page = visit(serve({"job-5eed": moving(2, 40)}).server.url)
    workers = open_tab(page, "Workers")
    expect(workers.locator(".pager").last).to_contain_text("of 640")


def test_the_header_summarizes_the_job(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("synthetic")
    expect(page.locator("#job-status")).to_have_text("Running")
    expect(page.locator("#live")).to_contain_text("Live")
    summary = page.get_by_role("region", name="Summary")
    expect(summary.locator("[data-figure='back']")).to_contain_text("85 % rate -> map(parse)")
    expect(summary.locator("[data-figure='busy']")).to_contain_text("map(enrich)")
    expect(summary.locator("[data-figure='workers']")).to_have_text("4")
    expect(summary.locator("[data-figure='memory']")).to_have_text("1.17 GiB")
    assert page.title() == "synthetic (running) - headgate"


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.FAILED])
def test_a_job_that_is_over_shows_its_means(serve, visit, status):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    expect(page.locator("#live")).to_contain_text("Live")
    ended = moving(status=status)
    # Its past is still that of the job that ran.
    ended.timeline = job.timeline
    job.view = ended.view
    expect(page.locator("#job-status")).to_have_text(status.capitalize())
    expect(page.locator("#announcer")).to_have_text(f"Job synthetic: {status}.")
    expect(page.locator("#live")).to_contain_text("Over")
    expect(vertex(page, 2)).to_contain_text(f"\N{MULTIPLICATION SIGN}4 {status}")
    expect(vertex(page, 1)).to_contain_text("Back-pressured 8")
    expect(vertex(page, 2)).to_contain_text("in 4.00 k/s")  # of the whole run
    failure = page.get_by_role("region", name="Why it failed")
    if status is JobStatus.FAILED:
        expect(failure).to_contain_text("division by zero")
    else:
        expect(failure).to_be_hidden()


def test_a_paused_page_sends_no_request(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    expect(page.locator("#live")).to_contain_text("Live")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_contain_text("Paused")
    page.wait_for_timeout(300)
    asked = len(job.calls)
    job.change(lambda one: replace(one, busy=0.0, back_pressured=0.0, idle=1.0, max_busy=0.0, max_back_pressured=0.0))
    page.wait_for_timeout(1500)
    assert len(job.calls) == asked
    expect(vertex(page, 2)).to_contain_text("Busy 97")
    page.get_by_role("button", name="Resume").click()
    expect(vertex(page, 2)).to_contain_text("Idle 100")


def test_old_figures_are_marked_as_stale(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url, strict=False)  # the browser itself reports failed requests
    expect(page.locator("#live")).to_contain_text("Live")
    job.error = HeadgateError("the driver is gone")
    expect(page.locator("#live")).to_contain_text("Stale", timeout=20_000)
    banner = page.locator("#banner")
    expect(banner).to_be_visible()
    assert banner.get_attribute("role") == "status"
    expect(vertex(page, 2)).to_contain_text("Busy 97")
    job.error = None
    expect(page.locator("#live")).to_contain_text("Live")
    expect(banner).to_be_hidden()


def test_several_jobs_can_be_chosen_from(serve, visit):
    jobs = {
        "one": moving(3, 2, job="one", name="first"),
        "two": moving(4, 2, job="two", name="second"),
        "old": moving(2, 1, job="old", name="third", status=JobStatus.FINISHED),
    }
    page = visit(serve(jobs).server.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("second")  # the newest that runs
    select(page, vertex(page, 3))
    chosen = page.locator("#job-select")
    assert chosen.locator("option").all_inner_texts() == ["first (running)", "second (running)", "third (finished)"]
    chosen.select_option("one")
    expect(page.get_by_role("heading", level=1)).to_have_text("first")
    expect(page.locator(".vertex")).to_have_count(3)
    expect(page.locator("#panel-selected h2")).to_have_count(0)
    assert "job=one" in page.url


def test_a_page_without_a_job_shows_the_first_one(serve, visit):
    jobs = {}
    page = visit(serve(jobs).server.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("No job yet")
    jobs["job-5eed"] = moving(2, 1)
    expect(page.get_by_role("heading", level=1)).to_have_text("synthetic")


def test_cancelling_needs_permission_and_confirmation(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    expect(page.locator("#live")).to_contain_text("Live")
    assert page.get_by_role("button", name="Cancel job").is_hidden()
    page = visit(serve({"job-5eed": job}, allow_control=True).server.url)
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("button", name="Keep it running").click()
    assert "cancel" not in job.calls
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog", name="Cancel this job?").get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#job-status")).to_have_text("Cancelled")
    assert "cancel" in job.calls
    expect(page.get_by_role("button", name="Cancel job")).to_be_hidden()


def test_names_are_shown_as_text(serve, visit):
    job = moving(nasty=True)
    sampled = job.shown.pressure
    bold = Stack(operator="<i>map</i>", frames=("<b>fat</b> (job.py:1)",), count=100)
    task = SubtaskPressure(subtask=0, taken=100, ratio=0.0, idle=0.0, level=PressureLevel.OK, stacks=(bold,))
    changed = VertexPressure(vertex=2, ratio=0.0, level=PressureLevel.OK, subtasks=(task,))
    job.shown = replace(job.shown, pressure=replace(sampled, vertices=(changed,)))
    page = visit(serve({"job-5eed": job}).server.url)
    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
    panel = select(page, vertex(page, 2))
    panel.locator(".chart").last.scroll_into_view_if_needed()
    expect(panel.locator(".slice", has_text="<img src=x").first).to_be_attached()  # of a chart too
    expect(panel.locator(".slice", has_text="<b>fat</b> (job.py:1)")).to_be_attached()
    for tab in ("Time-lines", "Settings", "Events", "Workers", "Vertices and edges"):
        open_tab(page, tab)
        page.wait_for_timeout(150)
    assert page.title().startswith("synthetic <img")
    assert page.locator("img").count() == 0
