"""Ctrl-C ends every wait of the main thread, also if the signal arrives just before the thread blocks."""

import _thread
import threading

import pytest

import headgate as hg
from headgate.api.results import Inbox
from headgate.coordinator.job import Job
from headgate.ids import JobId
from headgate.interrupts import wait_until

GIVE_UP_S = 20


class LostSignal:
    """Sets Python's flag for SIGINT without interrupting a system call, as a signal just before it does.

    `too_late` is set if the wait under test is still blocked long after that; `release` then ends it.
    """

    def __init__(self, release):
        self.too_late = False
        self._ended = threading.Event()
        self._release = release
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        if self._ended.wait(0.2):  # the main thread is blocked by then, as a rule; if not, the test proves less
            return
        _thread.interrupt_main()
        if not self._ended.wait(GIVE_UP_S):
            self.too_late = True
            self._release()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self._ended.set()
        self._thread.join()


def notified(condition, act=lambda: None):
    def release():
        with condition:
            act()
            condition.notify_all()

    return release


def test_a_wait_for_a_condition():
    changed, over = threading.Condition(), []
    with LostSignal(notified(changed, lambda: over.append(1))) as signal, pytest.raises(KeyboardInterrupt), changed:
        wait_until(changed, lambda: over)
    assert not signal.too_late


def test_a_wait_for_the_end_of_a_job():
    job = Job(JobId("1"), "endless", progress=lambda: None, cancel=lambda reason: None)
    with LostSignal(lambda: job.end(hg.JobStatus.CANCELLED)) as signal, pytest.raises(KeyboardInterrupt):
        job.await_termination()
    assert not signal.too_late


def test_a_wait_for_the_next_result():
    inbox = Inbox()
    with LostSignal(inbox.end) as signal, pytest.raises(KeyboardInterrupt):
        inbox.take()
    assert not signal.too_late


def test_a_wait_ends_when_its_condition_is_true_or_its_time_has_passed():
    changed, there = threading.Condition(), []
    with changed:
        assert not wait_until(changed, lambda: there, timeout_s=0.01)
    adding = threading.Timer(0.01, notified(changed, lambda: there.append(1)))
    adding.start()
    with changed:
        assert wait_until(changed, lambda: there, timeout_s=GIVE_UP_S)
    adding.join()
