"""The documentation names every setting, its links lead to files and headings; every public name has a docstring."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import headgate
from headgate.config import SETTINGS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(
    one.name for one in pkgutil.walk_packages(headgate.__path__, "headgate.") if not one.name.endswith("__main__")
)


def test_every_setting_is_documented():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert [setting.key for setting in SETTINGS if f"`{setting.key}`" not in text] == []


def links(page):
    """The relative links of a page, without those in code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    return [target for target in targets if not re.match(r"[a-z]+:|#", target)]


def test_every_link_between_pages_leads_to_a_file_and_a_heading():
    dead = []
    for page in PAGES:
        for target in links(page):
            path, _, anchor = target.partition("#")
            found = page.parent / path
            if not found.exists() or (anchor and path.endswith(".md") and anchor not in anchors(found)):
                dead.append(f"{page.relative_to(ROOT)} links to {target}")
    assert dead == []


def anchors(page):
    """The anchors of a page's headings, as MkDocs and GitHub derive them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in headings}


def described_by_string(module, name):
    """Return True if a module-level assignment is followed by a string, as aliases and constants are."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return isinstance(following, ast.Expr) and isinstance(getattr(following.value, "value", None), str)
    return False


def test_every_module_and_every_public_name_has_a_docstring():
    missing = []
    for name in MODULES:
        module = importlib.import_module(name)
        names = getattr(module, "__all__", [])
        assert len(names) == len(set(names)), f"{name}.__all__ names something twice"
        if not (module.__doc__ or "").strip():
            missing.append(name)
        missing += [f"{name}.{public}" for public in names if not is_described(module, public)]
    assert missing == []


def is_described(module, public):
    """Return True if a public name has a docstring, or is a number, or is re-exported from where it has one."""
    value, is_package = getattr(module, public), hasattr(module, "__path__")
    if is_package and getattr(value, "__module__", module.__name__) != module.__name__:
        return True
    if inspect.isclass(value) or inspect.isroutine(value):
        return bool((value.__doc__ or "").strip())
    if is_package or isinstance(value, int) or module.__name__.split(".")[1] == "cli":
        return True
    return described_by_string(module, public)
