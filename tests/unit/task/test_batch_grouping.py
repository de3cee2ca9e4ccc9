"""Values by key, in memory and on disk: what is given out, what is on disk meanwhile, and what a bad disk does."""

import errno
import math
import tempfile

import pytest
from tests.support.batch_operators import CountedQuota, space
from tests.support.leaks import unnamed_files

from headgate.config import Compression
from headgate.errors import Cancelled, SerializationError, StorageError, StorageFull
from headgate.record import StrSerializer
from headgate.task.batch import spill
from headgate.task.batch.grouping import Grouping, key_hash
from headgate.task.batch.sizes import memory_of

pytestmark = pytest.mark.spec("T4")


def everything(grouping):
    """All that a grouping gives out."""
    return [(key, [value for one in several for value in one.values]) for key, several in grouping.groups()]


def filled(grouping, batches=10, keys=4):
    for batch in range(batches):
        values = [f"{batch}-{n}" for n in range(20)]
        grouping.add([n % keys for n in range(20)], values)
    return {key: [f"{b}-{n}" for b in range(batches) for n in range(20) if n % keys == key] for key in range(keys)}


def test_groups_that_fit_stay_in_memory_in_the_order_of_their_first_values():
    quota = CountedQuota()
    grouping = Grouping(space(2**20, quota=quota))
    expected = filled(grouping)
    assert everything(grouping) == list(expected.items())
    assert quota.peak == 0


@pytest.mark.parametrize("codec", Compression)
def test_groups_that_do_not_fit_are_spilled_and_merged(codec):
    quota, told = CountedQuota(), []
    disk = space(2_000, StrSerializer(), quota=quota, compression=codec)
    grouping = Grouping(disk, spilled=told.append)
    expected = filled(grouping)
    found = everything(grouping)
    assert dict(found) == expected
    assert [key for key, _ in found] == sorted(expected, key=key_hash)
    assert len(told) > 3
    assert sum(told) == quota.peak
    grouping.close()
    assert quota.taken == 0


def test_many_runs_are_merged_before_the_end_and_their_files_are_gone():
    quota, told = CountedQuota(), []
    grouping = Grouping(space(1, quota=quota), max_runs=4, spilled=told.append)
    expected = filled(grouping, batches=50)
    assert sum(map(len, grouping._levels)) < 10
    assert quota.taken < sum(told) / 2
    assert dict(everything(grouping)) == expected
    grouping.close()
    assert quota.taken == 0


@pytest.mark.parametrize("limit", [1, 3_000])
def test_keys_of_the_same_hash_are_kept_apart_however_many_values_they_have(limit):
    grouping = Grouping(space(limit), hash_of=lambda key: 7, max_runs=3)
    for n in range(600):
        grouping.add(["a", "b", n % 5], [("a", n), ("b", n), (n % 5, n)])
    found = dict(everything(grouping))
    assert found["a"] == [("a", n) for n in range(600)]
    assert found["b"] == [("b", n) for n in range(600)]
    assert found[3] == [(3, n) for n in range(600) if n % 5 == 3]
    assert len(found) == 7
    grouping.close()


@pytest.mark.parametrize("limit", [None, 1])
def test_a_key_that_is_not_equal_to_itself_is_a_group_each_time_as_in_a_dict(limit):
    grouping = Grouping(None if limit is None else space(limit), hash_of=lambda key: 7)
    for n in range(5):
        grouping.add([float("nan"), ("x", float("nan"))], [n, -n])
    found = everything(grouping)
    assert sorted(value for _, values in found for value in values) == sorted([*range(5), *(-n for n in range(5))])
    assert all(len(values) == 1 for _, values in found)
    assert sum(isinstance(key, float) and math.isnan(key) for key, _ in found) == 5
    grouping.close()


def test_equal_keys_of_different_types_are_one_key():
    grouping = Grouping(space(1))
    for key in (1, True, 1.0):
        grouping.add([key], [key])
    assert everything(grouping) == [(1, [1, True, 1.0])]
    grouping.close()


def test_unread_values_of_a_key_are_skipped():
    grouping = Grouping(space(500))
    filled(grouping)
    assert sorted(key for key, several in grouping.groups()) == [0, 1, 2, 3]
    grouping.close()


def test_a_value_larger_than_all_memory_goes_through():
    grouping = Grouping(space(1_000))
    grouping.add(["a", "b"], ["x" * 100_000, "y"])
    grouping.add(["a"], ["z"])
    assert dict(everything(grouping)) == {"a": ["x" * 100_000, "z"], "b": ["y"]}
    grouping.close()


