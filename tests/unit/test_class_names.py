"""No two public classes of the package share a name: a search for a name then leads to one class."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"


def public_classes() -> dict[str, list[str]]:
    """Return the files that define each public class at the top level of a module."""
    found = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCES)))
    return found


def test_no_two_public_classes_share_a_name() -> None:
    shared = {name: places for name, places in public_classes().items() if len(places) > 1}
    assert shared == {}, "give the new class another name"
