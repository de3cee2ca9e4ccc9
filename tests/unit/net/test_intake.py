"""The intake: payloads are copied into their segments. Their channels are tested with sessions and remote channels."""

import tracemalloc

import pytest
from tests.support import remote_channel
from tests.support.remote_channel import SIZE, Remote

from headgate.errors import InvariantViolated
from headgate.net import intake as intake_module
from headgate.net.intake import Intake
from headgate.sync import ThreadSync
from headgate.wire import Data, Payload


@pytest.mark.spec("G6")
def test_a_notified_reader_is_woken_also_if_the_rest_of_the_run_fails(monkeypatch):
    """Else it would block for ever: the failure of the connection does not notify it again."""
    woken = []

    def receive_run_locked(run, wakes):
        wakes.append(lambda: woken.append(lock.locked()))
        raise InvariantViolated("no segment is set aside")

    monkeypatch.setattr(intake_module, "receive_run_locked", receive_run_locked)
    lock = ThreadSync().lock
    with pytest.raises(InvariantViolated, match="no segment"):
        Intake(lock, segment_size=64).take_run([])
    assert woken == [False], "outside the lock"


def piece(data, *, last):
    return Payload(memoryview(data), last=last)


@pytest.mark.spec("G6", "N6")
def test_the_cut_buffer_of_a_run_is_filled_and_follows_the_others():
    with Remote() as remote:
        intake = Intake(remote.memory.lock, segment_size=SIZE)
        whole, begun = (
            (remote.channel, 1, 0, memoryview(b"whole"), None),
            (remote.channel, 3, 5, memoryview(b"a"), None),
        )
        intake.take_run([whole, begun], missing=3)
        assert (remote.read(), remote.read()) == (b"whole", None)
        intake.fill(piece(b"bc", last=False))
        intake.fill(piece(b"d", last=True))
        intake.deliver()
        taken = remote.poll()
        assert (bytes(taken.memory), taken.offset, remote.channel.backlog) == (b"abcd", 5, 3)
        assert (intake.buffers, intake.bytes) == (2, 9)
        taken.release()


@pytest.mark.spec("N6")
@pytest.mark.parametrize("cut", [0, 1], ids=["in one read", "cut by the end of a read"])
def test_a_payload_is_copied_once(cut, monkeypatch):
    """The copy into the segment allocates nothing: a second copy would allocate as much as the payload has."""
    size = 1 << 20
    monkeypatch.setattr(remote_channel, "SIZE", size)
    with Remote() as remote:
        intake, payload = Intake(remote.memory.lock, segment_size=size), memoryview(bytes(size))
        tracemalloc.start()
        try:
            intake.take_run([(remote.channel, 0, 0, payload[: size - cut * 900_000], None)], missing=cut * 900_000)
            if cut:
                intake.fill(piece(payload[:900_000], last=True))
                intake.deliver()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        taken = remote.poll()
        assert len(taken.memory) == size
        assert most < size // 4
        taken.release()


@pytest.mark.spec("G6", "N6")
@pytest.mark.parametrize("when", ["before", "between"])
def test_the_cut_buffer_of_a_run_is_dropped_if_its_channel_is_released(when):
    with Remote() as remote:
        intake = Intake(remote.memory.lock, segment_size=SIZE)
        if when == "before":
            remote.release()
        intake.take_run([(remote.channel, 0, 0, memoryview(b"a"), None)], missing=2)
        remote.release()
        intake.fill(piece(b"bc", last=True))
        intake.deliver()
        assert remote.memory.statistics().free == remote.memory.total, "all has gone back"


@pytest.mark.spec("G6", "N6")
def test_the_cut_buffer_of_a_run_is_recycled_when_the_connection_is_lost():
    with Remote() as remote:
        intake = Intake(remote.memory.lock, segment_size=SIZE)
        intake.take_run([(remote.channel, 0, 0, memoryview(b"a"), None)], missing=2)
        remote.release()
        assert remote.memory.statistics().free == remote.memory.total - 1
        remote.locked(intake.lose_locked)
        assert remote.memory.statistics().free == remote.memory.total


@pytest.mark.spec("N2", "N8")
def test_events_of_one_read_count_as_unread():
    with Remote() as remote:
        intake, came = Intake(remote.memory.lock, segment_size=SIZE), 0
        while intake.begin(Data(0, came, backlog=0, size=8000, event=True), remote.channel):
            intake.fill(piece(bytes(8000), last=True))
            came += 1
            assert came < 1000, "there is a limit"
        assert came * 8000 <= 1024 * 1024 + 8000, "the limit, and the event that passes it"
        assert intake.starved
