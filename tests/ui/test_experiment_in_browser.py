"""The report of an experiment in a browser: charts are drawn, and no request is sent."""

import pytest
from playwright.sync_api import expect

from headgate.config import FlowControl
from headgate.experiments.figures import Speeds
from headgate.experiments.neighbour import FAST, SLOW, NeighbourResult, neighbour_report
from headgate.experiments.report import RunInfo, write_html
from headgate.experiments.schedule import PhaseSchedule, neighbour_phases


@pytest.fixture
def address(tmp_path):
    schedule = PhaseSchedule(neighbour_phases(1), phase_s=2.0, lead_s=1.0)
    fast = Speeds(0.0, 0.1, tuple(None if n == 5 else 1000.0 + n for n in range(70)))
    took = {FAST: [(n / 10, 2.0 + n % 3) for n in range(70)], SLOW: [(n / 10, 250.0) for n in range(30, 50)]}
    found = {
        mode: NeighbourResult(mode=mode, schedule=schedule, record_bytes=102.0, fast=fast, slow=fast, took=took)
        for mode in FlowControl
    }
    file = tmp_path / "report.html"
    write_html(neighbour_report(found, RunInfo("headgate experiment neighbour <now>", "nowhere")), file)
    return file.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_drawn_in_light_and_dark(address, visit, scheme):
    page = visit(address, color_scheme=scheme)
    expect(page.locator(".chart .scatterlayer .trace").first).to_be_visible()
    assert page.locator(".chart").count() == 2
    assert page.locator(".chart").first.locator(".scatterlayer .trace").count() == 2
    assert page.locator(".chart").nth(1).locator(".scatterlayer .trace").count() == 4
    expect(page.locator("code")).to_have_text("$ headgate experiment neighbour <now>")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_charts_follow_a_change_of_the_theme(address, visit):
    page = visit(address, color_scheme="light")
    trace = page.locator(".chart .scatterlayer .trace path.js-line").first
    expect(trace).to_have_css("stroke", "rgb(0, 114, 178)")
    page.emulate_media(color_scheme="dark")
    expect(trace).to_have_css("stroke", "rgb(86, 180, 233)")


def test_it_fits_a_phone(address, visit):
    page = visit(address, width=390, height=800)
    expect(page.locator(".chart .scatterlayer .trace").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    labels = page.locator(".chart").first.locator(".annotation-text")
    boxes = [labels.nth(number).bounding_box() for number in range(labels.count())]
    assert boxes, "there is room for some"
    ends = [box["x"] + box["width"] for box in boxes]
    assert all(end <= after["x"] for end, after in zip(ends, boxes[1:], strict=False)), "none lies over another"