def test_values_of_both_inputs_and_of_the_operator_itself_stay_in_their_order():
    class Only(StrSerializer):
        """Refuses what is not its own."""

        def __init__(self, letter):
            super().__init__()
            self._letter = letter

        def encode_batch(self, values):
            assert all(value.startswith(self._letter) for value in values)
            return super().encode_batch(values)

    disk = spill.SpillSpace(tempfile.gettempdir, memory_bytes=300, serializers=(Only("a"), Only("b")))
    grouping = Grouping(disk)
    for n in range(30):
        grouping.add(["key"] * 3, [f"a{n}", f"b{n}", (n,)], [n, n + 1, n + 2], [0, 1, 2])
    entries = [entry for _, several in grouping.groups() for one in several for entry in zip(*one, strict=True)]
    assert entries == [e for n in range(30) for e in ((f"a{n}", n, 0), (f"b{n}", n + 1, 1), ((n,), n + 2, 2))]
    grouping.close()


# What a bad disk does -----------------------------------------------------------------------------------------


@pytest.mark.spec("P3")
def test_beyond_the_quota_there_is_an_error_that_names_the_path_and_nothing_is_left():
    quota, before = CountedQuota(most=3_000), unnamed_files()
    grouping = Grouping(space(1_000, quota=quota))
    with pytest.raises(StorageFull, match=f"^{tempfile.gettempdir()}.*disk_quota"):
        filled(grouping, batches=1000)
    grouping.close()
    assert quota.taken == 0
    assert unnamed_files() == before


class BadFile:
    """Half a write succeeds, then the disk says no."""

    def __init__(self, error):
        self._error = error
        self._left = 1
        self.closed = False

    def write(self, data):
        if not self._left:
            raise OSError(self._error, "as the system says it")
        self._left -= 1
        return len(data) // 2

    def close(self):
        self.closed = True
        raise OSError(self._error, "also when it is closed")


@pytest.mark.spec("P3")
@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EIO, StorageError)])
def test_a_disk_that_is_full_or_broken_is_an_error_that_names_the_path(monkeypatch, number, kind):
    file, quota = BadFile(number), CountedQuota()
    monkeypatch.setattr(spill.tempfile, "TemporaryFile", lambda **_: file)
    grouping = Grouping(space(1, quota=quota))
    with pytest.raises(StorageError, match="written: as the system says it") as caught:
        filled(grouping)
    assert type(caught.value) is kind
    assert caught.value.path.startswith(tempfile.gettempdir())
    assert file.closed
    grouping.close()
    assert quota.taken == 0


@pytest.mark.spec("P3")
def test_a_directory_that_is_gone_is_an_error_that_names_it(tmp_path):
    grouping = Grouping(space(1, directory=lambda: tmp_path / "gone"))
    with pytest.raises(StorageError, match=r"gone.*No such file"):
        filled(grouping)
    grouping.close()


@pytest.mark.spec("P3")
@pytest.mark.parametrize("codec", Compression)
def test_a_file_that_has_changed_is_an_error_and_no_wrong_result(codec):
    grouping = Grouping(space(1, compression=codec))
    filled(grouping, batches=1)
    (run,) = grouping._levels[0]
    length = run.bytes_on_disk
    run._file._file.seek(0)
    run._file._file.write(b"\xff" * 100)
    with pytest.raises(StorageError, match="spilled groups"):
        everything(grouping)
    run._file._file.truncate(length // 2)
    with pytest.raises(StorageError, match="ends after"):
        run.load(len(run.blocks) - 1)
    grouping.close()


def test_values_that_cannot_be_written_are_the_users_to_mend():
    grouping = Grouping(space(1))
    with pytest.raises(SerializationError, match="pickle cannot write"):
        grouping.add(["a"], [lambda: None])
    grouping.close()


def test_a_cancelled_merge_ends():
    cancelled = []

    def check():
        if cancelled:
            raise Cancelled("the job was cancelled")

    quota = CountedQuota()
    grouping = Grouping(space(1, quota=quota), max_runs=5, check=check)
    filled(grouping, batches=4)
    cancelled.append(True)
    with pytest.raises(Cancelled):
        filled(grouping, batches=1)
    grouping.close()
    assert quota.taken == 0


# Estimates ----------------------------------------------------------------------------------------------------


class Thing:
    def __init__(self, text):
        self.text = text


class Rude:
    def __sizeof__(self):
        raise RuntimeError("none of your business")


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("x" * 1000, 1000, 1100),
        ((1, "x" * 1000), 1000, 1300),
        ({"a": ["x" * 1000]}, 1000, 1700),
        (Thing("x" * 1000), 1000, 1700),
        ([["x" * 10] * 1000], 59_000, 80_000),
        (list(range(10**6, 10**6 + 100_000)), 3_000_000, 5_000_000),
        (Rude(), 1, 1000),
    ],
)
def test_estimated_memory_is_near_the_actual_size(value, least, most):
    assert least <= memory_of([value]) <= most
    assert 100 * least <= memory_of([value] * 100) <= 100 * most


def test_a_large_value_among_small_ones_is_sampled_at_its_position():
    values = ["x"] * 99 + ["y" * 100_000]
    assert 50_000 < sum(memory_of(values, turn) for turn in range(100)) / 100 < 200_000
