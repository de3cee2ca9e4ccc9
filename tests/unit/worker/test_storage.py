"""What a worker keeps on disk: partitions by name, a quota, and nothing left in the end."""

import os
import tempfile
import threading

import pytest
from tests.support.partition_files import SEGMENT, data, read

from headgate.config import BatchSettings, Compression
from headgate.errors import ConfigError, StorageError, StorageFull
from headgate.graph.plan import Partition
from headgate.ids import AttemptId, JobId
from headgate.worker import storage as storage_module
from headgate.worker.storage import Quota, Storage, directories_of

pytestmark = pytest.mark.spec("P3")

ONE = Partition(0, 0, 0)


@pytest.fixture
def places(tmp_path):
    """Two disks."""
    for name in ("disk1", "disk2"):
        (tmp_path / name).mkdir()
    return tmp_path / "disk1", tmp_path / "disk2"


@pytest.fixture
def make(places):
    made = []

    def storage(job="etl", attempt=1, *, driver_here=True, **settings):
        batch = BatchSettings(**{"directories": ",".join(map(str, places)), **settings})
        one = Storage(batch, JobId(job), AttemptId(attempt), driver_here=driver_here)
        made.append(one)
        return one

    yield storage
    for one in made:
        one.close(remove=True)


def write(storage, partition=ONE, content=b"to be"):
    writer = storage.writer(partition, subpartitions=1, segment_size=SEGMENT)
    writer.append([data(0, content)])
    return writer.finish()


def files(places):
    return sorted(str(path.relative_to(place)) for place in places for path in place.rglob("*") if path.is_file())


def visible(places):
    return [os.path.basename(path) for path in files(places) if path.endswith(".partition")]


def test_nothing_is_made_before_it_is_needed(make, places):
    storage = make()
    assert files(places) == []
    storage.close(remove=True)
    assert files(places) == []
    storage = make()
    storage.open()
    storage.open()
    assert len(files(places)) == 2  # a lock on each disk


def test_partitions_are_found_by_name_and_read(make, places):
    storage = make()
    partitions = [Partition(vertex, output, 7) for vertex in (0, 12) for output in (0, 3)]
    for partition in partitions:
        write(storage, partition, str(partition).encode()).close()
    assert sorted(visible(places)) == ["v0.0-7.partition", "v0.3-7.partition", "v12.0-7.partition", "v12.3-7.partition"]
    found = make().finished()
    assert sorted(found) == sorted(partitions)
    assert all(os.path.exists(path) for path in found.values())
    for partition in partitions:
        file = storage.open_partition(partition, segment_size=SEGMENT)
        assert read(file, 0) == [str(partition).encode()]
        file.close()


def test_partitions_are_spread_over_the_directories(make, places):
    storage = make()
    for subtask in range(10):
        write(storage, Partition(0, 0, subtask)).close()
    assert [len(list(place.rglob("*.partition"))) for place in places] == [5, 5]
    spilled = {storage.spill_directory for _ in range(4)}
    assert spilled == {os.path.dirname(write(storage, Partition(0, 0, subtask)).path) for subtask in range(2)}


def test_a_directory_with_hardly_any_room_is_left_alone(make, places, monkeypatch):
    def room(place):
        return 10**6 if str(places[0]) in place.folder.path else 10**12

    monkeypatch.setattr(storage_module, "_free_bytes", room)
    storage = make()
    for subtask in range(4):
        write(storage, Partition(0, 0, subtask)).close()
    assert [len(list(place.rglob("*.partition"))) for place in places] == [0, 4]


def test_if_all_are_nearly_full_the_best_is_taken(make, places, monkeypatch):
    monkeypatch.setattr(storage_module, "_free_bytes", lambda place: 5 if str(places[0]) in place.folder.path else 4)
    assert write(make()).path.startswith(str(places[0]))
    assert write(make("other"), Partition(0, 0, 1)).path.startswith(str(places[0]))


def test_the_next_run_of_a_task_finds_its_name_free(make, places):
    storage = make()
    file = write(storage, content=b"first")
    again = write(storage, content=b"second")
    assert read(again, 0) == [b"second"]
    assert len(visible(places)) == 1
    assert storage.quota.used == again.bytes_on_disk
    file.remove()  # of the one that is not there any more
    assert read(again, 0) == [b"second"]
    half = storage.writer(ONE, subpartitions=1, segment_size=SEGMENT)
    half.append([data(0, b"half")])
    third = write(storage, content=b"third")
    assert [path for path in files(places) if path.endswith(".part")] == []
    assert read(third, 0) == [b"third"]


def test_a_file_of_another_attempt_is_replaced_too(make, places):
    old = make(attempt=1)
    file = write(old, content=b"first")
    again = write(make(attempt=2), content=b"second")
    assert read(again, 0) == [b"second"]
    file.remove()  # by whom has not heard of the new one, which stays
    old.close(remove=True)
    assert len(visible(places)) == 1


def test_removing_gives_back_everything_and_may_be_repeated(make, places):
    storage = make()
    write(storage)
    found = make()
    opened = found.open_partition(ONE, segment_size=SEGMENT)
    assert found.quota.used == opened.bytes_on_disk
    found.remove(ONE)
    assert visible(places) == []
    assert found.quota.used == 0
    found.remove(ONE)
    storage.remove(ONE)
    storage.remove(Partition(9, 9, 9))
    assert storage.quota.used == 0


def test_other_names_are_not_partitions(make, places):
    storage = make()
    storage.open()
    place = os.path.join(places[0], f"headgate-{os.geteuid()}", "etl")
    for name in (
        *("v0.0-0.partition.old", "v00.0-0.partition", "v-1.0-0.partition", "v0.0.partition", "x", ".v0.0-0.partition"),
        *("v0.0-99999999999.partition", "v0.0-0.partition\n", "w0.0-0.partition"),
    ):
        with open(os.path.join(place, name), "w"):
            pass
    assert storage.finished() == {}


