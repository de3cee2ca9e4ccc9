"""Every behaviour that this part of headgate owes is named by a test."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OWED = (
    *("T2", "T3", "T5"),
    *(f"M{i}" for i in range(1, 10)),
    *(f"R{i}" for i in range(1, 5)),
    *(f"W{i}" for i in range(1, 7)),
    *("P1", "P2", "P4", "P5"),
    *(f"G{i}" for i in range(1, 9)),
    *(f"N{i}" for i in range(1, 9)),
    "K4",
)


def spec_ids(tree):
    """The arguments of every `pytest.mark.spec(...)`, also where the mark is given a name first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spec":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), "a spec id is written out"
                yield argument.value


@pytest.fixture(scope="module")
def named():
    return {path: set(spec_ids(ast.parse(path.read_text()))) for path in TESTS.rglob("test_*.py")}


@pytest.mark.parametrize("owed", OWED)
def test_it_is_named_by_a_test(owed, named):
    assert any(owed in ids for ids in named.values())


def test_only_behaviours_that_exist_are_named(named):
    behaviour = (TESTS.parent / "docs" / "behaviour.md").read_text()
    known = {word.strip("|` *") for line in behaviour.splitlines() if line.startswith("|") for word in line.split("|")}
    for path, ids in named.items():
        assert ids <= known, f"{path.name} names {sorted(ids - known)}"
