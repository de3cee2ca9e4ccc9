"""The job graph: its elements, their positions, and their figures."""

from dataclasses import replace
from itertools import pairwise

from playwright.sync_api import expect
from tests.ui.support_browser import edge, moving, number, vertex

from headgate.observe import edge_progress


def boxes(page):
    return page.locator(".vertex").evaluate_all("all => all.map((one) => one.getBoundingClientRect().toJSON())")


def test_every_vertex_has_its_name_parallelism_state_and_rates(serve, visit):
    job = moving()
    url = serve({"job-5eed": job}).server.url
    page = visit(url)
    expect(page.locator(".vertex")).to_have_count(5)
    for figures in job.shown.progress.vertices:
        drawn = vertex(page, figures.id)
        expect(drawn).to_contain_text(figures.name)
        expect(drawn).to_contain_text(f"\N{MULTIPLICATION SIGN}{figures.parallelism}")
    expect(vertex(page, 1)).to_contain_text("Back-pressured 85")
    expect(vertex(page, 2)).to_contain_text("Busy 97")
    expect(vertex(page, 4)).to_contain_text("Idle 71")
    said = vertex(page, 2).locator(".rates span").all_inner_texts()
    known = job.shown.progress.vertices[2]
    assert [text.split()[0] for text in said] == ["in", "out"]
    assert abs(number(said[0].removeprefix("in ")) - known.records_in_per_s) < known.records_in_per_s / 100


def test_a_state_has_a_colour_a_pattern_and_a_word(serve, visit):
    url = serve({"job-5eed": moving()}).server.url
    page = visit(url)
    expect(vertex(page, 2)).to_contain_text("Busy")
    looks = {}
    for place, state in ((1, "back"), (2, "busy"), (4, "idle")):
        assert vertex(page, place).get_attribute("data-state") == state
        looks[state] = page.evaluate(
            "([place, state]) => { const style = (selector) => getComputedStyle(document.querySelector("
            "`.vertex[data-vertex='${place}']${selector}`)); return [style('').backgroundColor,"
            "style(` .share.${state}`).backgroundImage.split('(')[0]]; }",
            [place, state],
        )
    assert len({colour for colour, _ in looks.values()}) == 3
    patterns = {state: pattern for state, (_, pattern) in looks.items()}
    assert patterns == {"back": "repeating-linear-gradient", "busy": "none", "idle": "radial-gradient"}


def test_edges_have_rates_bytes_and_backlog(serve, visit):
    job = moving()
    url = serve({"job-5eed": job}).server.url
    page = visit(url)
    expect(edge(page, 1)).to_contain_text("backlog")
    for known in edge_progress(job.shown.progress, job.shown.graph):
        records, size, backlog = edge(page, known.id).locator("span:not(.unseen)").all_inner_texts()
        assert abs(number(records) - known.records_per_s) <= known.records_per_s / 100
        assert abs(number(size) - known.bytes_per_s) <= known.bytes_per_s / 100
        assert backlog == f"backlog {known.backlog}"
    # Edges with a back-pressured producer are marked, edges after the slow vertex are not.
    assert edge(page, 1).evaluate("one => one.classList.contains('held')")
    assert not edge(page, 3).evaluate("one => one.classList.contains('held')")


def test_the_graph_is_horizontal_on_a_laptop_and_vertical_on_a_phone(serve, visit):
    url = serve({"job-5eed": moving()}).server.url
    wide = visit(url)
    expect(wide.locator(".vertex")).to_have_count(5)
    places = boxes(wide)
    assert all(a["x"] + a["width"] < b["x"] for a, b in pairwise(places))
    narrow = visit(url, width=360, height=740)
    expect(narrow.locator(".vertex")).to_have_count(5)
    places = boxes(narrow)
    assert all(a["y"] + a["height"] < b["y"] for a, b in pairwise(places))


def test_no_two_vertices_overlap_and_edges_point_forward(serve, visit):
    job = moving(60, 1)
    url = serve({"job-5eed": job}).server.url
    page = visit(url)
    expect(page.locator(".vertex")).to_have_count(60)
    places = boxes(page)
    for i, a in enumerate(places):
        for b in places[:i]:
            apart = (
                a["x"] >= b["x"] + b["width"]
                or b["x"] >= a["x"] + a["width"]
                or a["y"] >= b["y"] + b["height"]
                or b["y"] >= a["y"] + a["height"]
            )
            assert apart, (a, b)
    for one in job.shown.graph.edges:
        assert places[one.producer]["x"] < places[one.consumer]["x"]


def test_one_task_at_its_limit_among_idle_ones_is_shown(serve, visit):
    job = moving()
    job.change(lambda one: replace(one, busy=0.25, back_pressured=0.0, idle=0.75, max_busy=1.0 if one.id == 3 else 0.3))
    url = serve({"job-5eed": job}).server.url
    page = visit(url)
    expect(vertex(page, 3)).to_contain_text("One task busy 100")
    assert vertex(page, 3).get_attribute("data-state") == "busy"
    assert vertex(page, 2).get_attribute("data-state") == "idle"


def test_updates_keep_the_elements(serve, visit):
    job = moving()
    url = serve({"job-5eed": job}).server.url
    page = visit(url)
    expect(vertex(page, 2)).to_contain_text("Busy 97")
    page.evaluate("() => { window.before = [...document.querySelectorAll('.vertex')]; }")
    job.change(lambda one: replace(one, busy=0.0, back_pressured=0.0, idle=1.0, max_busy=0.0, max_back_pressured=0.0))
    expect(vertex(page, 2)).to_contain_text("Idle 100")
    assert page.evaluate("() => [...document.querySelectorAll('.vertex')].every((one, i) => one === before[i])")
    widths = vertex(page, 2).locator(".share").evaluate_all("all => all.map((one) => one.style.width)")
    assert widths == ["0%", "0%", "0%", "100%"]


def test_a_vertex_that_waits_for_coroutines_is_not_called_busy(serve, visit):
    job = moving()
    job.change(lambda one: replace(one, busy=0.06, back_pressured=0.0, idle=0.0, waiting=0.94, max_busy=0.06))
    page = visit(serve({"job-5eed": job}).server.url)
    expect(vertex(page, 2)).to_contain_text("Waiting 94")
    widths = vertex(page, 2).locator(".share").evaluate_all("all => all.map((one) => one.style.width)")
    assert widths == ["6%", "94%", "0%", "0%"]


def test_it_can_be_made_larger_smaller_and_fitted(serve, visit):
    url = serve({"job-5eed": moving(60, 1)}).server.url
    page = visit(url)
    expect(page.locator(".vertex")).to_have_count(60)

    def width():
        return vertex(page, 0).bounding_box()["width"]

    first = width()
    page.get_by_role("button", name="Larger").click()
    assert width() > first
    page.get_by_role("button", name="Smaller").click()
    page.get_by_role("button", name="Smaller").click()
    assert width() < first
    page.get_by_role("button", name="Fit").click()
    seen = page.locator("#graph").evaluate("one => [one.scrollWidth, one.clientWidth]")
    assert seen[0] <= seen[1] + 1