def test_partitions_older_than_the_last_boot_do_not_count(make, places):
    storage = make()
    path = write(storage).path
    assert storage.finished() == {ONE: path}
    os.utime(path, (0, 0))
    assert storage.finished() == {}


def test_a_partition_that_is_not_there_is_an_error(make, places):
    with pytest.raises(StorageError, match=r"v0\.0-0\.partition: cannot be read: No such file"):
        make().open_partition(ONE, segment_size=SEGMENT)


def test_a_new_attempt_removes_unfinished_files_of_earlier_ones(make, places):
    first = make(attempt=1)
    old = first.writer(ONE, subpartitions=1, segment_size=SEGMENT)
    write(first, Partition(1, 0, 0)).close()
    second = make(attempt=2)
    mine = second.writer(ONE, subpartitions=1, segment_size=SEGMENT)
    third = make(attempt=2)
    third.open()  # of the same attempt: another worker of this machine
    assert len([path for path in files(places) if path.endswith(".part")]) == 1
    assert second.finished().keys() == {Partition(1, 0, 0)}
    with pytest.raises(StorageError, match=r"v0\.0-0\.partition: cannot be given its name"):
        old.finish()  # a process that has not heard that it is over
    mine.finish().close()


def test_the_quota_is_the_workers_not_the_files(make, places):
    storage = make(disk_quota=3000, compression=Compression.NONE)
    first = write(storage, Partition(0, 0, 0), bytes(1000))
    second = storage.writer(Partition(1, 0, 0), subpartitions=1, segment_size=SEGMENT)
    second.append([data(0, bytes(1000))])
    storage.quota.take(500)  # groups that were spilled
    with pytest.raises(StorageFull, match=r"v1\.0-0\.partition: \d+ bytes would be on disk; a worker may keep 3000"):
        second.append([data(0, bytes(1000))])
    with pytest.raises(StorageFull, match="disk1"):
        storage.quota.take(5000)
    assert storage.quota.used == first.bytes_on_disk + 500
    storage.remove(Partition(0, 0, 0))
    assert storage.quota.used == 500
    other = make("another", disk_quota=3000)
    assert other.quota.used == 0


def test_a_quota_is_right_with_many_threads():
    quota, refused = Quota(1000, "/data"), []

    def use():
        for _ in range(2000):
            try:
                quota.take(300)
            except StorageFull:
                refused.append(1)
                continue
            assert quota.used <= 1000
            quota.give_back(300)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert quota.used == 0


def test_without_a_limit_there_is_none():
    quota = Quota(0, "/data")
    quota.take(10**18)
    assert quota.used == 10**18


@pytest.mark.parametrize("remove", [True, False])
def test_closing(make, places, remove):
    storage, other = make(), make()
    write(storage)
    write(other, Partition(0, 0, 1))
    unfinished = storage.writer(Partition(2, 0, 0), subpartitions=1, segment_size=SEGMENT)
    unfinished.append([data(0, b"half")])
    storage.close(remove=remove)
    storage.close(remove=remove)
    assert visible(places) == ([] if remove else ["v0.0-0.partition"]) + ["v0.0-1.partition"]
    assert not [path for path in files(places) if path.endswith(".part")]
    with pytest.raises(StorageError, match="used after it was closed"):
        storage.finished()
    other.close(remove=True)
    assert files(places) == []


def test_a_start_removes_files_of_a_dead_job(make, places):
    dead = make("dead")
    write(dead).close()
    dead.close(remove=False)  # as the system does for a process that is killed
    alive = make("alive")
    write(alive, Partition(1, 0, 0)).close()
    make("new").open()
    assert [path for path in files(places) if "/dead/" in path] == []
    assert visible(places) == ["v1.0-0.partition"]


def test_sweeping_by_hand(make, places):
    dead = make("dead")
    dead.open()
    dead.close(remove=False)
    settings = BatchSettings(directories=",".join(map(str, places)))
    assert [os.path.basename(path) for path in Storage.sweep(settings)] == ["dead", "dead"]


def test_one_directory_that_cannot_be_used_leaves_no_lock_on_the_others(make, places):
    places[1].rmdir()
    places[1].write_text("no directory")
    storage = make()
    with pytest.raises(StorageError, match="disk2: cannot be used: Not a directory"):
        storage.open()
    settings = BatchSettings(directories=str(places[0]))
    assert len(Storage.sweep(settings)) == 1


def test_directories_are_absolute_and_named_once():
    assert directories_of(BatchSettings()) == (tempfile.gettempdir(),)
    assert directories_of(BatchSettings(directories=" /a ,/b,, /a")) == ("/a", "/b")
    with pytest.raises(ConfigError, match=r"batch\.directories: 'data' is no absolute path"):
        directories_of(BatchSettings(directories="/a,data"))


def test_a_directory_that_cannot_be_listed_is_an_error(make, places, monkeypatch):
    storage = make()
    storage.open()

    def broken(fd):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", broken)
        with pytest.raises(StorageError, match="etl: cannot be read: Input/output error"):
            storage.finished()


def test_a_file_that_cannot_be_removed_is_an_error_that_names_it(make, places, monkeypatch):
    storage = make()
    write(storage).close()
    other = make()

    def broken(*args, **kwargs):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "unlink", broken)
    for one in (storage, other):
        with pytest.raises(StorageError, match=r"v0\.0-0\.partition: cannot be removed: Input/output error"):
            one.remove(ONE)
    monkeypatch.undo()
