"""The intake: payloads on their way into their segments. What becomes of them is tested with sessions and channels."""

import pytest
from tests.support_remote import SIZE, Remote

from headgate.errors import InvariantViolated
from headgate.net import intake as intake_module
from headgate.net.intake import Intake
from headgate.sync import ThreadSync
from headgate.wire import Payload


@pytest.mark.spec("G6")
def test_who_was_told_of_something_is_woken_also_if_the_rest_fails(monkeypatch):
    """Else it would sleep for ever: the failure of the connection finds it told already."""
    woken = []

    def arrive_run_locked(run, wakes):
        wakes.append(lambda: woken.append(lock.locked()))
        raise InvariantViolated("no segment is set aside")

    monkeypatch.setattr(intake_module, "arrive_run_locked", arrive_run_locked)
    lock = ThreadSync().lock
    with pytest.raises(InvariantViolated, match="no segment"):
        Intake(lock, segment_size=64).take_run([])
    assert woken == [False], "outside the lock"


def rest(data, *, last):
    return Payload(memoryview(data), last=last)


@pytest.mark.spec("G6", "N6")
def test_what_a_run_has_begun_is_filled_and_stands_behind_the_rest_of_it():
    with Remote() as remote:
        intake = Intake(remote.memory.lock, segment_size=SIZE)
        whole, begun = (remote.channel, 1, 0, memoryview(b"whole")), (remote.channel, 3, 5, memoryview(b"a"))
        intake.take_run([whole, begun], missing=3)
        assert (remote.read(), remote.read()) == (b"whole", None)
        intake.fill(rest(b"bc", last=False))
        intake.fill(rest(b"d", last=True))
        intake.hand_over()
        taken = remote.poll()
        assert (bytes(taken.memory), taken.offset, remote.channel.backlog) == (b"abcd", 5, 3)
        assert (intake.buffers, intake.bytes) == (2, 9)
        taken.release()


@pytest.mark.spec("G6", "N6")
@pytest.mark.parametrize("when", ["before", "between"])
def test_what_a_run_has_begun_is_dropped_if_nobody_wants_it_any_more(when):
    with Remote() as remote:
        intake = Intake(remote.memory.lock, segment_size=SIZE)
        if when == "before":
            remote.release()
        intake.take_run([(remote.channel, 0, 0, memoryview(b"a"))], missing=2)
        remote.release()
        intake.fill(rest(b"bc", last=True))
        intake.hand_over()
        assert remote.memory.statistics().free == remote.memory.total, "all has gone back"


@pytest.mark.spec("G6", "N6")
def test_what_a_run_has_begun_goes_back_when_the_connection_is_lost():
    with Remote() as remote:
        intake = Intake(remote.memory.lock, segment_size=SIZE)
        intake.take_run([(remote.channel, 0, 0, memoryview(b"a"))], missing=2)
        remote.release()
        assert remote.memory.statistics().free == remote.memory.total - 1
        remote.locked(intake.lose_locked)
        assert remote.memory.statistics().free == remote.memory.total
