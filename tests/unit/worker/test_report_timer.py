"""When a worker measures its tasks and reports: in time, whatever messages arrive, and once when it is late."""

import queue
from types import SimpleNamespace

import pytest

from headgate.control.messages import Cancel, Deploy, PartitionLocation
from headgate.worker.reporting import ReportTimer
from headgate.worker.run import _LinkLost, _serve


class Clocked:
    """A timer whose clocks are the test's."""

    def __init__(self, length_ms=100, start_ms=10_000):
        self.ms = start_ms
        self.calls = []
        self.timer = ReportTimer(
            lambda: self.calls.append(("measure", self.ms)),
            lambda: self.calls.append(("report", self.ms)),
            length_ms,
            now_s=lambda: self.ms / 1000,
            now_ms=lambda: self.ms,
        )

    def go(self, ms):
        """Let so much time pass, and come by."""
        self.ms += ms
        self.timer.run_due()

    def taken(self):
        calls, self.calls[:] = list(self.calls), []
        return calls


def test_it_measures_at_the_end_of_each_interval_and_reports_once_a_second():
    clock = Clocked(start_ms=10_030)
    clock.timer.begin()
    for _ in range(2200 // 10):
        clock.go(10)
    measured = [at for what, at in clock.calls if what == "measure"]
    reports = [at for what, at in clock.calls if what == "report"]
    assert reports == [11_030, 12_030]
    assert measured == list(range(10_100, 12_201, 100)), "an interval ends in between"


def test_before_begin_nothing_is_measured_and_the_wait_is_long():
    clock = Clocked()
    clock.go(5000)
    assert clock.taken() == []
    assert clock.timer.wait_s() > 1


def test_wait_s_is_the_time_to_the_next_measurement():
    clock = Clocked(start_ms=10_030)
    clock.timer.begin()
    assert clock.timer.wait_s() == pytest.approx(0.07)
    clock.ms = 10_099
    assert clock.timer.wait_s() == pytest.approx(0.001)
    clock.ms = 10_100
    assert clock.timer.wait_s() == 0
    clock.go(0)
    assert clock.timer.wait_s() == pytest.approx(0.1)
    clock.ms = 11_050
    assert clock.timer.wait_s() == 0


def test_a_late_timer_measures_once_and_reports_once():
    clock = Clocked()
    clock.timer.begin()
    clock.go(750)
    assert clock.taken() == [("measure", 10_750)]
    clock.go(4000)
    assert clock.taken() == [("report", 14_750)]
    clock.go(100)
    assert clock.taken() == [("measure", 14_850)]
    clock.go(900)
    assert clock.taken() == [("report", 15_750)], "not sooner than is worth it"


def test_a_report_that_was_a_little_late_does_not_move_the_next():
    clock = Clocked()
    clock.timer.begin()
    clock.go(1080)
    clock.go(930)
    assert [what for what in clock.taken() if what[0] == "report"] == [("report", 11_080), ("report", 12_010)]


def test_without_an_interval_the_timer_only_reports():
    clock = Clocked(length_ms=0)
    clock.timer.begin()
    assert clock.timer.wait_s() == 1.0
    for _ in range(20):
        clock.go(100)
    assert clock.taken() == [("report", 11_000), ("report", 12_000)]


class Stepping(Clocked):
    """Time that passes as messages are handled."""

    def handled(self, *_):
        self.ms += 30


def test_a_stream_of_messages_does_not_keep_it_from_measuring():
    clock = Stepping()
    worker = SimpleNamespace(
        deploy=lambda: None, connect=clock.handled, cancel=clock.handled, over=True, join=lambda timeout_s: []
    )
    inbox = queue.SimpleQueue()
    for message in (Deploy(), *[PartitionLocation(None, 0, "", 0)] * 70, Cancel("enough"), _LinkLost(None)):
        inbox.put(message)
    sampler = SimpleNamespace(stop=lambda: None)
    _serve(worker, sampler, clock.timer, inbox, print)
    measured = [at for _, at in clock.calls]
    assert len(measured) == 2130 // 100, "none was left out, though the inbox was never empty"
    assert [what for what, _ in clock.calls].count("report") == 2
