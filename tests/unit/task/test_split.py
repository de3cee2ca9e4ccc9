"""K1: records directed by a selector, several names at once, each branch with its own copies."""

from dataclasses import replace

import pytest

import headgate as hg
from headgate.errors import UserCodeError
from headgate.task.operators.split import Split
from headgate.testing.harness import OperatorHarness

pytestmark = pytest.mark.spec("K1")


def selections(**names):
    return {tag: frozenset(some.split()) for tag, some in names.items()}


def sides_of(selector, wanted, values, times=None):
    with OperatorHarness(Split(selector, wanted)) as harness:
        harness.process(values, times)
    assert harness.values == []
    return harness.sides


def test_a_value_goes_to_every_selection_that_has_one_of_its_names_and_once_to_each():
    names = {1: ["a"], 2: ["a", "b"], 3: ["c", "b", "a"], 4: [], 5: ["unknown"]}
    found = sides_of(names.get, selections(a="a", ab="a b", c="c", d="d"), [1, 2, 3, 4, 5])
    assert found == {"a": [1, 2, 3], "ab": [1, 2, 3], "c": [3], "d": []}


def test_one_name_may_be_a_string_and_none_is_no_name():
    assert sides_of({1: "abc", 2: None}.get, selections(x="abc", y="a"), [1, 2]) == {"x": [1], "y": []}


def test_names_may_come_from_a_generator_and_a_class():
    class Selecting(hg.OutputSelector):
        def open(self, context):
            self.name = context.task_name

        def select(self, value):
            yield self.name
            yield value

    assert sides_of(Selecting(), selections(mine="Split", x="x"), ["x", "y"]) == {"mine": ["x", "y"], "x": ["x"]}


def test_values_keep_their_times():
    class Timed(OperatorHarness):
        def emit_to(self, tag, values, times=None):
            self.sides.setdefault(tag, []).append((values, times))

    with Timed(Split(lambda n: "even" if n % 2 == 0 else "odd", selections(even="even", odd="odd"))) as harness:
        harness.process([1, 2, 3], [10, 20, 30])
    assert harness.sides == {"even": [([2], [20])], "odd": [([1, 3], [10, 30])]}


def test_selections_do_not_share_values_that_can_be_changed():
    class Spoiling(OperatorHarness):
        """The reader of each selection changes what it gets, at once."""

        def emit_to(self, tag, values, times=None):
            for value in values:
                value.append(tag)
            super().emit_to(tag, values, times)

    for reuse in (False, True):
        operator = Split(lambda value: ["a", "b", "c"], selections(x="a", y="b", z="c"))
        with Spoiling(operator) as harness:
            operator.place = replace(operator.place, object_reuse=reuse)
            harness.process([[1], [2]])
        assert harness.sides == {tag: [[1, tag], [2, tag]] for tag in "xyz"}


@pytest.mark.parametrize("wrong", [[7], ["a", None], 7])
def test_names_that_are_none_are_an_error_that_names_the_operator(wrong):
    with pytest.raises(UserCodeError, match=r"(?s)Split.*(names are strings|not iterable)"):
        sides_of(lambda value: wrong, selections(a="a"), [1])


def test_names_that_depend_on_the_data_take_bounded_memory():
    operator = Split(lambda n: [f"name-{n}", "all"], selections(all="all"))
    with OperatorHarness(operator) as harness:
        harness.process(list(range(5000)))
    assert harness.sides == {"all": list(range(5000))}
    assert len(operator._routes) <= 1000


def test_select_wants_names():
    split = hg.environment(local=True, parallelism=1).from_collection([1]).split(lambda n: "a")
    with pytest.raises(TypeError, match="select wants one name or several"):
        split.select()
    with pytest.raises(TypeError, match="select wants one name or several"):
        split.select(7)


def test_split_is_for_rows_and_wants_a_selector():
    stream = hg.environment(local=True, parallelism=1).from_collection([1])
    with pytest.raises(TypeError, match="split is for rows"):
        stream.to_arrow().split(lambda batch: "a")
    with pytest.raises(TypeError, match="split wants a callable, or a Function with select"):
        stream.split("even")


def test_a_selector_may_return_one_list_again_and_again():
    names = []

    def select(value):
        names[:] = [value]
        return names

    assert sides_of(select, selections(x="x", y="y"), ["x", "y", "x"]) == {"x": ["x", "x"], "y": ["y"]}
