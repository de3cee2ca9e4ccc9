"""The page's files are complete, in order, and refer to no other host."""

import importlib.metadata
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from tests.support.job_views import synthetic_view

from headgate.errors import HeadgateError
from headgate.ui import page
from headgate.ui.page import MODULES, index_html, static_files
from headgate.ui.report import render


class Links(HTMLParser):
    """What a page refers to, and the scripts that stand in it."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts, self.styles = [], [], []
        self.inside = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.inside = (tag, given)
        for key in ("src", "href"):
            if given.get(key, "#")[0] != "#":
                self.found.append(given[key])
        assert not [name for name in given if name.startswith("on")], "no script in attributes"

    def handle_data(self, data):
        if self.inside is not None and self.inside[0] == "script":
            self.scripts.append((self.inside[1].get("type", "classic"), data))

    def handle_endtag(self, tag):
        self.inside = None


def test_the_page_refers_to_files_that_are_there_and_holds_no_script():
    links = Links(index_html())
    names = [one.removeprefix("/static/") for one in links.found if one != "data:,"]
    assert sorted(names) == ["app.css", "app.js"]
    assert set(names) <= set(static_files())
    assert links.scripts == []


def test_all_scripts_are_served_and_import_only_those_before_them():
    there = {one.name for one in files("headgate.ui").joinpath("static").iterdir()}
    assert there == {"index.html", "app.css", *MODULES}
    for place, name in enumerate(MODULES):
        text = static_files()[name].content.decode()
        imported = re.findall(r'from "\./([a-z]+\.js)"', text)
        assert set(imported) <= set(MODULES[:place]), name
        assert len(re.findall(r"\bimport\b", re.sub(r"//.*", "", text))) == len(imported), name
        assert text.count("\n") < 400, name


def test_files_refer_to_no_other_host():
    for name in ("app.css", *MODULES):
        found = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", static_files()[name].content.decode())
        assert [one for one in found if one != "http://www.w3.org"] == [], name
    assert "@import" not in static_files()["app.css"].content.decode()
    assert "url(" not in static_files()["app.css"].content.decode()


def test_no_text_is_ever_parsed_as_html():
    for name in MODULES:
        text = static_files()[name].content.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )


def test_the_library_for_charts_is_the_one_that_pip_installed():
    assert static_files()["plotly.min.js"].content.startswith(b"/**\n* plotly.js")


def test_the_error_without_the_library_names_the_package(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(page, "distribution", missing)
    with pytest.raises(HeadgateError, match=r"pip install 'headgate\[ui\]'"):
        static_files.__wrapped__()


def test_a_report_is_one_file_whose_scripts_are_named_by_their_digests():
    text = render(synthetic_view(3, 2))
    links = Links(text)
    assert [one for one in links.found if one != "data:,"] == []
    assert [kind for kind, _ in links.scripts] == ["application/json", "classic", "module"]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("'sha256-") == 2
    assert "connect-src" not in policy
    program = links.scripts[2][1]
    assert not re.search(r"^(import|export) ", program, re.MULTILINE)


def test_no_two_scripts_of_a_report_define_a_name():
    names = []
    for name in MODULES:
        text = static_files()[name].content.decode()
        names += re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names)), sorted(one for one in names if names.count(one) > 1)
