"""Every selector: which channel, also for whole batches, and what a user's function may answer."""

import datetime as dt
import functools
import random
import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import SelectorError, UnstableKey
from headgate.output import Broadcast, Custom, Forward, Global, Hash, Rebalance, Rescale, Selector, Shuffle
from headgate.record import key_group

pytestmark = pytest.mark.spec("W1")


def connected(selector, channels):
    selector.connect(channels)
    return selector


def below(seed=0):
    return random.Random(seed).randrange


MAKERS = {
    "global": Global,
    "rescale": Rescale,
    "rebalance": lambda: Rebalance(below(3)),
    "shuffle": lambda: Shuffle(below(3)),
    "hash": lambda: Hash(lambda value: value),
    "hash of few groups": lambda: Hash(lambda value: value, max_parallelism=16),
    "custom": lambda: Custom(lambda value, channels: len(repr(value)) % channels, name="by_length"),
    "broadcast": Broadcast,
}
keys = (
    st.integers()
    | st.text()
    | st.binary()
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
    | st.uuids()
    | st.dates()
)


@pytest.mark.parametrize("name", MAKERS)
@given(
    batches=st.lists(st.lists(keys, max_size=20) | st.lists(st.text(), max_size=20), max_size=4),
    channels=st.integers(1, 9),
)
def test_a_batch_is_split_as_its_records_would_be_chosen(name, batches, channels):
    whole, single = connected(MAKERS[name](), channels), connected(MAKERS[name](), channels)
    for batch in batches:
        expected = [[] for _ in range(channels)]
        for value in batch:
            expected[single.choose(value)].append(value)
        assert whole.split(list(batch)) == expected
    probe = [whole.choose("x") for _ in range(3)]
    assert probe == [single.choose("x") for _ in range(3)], "both go on from the same place"


def test_forward_is_one_to_one():
    forward = connected(Forward(), 1)
    assert forward.choose("a") == 0
    assert forward.split(["a", "b"]) == [["a", "b"]]
    with pytest.raises(SelectorError, match="one subtask to one, not to 2"):
        Forward().connect(2)


def test_global_is_the_first():
    selector = connected(Global(), 4)
    assert [selector.choose(i) for i in range(5)] == [0] * 5
    assert selector.split([1, 2]) == [[1, 2], [], [], []]


def test_rescale_goes_round_from_the_first():
    selector = connected(Rescale(), 3)
    assert [selector.choose(None) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_rebalance_goes_round_from_a_random_one():
    starts = Counter()
    for seed in range(60):
        selector = connected(Rebalance(below(seed)), 4)
        chosen = [selector.choose(None) for _ in range(8)]
        assert chosen == [(chosen[0] + i) % 4 for i in range(8)]
        starts[chosen[0]] += 1
    assert set(starts) == {0, 1, 2, 3}, "not all writers begin at the same channel"


def test_shuffle_is_random_and_even():
    selector = connected(Shuffle(below()), 4)
    chosen = [selector.choose(None) for _ in range(4000)]
    assert all(900 < count < 1100 for count in Counter(chosen).values())
    assert len(Counter(chosen)) == 4
    assert chosen != [i % 4 for i in range(4000)]
    again = connected(Shuffle(below()), 4)
    assert [again.choose(None) for _ in range(4000)] == chosen, "all its randomness is handed in"


@pytest.mark.spec("W1", "W2")
@pytest.mark.parametrize(("channels", "groups"), [(1, 128), (4, 128), (7, 100), (128, 128)])
def test_hash_goes_by_key_group(channels, groups):
    selector = connected(Hash(lambda pair: pair[0], max_parallelism=groups), channels)
    chosen = Counter()
    for i in range(500):
        for key in (i, f"word-{i}", (i, "a"), i / 3, uuid.UUID(int=i), dt.date.fromordinal(i + 1)):
            channel = selector.choose((key, "payload"))
            assert channel == key_group(key, groups) * channels // groups
            assert channel == selector.choose((key, "other"))
            chosen[channel] += 1
    assert set(chosen) == set(range(channels))


def test_hash_refuses_keys_that_have_no_stable_hash():
    selector = connected(Hash(lambda value: value), 2)
    with pytest.raises(UnstableKey):
        selector.choose(object())
    with pytest.raises(UnstableKey):
        selector.split([object(), object()])


def test_hash_refuses_more_channels_than_key_groups():
    with pytest.raises(Exception, match=r"8|max_parallelism"):
        Hash(lambda value: value, max_parallelism=8).connect(9)


def test_only_broadcast_has_the_broadcast_flag():
    assert Broadcast().broadcast
    assert not any(MAKERS[name]().broadcast for name in MAKERS if name != "broadcast")


def test_custom_gets_the_record_and_the_number_of_channels():
    seen = []

    def partitioner(value, channels):
        seen.append((value, channels))
        return channels - 1

    assert connected(Custom(partitioner), 5).choose("a") == 4
    assert seen == [("a", 5)]


BAD = [1.0, True, False, None, -1, 3, 2**70, "1", [0]]


@pytest.mark.parametrize("answer", BAD, ids=repr)
def test_a_bad_answer_is_an_error_that_names_the_function(answer):
    def my_partitioner(value, channels):
        return answer

    for selector, name in (
        (Custom(my_partitioner), "my_partitioner"),
        (Custom(my_partitioner, name="by_country"), "by_country"),
        (Custom(functools.partial(my_partitioner)), "my_partitioner"),
    ):
        selector.connect(3)
        for call in (lambda one=selector: one.choose("x"), lambda one=selector: one.split(["x"])):
            with pytest.raises(SelectorError) as caught:
                call()
            text = str(caught.value)
            assert name in text
            assert repr(answer) in text
            assert "0 to 2" in text
            assert "str" in text


def test_an_error_of_a_partitioner_is_raised():
    selector = connected(Custom(lambda value, channels: 1 // 0), 2)
    with pytest.raises(ZeroDivisionError):
        selector.choose("x")


def test_a_user_defined_selector_is_used():
    class Alternating(Selector[int]):
        def choose(self, value):
            return value % self.channels

    assert connected(Alternating(), 2).split([1, 2, 3]) == [[2], [1, 3]]


@pytest.mark.spec("W2")
def test_very_many_numbers_go_where_one_at_a_time_would():
    many = [*range(-30_000, 30_000), 2**61 - 1, -(2**62), 7]
    by_number = Hash(lambda n: n, max_parallelism=128)
    by_number.connect(5)
    for batch in (many, [*many, 2**70], many[::-1]):
        parts = by_number.split(batch)
        assert parts == [[n for n in batch if by_number.choose(n) == channel] for channel in range(5)]
