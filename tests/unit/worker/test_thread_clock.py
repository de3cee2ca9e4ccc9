"""What the system says of threads: while they live, and nothing of another when they are gone."""

import sys
import threading
import time

import pytest
from tests.support.waiting import wait_until

from headgate.worker.task_meter import ThreadClock, process_cpu_ns, resident_bytes

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


class Worked:
    """A thread that works or waits until it is told to end, and its clock."""

    def __init__(self, *, work):
        self.ready, self.end = threading.Event(), threading.Event()
        self.work = work
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self.ready.wait(30)

    def _run(self):
        self.clock = ThreadClock.of_this_thread()
        began = time.thread_time_ns()
        while self.work and time.thread_time_ns() - began < 30_000_000:
            pass
        self.ready.set()
        self.end.wait(30)

    def close(self):
        self.end.set()
        self.thread.join(30)


@linux
@pytest.mark.spec("B2")
def test_a_clock_is_that_of_its_thread_read_by_another():
    worked, waited = Worked(work=True), Worked(work=False)
    try:
        assert worked.clock.cpu_ns() >= 30_000_000
        assert waited.clock.cpu_ns() < worked.clock.cpu_ns()
        assert worked.clock.run_queue_ns() >= 0
        assert process_cpu_ns() > worked.clock.cpu_ns()
    finally:
        worked.close()
        waited.close()


@linux
def test_the_times_of_an_ended_thread_are_unknown():
    gone = Worked(work=False)
    gone.close()
    wait_until(lambda: (gone.clock.cpu_ns(), gone.clock.run_queue_ns()) == (-1, -1), "the system to forget it")


def test_a_closed_clock_is_not_read_though_its_number_may_live_on():
    clock = ThreadClock.of_this_thread()
    clock.close()
    clock.close()
    assert (clock.cpu_ns(), clock.run_queue_ns()) == (-1, -1)


def test_times_that_the_system_does_not_provide_are_unknown(monkeypatch):
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    assert ThreadClock.of_this_thread().cpu_ns() == -1

    def refuse(*_args, **_named):
        raise FileNotFoundError("/proc")

    clock = ThreadClock.of_this_thread()
    monkeypatch.setattr("builtins.open", refuse)
    assert clock.run_queue_ns() == -1
    assert resident_bytes() == 0
