"""Accessibility of the page: keyboard, screen reader, phone, both themes, reduced motion."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.ui.support_browser import edge, moving, open_tab, select, vertex, wait_until

TABS = ("Vertices and edges", "Time-lines", "Workers", "Events", "Settings")

SCRIPTS = (Path(__file__).parent / "support_access.js").read_text()


def look(page, what):
    """What one of the functions of support_access.js finds."""
    return page.evaluate(f"() => {{ {SCRIPTS} return {what}(); }}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(serve, visit, scheme):
    page = visit(serve({"job-5eed": moving()}, allow_control=True).server.url, color_scheme=scheme)
    expect(vertex(page, 2)).to_contain_text("Busy")
    seen = look(page, "contrasts")
    panel = select(page, vertex(page, 1))
    expect(panel.locator(".xtick text").first).to_be_visible()
    panel.get_by_text("Time-lines as a table").click()
    seen += look(page, "contrasts")
    panel = select(page, edge(page, 1))
    expect(panel.locator(".xtick text").first).to_be_visible()
    seen += look(page, "contrasts")
    for tab in TABS:
        open_tab(page, tab)
        seen += look(page, "contrasts")
    assert len(seen) > 400
    assert any(drawn for *_, drawn in seen), "texts of charts are looked at as well"
    assert [one for one in seen if one[0] < 4.5] == []
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 18, 21)") == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_drawings_have_enough_contrast(serve, visit, scheme):
    """Bars and marks of states beside what they stand on: 3 to 1, as is asked of what is no text."""
    page = visit(serve({"job-5eed": moving()}).server.url, color_scheme=scheme)
    expect(vertex(page, 2)).to_contain_text("Busy")
    style = "getComputedStyle(document.documentElement).getPropertyValue('--NAME').trim()"

    def light(name):
        text = page.evaluate(f"() => {style.replace('NAME', name)}")
        parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def ratio(a, b):
        low, high = sorted([light(a), light(b)])
        return (high + 0.05) / (low + 0.05)

    for text, ground in [("on-busy", "busy"), ("on-back", "back"), ("on-idle", "idle")]:
        assert ratio(text, ground) >= 4.5, ground
    for mark, ground in [
        ("line-strong", "surface"),
        ("back", "surface"),
        ("idle-text", "idle-tint"),
        ("focus", "surface"),
    ]:
        assert ratio(mark, ground) >= 3, (mark, ground)


def focused(page):
    return page.evaluate("() => document.activeElement.dataset.vertex ?? document.activeElement.dataset.edge ?? null")


def test_all_actions_have_keys(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    expect(vertex(page, 2)).to_contain_text("Busy")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to details"
    stops = []
    while len(stops) < 12 and "vertex" not in stops:
        page.keyboard.press("Tab")
        stops.append(page.evaluate("() => document.activeElement.className || document.activeElement.id"))
    assert stops == ["pause", "theme", "zoom-out", "zoom-fit", "zoom-in", "vertex"], "one stop for the whole graph"
    assert focused(page) == "0"
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the focus is can be seen"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.className").startswith("edge")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "2"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert focused(page) == "1"
    page.keyboard.press("End")
    assert focused(page) == "4"
    page.keyboard.press("Home")
    assert focused(page) == "0"
    page.keyboard.press("Enter")
    expect(page.locator("#panel-selected h2")).to_have_text(job.shown.graph.vertices[0].name)
    expect(page.locator("#announcer")).to_contain_text("is shown below")
    assert focused(page) == "0", "the focus stays where it was"
    page.wait_for_timeout(1200)
    assert focused(page) == "0", "also when figures come"
    while page.evaluate("() => document.activeElement.getAttribute('role')") != "tab":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Workers")).to_be_focused()
    expect(page.locator("#panel-workers")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # a column's head
    assert (
        page.locator("#panel-workers th[aria-sort='descending'], #panel-workers th[aria-sort='ascending']").count() > 0
    )


def test_beside_each_other_the_arrows_go_across(serve, visit):
    page = visit(serve({"job-5eed": moving(30, 1)}).server.url)
    expect(page.locator(".vertex")).to_have_count(30)
    vertex(page, 0).focus()
    seen = {focused(page)}
    for key in ["ArrowDown"] * 8 + ["ArrowUp"] * 8:
        page.keyboard.press(key)
        seen.add(focused(page))
    assert {"0", "1", "2", "3", "4", "5", "6", "7"} <= seen


def test_every_control_has_a_name_and_tables_have_heads(serve, visit):
    page = visit(serve({"job-5eed": moving()}, allow_control=True).server.url)
    expect(vertex(page, 2)).to_contain_text("Busy")
    select(page, vertex(page, 2))
    page.locator(".xtick text").first.wait_for()
    for tab in ("Selected", *TABS):
        open_tab(page, tab)
        page.wait_for_timeout(50)
        faults = look(page, "faults")
        assert faults == {"nameless": [], "doubled": [], "headless": 0, "images": 0, "referred": 0}, tab


def test_the_page_has_landmarks_one_title_and_an_order_of_headings(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url)
    expect(vertex(page, 2)).to_contain_text("Busy")
    assert page.locator("html").get_attribute("lang") == "en"
    for role in ("banner", "main", "contentinfo"):
        expect(page.get_by_role(role)).to_have_count(1)
    levels = page.locator("h1, h2, h3").evaluate_all(
        "all => all.filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    expect(page.get_by_role("button", name="Edge from rate -> map(parse) to map(clean)")).to_have_count(1)


def test_only_changes_of_status_are_announced(serve, visit):
    job = moving()
    page = visit(serve({"job-5eed": job}).server.url)
    expect(vertex(page, 2)).to_contain_text("Busy")
    live = page.locator("[aria-live], [role=status], [role=alert]").evaluate_all("all => all.map((one) => one.id)")
    assert live == ["banner", "announcer"]
    look(page, "listen")
    job.change(lambda one: replace(one, busy=0.5, back_pressured=0.2, idle=0.3))
    expect(vertex(page, 2)).to_contain_text("Busy 50")
    page.wait_for_timeout(1200)
    assert page.evaluate("() => said.length") == 0


def test_a_phone_never_scrolls_sideways(serve, visit):
    page = visit(
        serve({"job-5eed": moving(), "other": moving(job="other")}, allow_control=True).server.url,
        width=360,
        height=740,
    )
    expect(vertex(page, 2)).to_contain_text("Busy")

    def fits():
        return page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")

    assert fits()
    for tab in TABS:
        open_tab(page, tab)
        page.wait_for_timeout(100)
        assert fits(), tab
    panel = select(page, vertex(page, 2))
    panel.locator(".chart").first.scroll_into_view_if_needed()
    panel.locator(".xtick text").first.wait_for()
    assert fits()
    select(page, edge(page, 1))
    wait_until(page, "() => document.querySelector('#panel-selected .chart').data !== undefined")
    assert fits()
    small = page.locator("button, select, input[type=search]").evaluate_all(
        "all => all.filter((one) => one.checkVisibility() && !one.closest('.graph, thead, .answer, .chain, td, th') "
        "&& one.getBoundingClientRect().height < 32).map((one) => one.outerHTML)"
    )
    assert small == [], "fingers need room"


def test_a_theme_that_was_chosen_stays(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url, color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_label("Theme").select_option("dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_label("Theme").select_option("system")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_reduced_motion_is_respected(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url, reduced_motion="reduce")
    expect(vertex(page, 2)).to_contain_text("Busy")
    moves = page.evaluate(
        "() => [...document.querySelectorAll('*')].filter((one) => { const style = getComputedStyle(one);"
        " return style.transitionDuration.split(', ').some((time) => parseFloat(time) > 0)"
        " || style.animationName !== 'none'; }).length"
    )
    assert moves == 0
