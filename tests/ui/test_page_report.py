"""A report: the page as one file, opened without a network."""

import re

from playwright.sync_api import expect
from tests.support.job_views import NASTY, synthetic_view
from tests.ui.support_browser import column, edge, open_tab, select, vertex, wait_until

from headgate.observe import JobStatus, JobView
from headgate.ui.report import render


def test_a_report_shows_all_panels(visit, tmp_path):
    file = tmp_path / "report.html"
    view = synthetic_view(5, 4)
    file.write_text(render(view), encoding="utf-8")
    page = visit(file.as_uri(), offline=True)
    expect(page.locator("#live")).to_contain_text("Report of")
    expect(vertex(page, 2)).to_contain_text("Busy 97")
    expect(edge(page, 1)).to_contain_text("backlog")
    expect(page.locator(".cause")).to_have_text("An operator's own work")
    for button in ("Pause", "Find out why", "Cancel job"):
        expect(page.get_by_role("button", name=button)).to_have_count(0)
    panel = select(page, vertex(page, 1))
    expect(panel.locator(".scatterlayer .trace").first).to_be_attached()
    assert column(panel, "Subtasks of", "Subtask") == ["0", "1", "2", "3"]
    assert column(panel, "Hottest functions", "Function")
    expect(panel.get_by_role("button", name="Sample stacks")).to_have_count(0)
    panel = select(page, edge(page, 1))
    wait_until(page, "() => document.querySelector('#panel-selected .chart').data?.[0].z.length === 4")
    open_tab(page, "Time-lines")
    wait_until(page, "() => document.querySelector('#panel-past .chart').data?.[0].z.length === 5")
    settings = open_tab(page, "Settings")
    assert len(column(settings, "Settings", "Value")) == 3
    open_tab(page, "Workers")
    expect(page.locator("#panel-workers tbody tr").first).to_be_visible()


def test_a_report_sends_no_request(visit, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(render(synthetic_view(3, 2)), encoding="utf-8")
    page = visit(file.as_uri(), strict=False)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    expect(vertex(page, 1)).to_be_visible()
    select(page, vertex(page, 1))
    page.wait_for_timeout(1200)
    assert asked == []
    refused = page.evaluate("() => fetch('http://127.0.0.1:9/').then(() => 'asked', (error) => error.name)")
    assert refused == "TypeError"
    assert re.findall(r"""(?:src|href)=["'](?!data:)[^"'#]""", file.read_text().partition("<script")[0]) == []


def test_names_cannot_break_a_report(visit, tmp_path):
    file = tmp_path / "report.html"
    view = synthetic_view(4, 2, nasty=True, status=JobStatus.FAILED)
    text = render(view)
    assert NASTY not in text
    file.write_text(text, encoding="utf-8")
    page = visit(file.as_uri(), offline=True)
    expect(page.get_by_role("heading", level=1)).to_have_text(view.progress.name)
    expect(page.get_by_role("region", name="Why it failed")).to_contain_text("division by zero")
    kept = page.evaluate("() => document.getElementById('headgate-view').textContent")
    assert JobView.from_json(kept).progress == view.progress
    assert page.title().startswith("synthetic <img")
    assert page.locator("img").count() == 0


def test_a_report_without_history_samples_and_diagnosis(visit, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(render(synthetic_view(3, 2, timeline=False, sampled=False, status=JobStatus.FINISHED)))
    page = visit(file.as_uri(), offline=True)
    expect(page.get_by_text("There is no diagnosis of this job.")).to_be_visible()
    expect(vertex(page, 1)).to_contain_text("Finished")
    panel = select(page, vertex(page, 1))
    expect(panel.get_by_text("No stacks were sampled.")).to_be_visible()
