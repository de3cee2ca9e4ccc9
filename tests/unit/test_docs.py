"""The documentation names every setting and leads nowhere that does not exist; every public name is explained."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import headgate
from headgate.config import SETTINGS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(
    one.name for one in pkgutil.walk_packages(headgate.__path__, "headgate.") if not one.name.endswith("__main__")
)


@pytest.mark.parametrize("key", [setting.key for setting in SETTINGS])
def test_every_setting_is_documented(key):
    assert f"`{key}`" in (ROOT / "docs" / "configuration.md").read_text()


def links(page):
    """Relative links of a page, without code blocks and anchors."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    return [target for target in targets if not re.match(r"[a-z]+:|#", target)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    for target in links(page):
        path = target.split("#")[0]
        assert (page.parent / path).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_heading_finds_it(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        if anchor and path.endswith(".md"):
            headings = re.findall(r"^#+ (.*)$", (page.parent / path).read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in headings}
            assert anchor in slugs, f"{page.name} links to {target}"


def described_by_string(module, name):
    """Whether a module-level assignment is followed by a string that explains it, as aliases and constants are."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return isinstance(following, ast.Expr) and isinstance(getattr(following.value, "value", None), str)
    return False


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name):
    assert (importlib.import_module(name).__doc__ or "").strip()


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_explained(name):
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    for public in names:
        value = getattr(module, public)
        if hasattr(module, "__path__") and getattr(value, "__module__", name) != name:
            continue  # explained where it is defined
        if inspect.isclass(value) or inspect.isroutine(value):
            assert (value.__doc__ or "").strip(), f"{name}.{public} has no docstring"
        elif not isinstance(value, int) and name.split(".")[1] != "cli" and not hasattr(module, "__path__"):
            assert described_by_string(module, public), f"{name}.{public} has no explanation under it"


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("headgate.cli") and "._" not in name])
def test_every_public_class_and_function_has_an_example(name):
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", []):
        value = getattr(module, public)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or value.__module__ != name:
            continue  # a constant, or shown where it is defined
        if getattr(value, "_is_protocol", False):
            continue  # nothing to call
        assert ">>>" in (value.__doc__ or ""), f"{name}.{public} has no example"
