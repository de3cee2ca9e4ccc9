"""What a worker reports of its tasks, its memory and its connections; in messages that can be sent."""

import sys
import threading
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest
from tests.support.pipelines import Endless, Gathered, small_env
from tests.support.remote_channel import Remote
from tests.support.waiting import wait_until
from tests.support.worker import Site

import headgate as hg
from headgate.clock import wall_ms
from headgate.control.link import MAX_MESSAGE_BYTES
from headgate.control.messages import Done, TaskState
from headgate.control.reports import (
    ChannelReport,
    ConnectionReport,
    HotKey,
    LatencyProgress,
    OperatorMeters,
    SubtaskInterval,
    SubtaskReport,
    WorkerReport,
)
from headgate.net import ConnectionStatistics, PathStatistics
from headgate.net.context import PumpStatistics
from headgate.wire.states import ConnectionState
from headgate.worker import Environment
from headgate.worker.reporting import ChannelMeter, connection_reports, reports_of


def connection(worker, state=ConnectionState.OPEN, **figures):
    traffic = PumpStatistics(0, 0, 0, 0, 0, 0)
    return ConnectionStatistics("127.0.0.1:1", worker, state, waiting_bytes=0, traffic=traffic, **figures)


def whole(site):
    """All that the worker says of its tasks at this moment."""
    (report,) = site.worker.reports()
    return report


def stuck(report):
    """Whether the source waits for a buffer, and what reads it does not go on."""
    return [one.intervals[-1].busy for one in report.subtasks if one.intervals] == [0, 1000]


@pytest.mark.spec("B2")
def test_states_processors_and_channels_are_in_the_report():
    held, sink = threading.Event(), Gathered(each=lambda _: held.wait(30))
    env = small_env(1, metrics__interval="5 ms")
    env.from_source(Endless()).rebalance().map(lambda n: n).name("double").sink_to(sink)
    with Site(env) as site:
        site.worker.deploy()
        site.wait(lambda: TaskState.RUNNING in site.states(1), "the consumer")
        try:
            heard = []
            wait_until(lambda: heard.append(whole(site)) or stuck(heard[-1]), "back pressure")
            before = heard[-1]
            wait_until(lambda: wall_ms() > before.at_ms + 15, "a few moments more")
            now = whole(site)
        finally:
            held.set()
        source, consumer = now.subtasks
        assert len(source.intervals) == len(consumer.intervals) > 1
        assert source.intervals_end_ms == consumer.intervals_end_ms <= now.at_ms
        assert source.intervals_end_ms % 5 == 0
        assert now.at_ms - source.intervals_end_ms < 5
        first = source.intervals_end_ms - len(source.intervals) * 5
        assert first == before.subtasks[0].intervals_end_ms, "they go on where the report before has ended"
        assert source.intervals[-1].back_pressured == 1000
        assert consumer.intervals[-1].busy == 1000
        assert consumer.intervals[-1].backlog == consumer.backlog > 0
        assert source.channels == []
        (channel,) = consumer.channels
        assert (channel.exchange, channel.producer, channel.local) == (0, 0, True)
        assert channel.backlog == consumer.backlog
        assert channel.queued == consumer.in_queued > 0
        assert (channel.exclusive, channel.floating, channel.credit) == (0, 0, 0)
        assert channel.bytes_in == consumer.bytes_in > 0
        if sys.platform == "linux":
            assert min(source.cpu_ns, consumer.cpu_ns) > 0
            assert min(source.run_queue_ns, consumer.run_queue_ns) >= 0
        assert now.cpu_ns > source.cpu_ns
        assert now.process.segments_total == 2**18 // 512
        assert 0 < now.process.segments_free < now.process.segments_total
        site.worker.cancel("enough")
        site.wait_done()
        last = site.told[-2]
        assert {one.cpu_ns for one in last.subtasks} == {-1}, "their threads are gone"
        assert {one.run_queue_ns for one in last.subtasks} == {-1}
        spent = [(one.busy_ns, one.idle_ns, one.back_pressured_ns) for one in whole(site).subtasks]
        assert [(one.busy_ns, one.idle_ns, one.back_pressured_ns) for one in whole(site).subtasks] == spent, "it stays"


