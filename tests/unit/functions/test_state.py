"""State of keys: each key's own, freed when cleared, and the same as a dict of plain Python values would say."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.functions.basic import ReduceFunction
from headgate.functions.state import KeyedState

keys = st.sampled_from(["a", "b", "c"])
numbers = st.integers(0, 5)


class AgainstPlainDicts(RuleBasedStateMachine):
    """All kinds of state at once, beside dicts that say what they should hold."""

    @initialize()
    def make(self):
        self.state = KeyedState()
        self.value = self.state.value("value", 0)
        self.list = self.state.list("list")
        self.map = self.state.map("map")
        self.sum = self.state.reducing("sum", lambda a, b: a + b)
        self.values, self.lists, self.maps, self.sums = {}, {}, {}, {}
        self.key = self.state.key = "a"

    @rule(key=keys)
    def turn_to(self, key):
        self.key = self.state.key = key

    @rule(n=numbers)
    def update_value(self, n):
        self.value.update(n)
        self.values[self.key] = n

    @rule(n=numbers)
    def add_to_list(self, n):
        self.list.add(n)
        self.lists[self.key] = [*self.lists.get(self.key, []), n]

    @rule(ns=st.lists(numbers, max_size=3))
    def add_all_to_list(self, ns):
        self.list.add_all(ns)
        self.lists[self.key] = self.lists.get(self.key, []) + ns

    @rule(ns=st.lists(numbers, max_size=3))
    def update_list(self, ns):
        self.list.update(ns)
        self.lists[self.key] = list(ns)

    @rule(name=numbers, n=numbers)
    def put(self, name, n):
        self.map.put(name, n)
        self.maps.setdefault(self.key, {})[name] = n

    @rule(items=st.dictionaries(numbers, numbers, max_size=2))
    def put_all(self, items):
        self.map.put_all(items)
        self.maps.setdefault(self.key, {}).update(items)

    @rule(name=numbers)
    def remove(self, name):
        self.map.remove(name)
        self.maps.setdefault(self.key, {}).pop(name, None)

    @rule(n=numbers)
    def add_to_sum(self, n):
        self.sum.add(n)
        self.sums[self.key] = self.sums.get(self.key, 0) + n

    @rule(which=st.sampled_from(["value", "list", "map", "sum"]))
    def clear(self, which):
        getattr(self, which).clear()
        {"value": self.values, "list": self.lists, "map": self.maps, "sum": self.sums}[which].pop(self.key, None)

    @invariant()
    def all_keys_agree(self):
        for key in ["a", "b", "c"]:
            self.state.key = key
            assert self.value.value() == self.values.get(key, 0)
            assert self.list.get() == self.lists.get(key, [])
            assert len(self.list) == len(self.lists.get(key, []))
            expected = self.maps.get(key, {})
            assert dict(self.map.items()) == expected
            assert self.map.keys() == list(expected)
            assert self.map.values() == list(expected.values())
            assert self.map.is_empty() is not bool(expected)
            for name in range(6):
                assert self.map.contains(name) is (name in expected)
                assert self.map.get(name) == expected.get(name)
            assert self.sum.get() == self.sums.get(key)
        self.state.key = self.key
        assert self.state.entries() == {
            "value": len(self.values),
            "list": sum(map(bool, self.lists.values())),
            "map": sum(map(bool, self.maps.values())),
            "sum": len(self.sums),
        }, "what is empty or cleared has no entry"


TestAgainstPlainDicts = AgainstPlainDicts.TestCase


def test_a_default_that_can_change_is_not_shared_by_keys():
    state = KeyedState()
    seen = state.value("seen", [])
    state.key = "a"
    seen.value().append(1)
    state.key = "b"
    assert seen.value() == []


def test_none_is_a_value_like_any_other():
    state = KeyedState()
    state.key = "a"
    value = state.value("value", 7)
    value.update(None)
    assert value.value() is None


def test_list_and_map_state_return_copies():
    state = KeyedState()
    state.key = "a"
    values, items = state.list("list"), state.map("map")
    values.add_all([1, 2])
    items.put_all([("x", 1), ("y", 2)])
    values.get().clear()
    for name in items.keys():  # noqa: SIM118 - not a dict
        items.remove(name)
    assert values.get() == [1, 2]
    assert items.is_empty()


def test_list_state_copies_the_list_it_is_given():
    state = KeyedState()
    state.key = "a"
    given = [1]
    state.list("list").update(given)
    state.list("other").add_all(given)
    given.append(2)
    assert state.list("list").get() == state.list("other").get() == [1]


def test_names_stand_for_states_of_their_own():
    state = KeyedState()
    state.key = "a"
    state.value("one").update(1)
    assert state.value("two").value() is None
    assert state.value("one").value() == 1


@pytest.mark.parametrize("second", ["value", "map"])
def test_a_name_cannot_be_two_kinds_of_state(second):
    state = KeyedState()
    state.list("seen")
    with pytest.raises(TypeError, match="'seen' is a ListState already"):
        getattr(state, second)("seen")


def test_a_reduce_function_object_will_do():
    class Longest(ReduceFunction):
        def reduce(self, value1, value2):
            return max(value1, value2, key=len)

    state = KeyedState()
    state.key = "a"
    longest = state.reducing("longest", Longest())
    longest.add("to")
    longest.add("question")
    longest.add("be")
    assert longest.get() == "question"


def test_state_outside_a_call_with_a_key_is_an_error():
    state = KeyedState()
    for use in (state.value("v").value, state.list("l").get, state.map("m").items, lambda: state.value("v").update(1)):
        with pytest.raises(TypeError, match="no value is at hand"):
            use()
