"""Every behaviour of docs/behaviour.md that is built is named by a test, and tests name only behaviours that exist."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
BEHAVIOUR = (TESTS.parent / "docs" / "behaviour.md").read_text()
STATUS = {"0.1", "planned"}


def rows_of(text):
    """Return {id: status} of all tables in a page; the id is a table's first cell, the status its last."""
    rows = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [(row[0].strip(), row[-1].strip()) for row in rows]
    return {first: last for first, last in cells if first != "id" and not first.startswith("---")}


ROWS = rows_of(BEHAVIOUR)


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


@pytest.mark.parametrize("row", [row for row, status in ROWS.items() if status != "planned"])
def test_a_row_that_is_built_is_named_by_a_test(row, named):
    assert any(row in ids for ids in named.values()), f'no test is marked @pytest.mark.spec("{row}")'


def test_every_row_has_an_id_of_its_own_and_a_status():
    assert len(ROWS) == len(re.findall(r"^\| [A-Z]\d+ \|", BEHAVIOUR, flags=re.MULTILINE)), "an id is used twice"
    assert {row: status for row, status in ROWS.items() if status not in STATUS} == {}


def test_the_rows_of_a_part_are_numbered_without_gaps():
    numbers = {}
    for row in ROWS:
        assert re.fullmatch(r"[A-Z]\d+", row), row
        numbers.setdefault(row[0], []).append(int(row[1:]))
    assert numbers == {part: list(range(1, len(found) + 1)) for part, found in numbers.items()}
    assert set(numbers) == set("TMRWPGNKBCSI")


def test_rows_are_read_from_every_line_of_a_table():
    page = "| id | what holds | status |\n| --- | --- | --- |\n| X1 | A \\| b. | 0.1 |\n| X2 | C. | planned |\n"
    assert rows_of(page) == {"X1": "0.1", "X2": "planned"}


def test_only_behaviours_that_exist_are_named(named):
    for path, ids in named.items():
        assert ids <= set(ROWS), f"{path.name} names {sorted(ids - set(ROWS))}"