@pytest.mark.spec("B2")
def test_every_record_is_in_one_state_to_the_end():
    sink = Gathered()
    env = small_env(1, metrics__interval="1 ms")
    env.from_collection(range(5000)).rebalance().sink_to(sink)
    with Site(env) as site:
        site.worker.deploy()
        heard = []
        while not site.worker.over:
            site.worker.measure()
            heard += site.worker.reports()
        site.wait_done()
        heard += [one for one in site.told if isinstance(one, WorkerReport)]
        heard += site.worker.reports()
        states = [
            [state for report in heard for one in report.subtasks if one.vertex == vertex for state in one.intervals]
            for vertex in (0, 1)
        ]
        assert [sum(state.records_in for state in some) for some in states] == [5000, 5000]
        assert sum(state.records_out for state in states[0]) == 5000


def test_without_an_interval_there_are_no_states():
    env = small_env(1, metrics__interval="0")
    env.from_collection(range(10)).sink_to(Gathered())
    with Site(env) as site:
        site.worker.deploy()
        site.wait_done()
        report = site.told[-2]
        assert [one.intervals for one in report.subtasks] == [[]]
        assert report.subtasks[0].records_in == 10


def test_latencies_and_hot_keys_are_those_of_loop_and_writers(monkeypatch):
    env = small_env(1)
    env.from_collection(range(10)).key_by(lambda n: n).reduce(max).sink_to(Gathered())
    with Site(env) as site:
        site.worker.deploy()
        site.wait_done()
        source, consumer = site.worker.tasks
        latency = SimpleNamespace(source=0, count=2, p50_us=3, p99_us=4, max_us=5)
        monkeypatch.setattr(consumer.task.loop, "latencies", lambda: [latency])
        hot = [SimpleNamespace(key="k" * 300, share_permille=700 - n) for n in range(100)]
        monkeypatch.setattr(source.task.writers[0], "hot_keys", lambda: hot)
        first, second = whole(site).subtasks
        assert [(one.source, one.count, one.max_ms) for one in second.latencies] == [(0, 2, 0.005)]
        assert first.latencies == ()
        assert first.hot_keys[0] == HotKey(exchange=0, key="k" * 80, share=0.7)
        assert len(first.hot_keys) == 20
        assert second.hot_keys == ()


NUMBERS = [one.name for one in fields(SubtaskReport) if one.type == "int" and one.name not in {"vertex", "subtask"}]


def test_reports_are_as_many_as_it_takes():
    channels = [ChannelReport(2**40, 2**20, False, *[2**40] * 6)] * 256
    states = [SubtaskInterval(*[1000] * 3, *[2**40] * 4, 1000, 1000)] * 1000
    keys = (HotKey(exchange=2**40, key="\U0001f40c" * 80, share=0.123456789),) * 20
    counters = {f"counter {n}": 2**60 for n in range(1000)}
    tags = {"\U0001f40c" * 190 + str(n): 2**62 for n in range(100)}
    operators = (OperatorMeters(records_in=2**62, records_out=2**62, side_outputs=tags),)
    operators += (OperatorMeters(records_in=2**62, records_out=2**62),) * 999
    latencies = (LatencyProgress(source=2**40, count=2**62, p50_ms=0.1, p99_ms=0.1, max_ms=0.1),) * 64
    large = SubtaskReport(
        vertex=2**40,
        subtask=0,
        **dict.fromkeys(NUMBERS, 2**62),
        latencies=latencies,
        channels=channels,
        intervals=states,
        hot_keys=keys,
        counters=counters,
        operators=operators,
    )
    with Environment(memory_bytes=2**20) as environment:
        reports = reports_of(environment, [replace_subtask(large, n) for n in range(30)], at_ms=1000)
        (empty,) = reports_of(environment, [], at_ms=1000)
        assert empty.subtasks == []
    assert [one.subtask for report in reports for one in report.subtasks] == list(range(30))
    assert 1 < len(reports) <= 30
    assert {report.at_ms for report in reports} == {1000}
    assert len({(report.cpu_ns, report.process) for report in reports}) == 1
    assert max(len(msgspec.msgpack.encode(report)) for report in reports) <= MAX_MESSAGE_BYTES


def replace_subtask(one, subtask):
    return replace(one, subtask=subtask)


