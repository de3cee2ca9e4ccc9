"""The intake: payloads on their way into their segments. What becomes of them is tested with sessions and channels."""

import pytest

from headgate.errors import InvariantViolated
from headgate.net import intake as intake_module
from headgate.net.intake import Intake
from headgate.sync import ThreadSync


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