@pytest.mark.spec("B2", "T3")
def test_connections_are_reported_by_peer():
    path = PathStatistics(round_trip_us=80, unsent_bytes=7)
    old = connection(2, ConnectionState.CLOSED, written_bytes=100, blocked_ns=9)
    new = replace(connection(2, written_bytes=20, blocked_ns=3, path=path), waiting_bytes=4)
    stranger = connection(-1, ConnectionState.PROVING, written_bytes=5)
    assert connection_reports([stranger, old, connection(0, written_bytes=1), new]) == [
        ConnectionReport(peer=0, bytes_out=1, waiting_bytes=0, blocked_ns=0),
        ConnectionReport(peer=2, bytes_out=120, waiting_bytes=4, blocked_ns=9, round_trip_ms=0.08, unsent_bytes=7),
    ]


@pytest.mark.spec("B2", "N5")
def test_connections_of_several_lanes_are_reported_as_one():
    figures = [(100, 9, 80, 7), (20, 3, -1, -1), (30, 12, 90, 5)]
    lanes = [
        connection(2, written_bytes=out, blocked_ns=blocked, path=PathStatistics(trip, unsent), lane=lane)
        for lane, (out, blocked, trip, unsent) in enumerate(figures)
    ]
    assert connection_reports(lanes) == [
        ConnectionReport(peer=2, bytes_out=150, waiting_bytes=0, blocked_ns=12, round_trip_ms=0.09, unsent_bytes=12)
    ]


def test_one_thread_reads_the_meters_at_a_time():
    """The control thread and the last task to end may both report: what one has taken, the other has not."""
    env = small_env(1, metrics__interval="1 ms")
    env.from_source(Endless(pause_s=0.001)).rebalance().for_each(lambda _: None)
    with Site(env) as site:
        site.worker.deploy()
        taken = [[], []]

        def look(mine):
            for _ in range(50):
                mine += site.worker.reports()

        threads = [threading.Thread(target=look, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        told = sorted(
            (one.intervals_end_ms, len(one.intervals))
            for some in taken
            for report in some
            for one in report.subtasks[:1]
        )
        told = [(end, count) for end, count in told if count]
        for (end, _), (later, count) in pairwise(told):
            assert later - count == end, "no moment twice, and none missing"


@pytest.mark.spec("K1", "B2")
def test_a_report_has_the_counts_of_each_operator_with_bounded_names():
    env = small_env(1)

    def tagged(number, ctx):
        yield number
        yield hg.OutputTag(f"{'x' * 300} {number % 150}" if number % 2 else f"tag {number % 150}"), number

    env.from_collection(range(300)).set_parallelism(1).process(tagged).for_each(lambda _: None)
    with Site(env) as site:
        site.worker.deploy()
        site.wait_done()
        report = whole(site).subtasks[0]
    assert [(one.records_in, one.records_out) for one in report.operators] == [(300, 300), (300, 300), (300, 0)]
    sides = report.operators[1].side_outputs
    assert 1 < len(sides) <= 100
    assert max(map(len, sides)) == 200
    assert sides["tag 2"] == 2


@pytest.mark.spec("B2")
def test_a_remote_channel_is_reported_with_its_own_and_its_floating_buffers_and_its_credit():
    with Remote(exclusive=2, floating=4) as remote:
        remote.locked(remote.channel.receive_backlog_locked, 3)  # claims three floating buffers
        found = ChannelMeter(7, 1, SimpleNamespace(polled=remote.channel), remote.channel).report(bytes_in=500)
        assert (found.exchange, found.producer, found.local, found.bytes_in) == (7, 1, False, 500)
        assert (found.backlog, found.queued, found.exclusive, found.floating, found.credit) == (3, 0, 2, 3, 2)


def test_no_report_overtakes_the_last_one():
    """The control thread may be between making a report and sending it when the last task ends."""
    env = small_env(1)
    held = threading.Event()
    env.from_collection([1]).map(lambda n: held.wait(30)).for_each(lambda _: None)
    with Site(env) as site:
        tell, first = site.tell, []

        def send(message):
            if isinstance(message, WorkerReport) and not first:
                first.append(message)
                held.set()  # all tasks end; without the lock, their last report is sent now
                with site._changed:
                    site._changed.wait_for(lambda: Done() in site.told, 0.5)
            tell(message)

        site.worker._send = send
        site.worker.deploy()
        site.wait(lambda: TaskState.RUNNING in site.states(0), "the source")
        site.worker.report()
        site.wait_done()
        reports = [one for one in site.told if isinstance(one, WorkerReport)]
        assert reports[0] is first[0]
        assert len(reports) > 1
        assert site.told.index(Done()) > site.told.index(reports[-1])
