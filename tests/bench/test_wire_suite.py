"""The wire suite: every case runs and yields its rows, with tiny amounts; nothing here is about speed."""

import subprocess
import sys
import time
from array import array
from functools import partial
from pathlib import Path

import pytest
from tests.support_children import divide_by_zero_there, echo_place, pass_on

from headgate.bench import _wire_latency, _wire_throughput
from headgate.bench._children import ChildFailed
from headgate.bench._plot import draw_panels
from headgate.bench._series import Stamps, follows_after_s, highest_in_flight, in_flight, rate_between, rates
from headgate.bench._wire_ends import Ends
from headgate.bench._wire_neighbours import Outcome as NeighboursOutcome
from headgate.bench._wire_neighbours import Phases
from headgate.bench._wire_response import ceiling_bytes, kernel_bytes
from headgate.bench.harness import Bench, Report, Row, Suite, find_suite, run_suite
from headgate.bench.wire import Amounts, wire
from headgate.config import FlowControl, MemorySettings, NetworkSettings, Settings
from headgate.errors import ConfigError, InvariantViolated
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Identity
from headgate.net.socket_stream import SLAB_BYTES
from headgate.worker import Environment

TINY = Amounts(total=2**20, latency_s=0.05, neighbours=Phases(0.1, 0.5), response_s=0.12)

GOALS = {
    "throughput, raw sockets, 32 KiB": None,
    "throughput, raw sockets, 1 MiB": None,
    "throughput, 1 channel": None,
    "throughput, 10 channels": (">=", 1.0),
    "throughput, 100 channels": None,
    "throughput, 1,000 channels": (">=", 0.7),
    "throughput, 10 channels, large chunks": (">=", 0.5),
    "throughput, Flight 64 KiB": None,
    "throughput, gRPC 32 KiB": None,
    "throughput, ZeroMQ 32 KiB": None,
    "throughput, 10 channels, libraries at our own size": (">=", 1.5),
    "throughput, Flight 1 MiB": None,
    "throughput, gRPC 1 MiB": None,
    "throughput, ZeroMQ 1 MiB": None,
    "throughput, 10 channels, libraries at their best size (no goal)": None,
    "throughput, 10 channels, TLS": None,
    "throughput, 10 channels, transport shared": None,
    "throughput, 10 channels, transport epoll": None,
    "throughput, 10 channels, transport uvloop": None,
    "throughput, 10 channels, transport asyncio": None,
    "throughput, 10 channels, checksum": None,
    **{
        f"latency, {rate}/s, {what}, {q}": ("<=", 10.0) if (what, q) == ("buffer_timeout auto", "p99") else None
        for rate in ("1,000", "50,000")
        for what in (
            "bare socket",
            "bare socket with as much Python",
            *(f"buffer_timeout {one}" for one in ("auto", "0", "1 ms", "10 ms", "100 ms")),
        )
        for q in ("p50", "p99")
    },
    "slow-neighbour, credit, fast channel": (">=", 0.9),
    "slow-neighbour, credit, fast channel beside the slow one": None,
    "slow-neighbour, tcp, fast channel": None,
    "slow-neighbour, beside threads that only wake, fast channel": None,
    "slow-neighbour, tcp, fast channel beside the slow one": ("<=", 2.0),
    **{
        f"slow-neighbour, {mode}, barrier, {which} channel, {what}": None
        for mode in ("credit", "tcp")
        for which in ("fast", "slow")
        for what in ("p50", "max")
    },
    **{f"response, {mode}, to the {what}": None for mode in ("credit", "tcp") for what in ("drop", "return")},
    **{f"response, {mode}, most in flight": ("<=", 1.0) for mode in ("credit", "tcp")},
}


def quick_peers(patch: pytest.MonkeyPatch) -> None:
    """Baselines have tests of their own, and take long to start."""
    patch.setattr(_wire_throughput, "raw_sockets", lambda total, chunk: 1e9)
    patch.setattr(_wire_throughput, "check_installed", lambda: None)
    for number, library in enumerate(_wire_throughput._LIBRARIES, 1):
        patch.setitem(_wire_throughput._LIBRARIES, library, lambda total, sizes, number=number: number * sizes[0] * 1e4)
    patch.setattr(_wire_latency, "bare_ping", lambda *args, **kwargs: [0.1, 0.2])


class Told:
    """Who hears of a suite's progress."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int | None]] = []

    def __call__(self, *call) -> None:
        self.calls.append(call)


def run_tiny(only: tuple[str, ...] = (), told: Told | None = None) -> Report:
    tiny = Suite("wire", "Tiny.", partial(wire, amounts=TINY), charts=True)
    return run_suite(tiny, Bench(repeats=1, only=only, progress=told))


@pytest.fixture(scope="module")
def ran() -> tuple[Report, Told]:
    """The whole suite, once for all tests that look at its report."""
    told = Told()
    with pytest.MonkeyPatch.context() as patch:
        quick_peers(patch)
        return run_tiny(told=told), told


@pytest.mark.spec("B4")
def test_every_case_has_its_row_and_its_goal(ran: tuple[Report, Told]) -> None:
    found = {row.case: row for row in ran[0].rows}
    assert set(found) == set(GOALS)
    for case, row in found.items():
        assert GOALS[case] == (None if row.goal is None else ("<=" if row.at_most else ">=", row.goal)), case
        assert row.goal is None or row.ratio is not None or "latency" not in case
        assert row.value > 0 or "to the" in case, case


def test_progress_has_an_end(ran: tuple[Report, Told]) -> None:
    calls = ran[1].calls
    assert [done for _, done, _ in calls] == list(range(len(calls)))
    assert {total for _, _, total in calls} == {len(calls)}
    assert calls[0][0] == "throughput, 1 channel (1/3)"


def test_the_libraries_compete_at_the_sizes_that_are_named(ran: tuple[Report, Told]) -> None:
    """By the figures of `quick_peers`: 1, 2 and 3 times the size of their messages."""
    found = {row.case: row for row in ran[0].rows}
    assert found["throughput, Flight 64 KiB"].value == pytest.approx(1 * 65_536e4 / 1e9)
    for which, best in (("our own size", 3 * 32_768e4), ("their best size (no goal)", 3 * 2**20 * 1e4)):
        row = found[f"throughput, 10 channels, libraries at {which}"]
        assert row.ratio == pytest.approx(row.value / (best / 1e9))
        assert row.against is not None
        assert row.against.startswith("best of Flight ")


def test_a_choice_runs_only_what_it_needs() -> None:
    told = Told()
    report = run_tiny(("channels, checksum", "CREDIT, TO THE"), told)
    assert [row.case for row in report.rows] == [
        "throughput, 10 channels, checksum",
        "response, credit, to the drop",
        "response, credit, to the return",
    ]
    assert told.calls == [
        ("throughput, 10 channels (1/3)", 0, 7),
        ("throughput, checksum (1/3)", 1, 7),
        ("throughput, checksum (2/3)", 2, 7),
        ("throughput, 10 channels (2/3)", 3, 7),
        ("throughput, 10 channels (3/3)", 4, 7),
        ("throughput, checksum (3/3)", 5, 7),
        ("response, credit (1/1)", 6, 7),
    ]
    assert [panel.title for panel in report.panels] == [
        "A consumer that drops to 10 % and returns, credit",
        "Written and not yet read, credit",
    ]


def test_what_is_not_installed_is_left_out_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wire_throughput, "find_spec", lambda name: None)
    with Ends() as ends:
        *_, libraries, variants = _wire_throughput.throughput(ends, 1)
    assert [case.run for case in variants.cases] == ["TLS", *(f"transport {o}" for o in ("shared", "epoll", "asyncio"))]

    def missing() -> None:
        raise ConfigError("grpcio is not installed")

    monkeypatch.setattr(_wire_throughput, "check_installed", missing)
    with pytest.raises(ConfigError, match="grpcio is not installed"):
        libraries.runs["Flight"]()


class LossyEnds(Ends):
    """Two ends that say that less came than was sent."""

    def run(self, *args, **kwargs):
        return 0, (17, 1_000)


def test_what_does_not_arrive_is_noticed() -> None:
    with pytest.raises(InvariantViolated, match="17 of 1048576 bytes arrived"):
        _wire_throughput._ours(LossyEnds(), 2**20)
    with pytest.raises(InvariantViolated, match="17 of 50 records arrived"):
        _wire_latency._ours(LossyEnds(), 1_000, 0.05, "auto")


# The two processes.


def test_the_ends_stay_until_they_are_closed_and_pass_messages_on() -> None:
    with Ends() as ends:
        first = ends.run(partial(pass_on, "to be"), partial(pass_on, "or not"), settings=Settings())
        again = ends.run(partial(pass_on, 1), partial(pass_on, 2), settings=Settings())
        assert [said for said, _ in (*first, *again)] == ["or not", "to be", 2, 1]
        assert [pid for _, pid in first] == [pid for _, pid in again]
        ends.close()
        # Two new processes, each a worker of its own.
        settings = Settings(memory=MemorySettings(segment_size=4096))
        places = ends.run(echo_place, echo_place, settings=settings, channels=7, tls=True)
        fresh = ends.run(partial(pass_on, 1), partial(pass_on, 2), settings=Settings())
        assert not {pid for _, pid in first} & {pid for _, pid in fresh}
    producer, consumer = (place.identity for place in places)
    assert (producer.worker, consumer.worker) == (0, 1)
    assert producer.secret == consumer.secret
    assert (places[0].settings, places[0].channels) == (settings, 7)
    assert producer.credentials.worker == 0
    assert producer.credentials.authority == consumer.credentials.authority


def test_a_failure_at_one_end_does_not_wait_for_the_other() -> None:
    started_s = time.monotonic()
    with Ends() as ends, pytest.raises(ChildFailed, match="ZeroDivisionError"):
        ends.run(partial(pass_on, "nobody answers"), divide_by_zero_there, settings=Settings())
    assert time.monotonic() - started_s < 50


# What is in flight.


def test_the_ceiling_of_a_hand_made_exchange() -> None:
    network = NetworkSettings(buffers_per_channel=3, floating_buffers_per_gate=5, max_buffers_per_channel=4)
    credit = Settings(memory=MemorySettings(segment_size=1000), network=network)
    # Producer: 2 x 3 + 5 = 11 by the pool, but 2 x 4 = 8 by the queues. Consumer: 2 x 3 exclusive, 5 floating.
    assert ceiling_bytes(credit, channels=2, kernel_bytes=999_999) == (8 + 6 + 5) * 1000
    tcp = Settings(
        memory=MemorySettings(segment_size=1000),
        network=NetworkSettings(
            buffers_per_channel=3,
            floating_buffers_per_gate=5,
            max_buffers_per_channel=40,
            flow_control=FlowControl.TCP,
        ),
    )
    # Producer: 11 by the pool. Consumer: a pool of 2 x 3 + 5. In between the kernel and one read.
    assert ceiling_bytes(tcp, channels=2, kernel_bytes=5_000) == (11 + 11) * 1000 + 5_000 + SLAB_BYTES


def test_a_consumer_that_stops_lets_in_as_much_as_the_ceiling_says() -> None:
    settings, identity = Settings(), partial(Identity, JobId("ceiling"), AttemptId(1), secret=bytes(32))
    ceiling = ceiling_bytes(settings, channels=1, kernel_bytes=kernel_bytes(settings))
    which = PartitionId(JobId("ceiling"), AttemptId(1), 0, 0, 0)
    size, published, until_s = settings.memory.segment_size, 0, time.monotonic() + 30
    with Environment(memory_bytes=2**22) as producer, Environment(memory_bytes=2**22) as consumer:
        address = producer.join(identity(worker=0))
        consumer.join(identity(worker=1))
        partition, gate = producer.partition(which, subpartitions=1), consumer.gate("still", channels=1)
        gate.connect(0, consumer.remote_source(gate, which, SubpartitionIndex(0), worker=0, address=address))
        buffer = None
        while time.monotonic() < until_s and published <= ceiling:
            buffer = partition.next_buffer(0, buffer, mid_record=False, wait=False)
            if buffer is None:
                time.sleep(0.002)
                continue
            buffer.publish(size)
            published += size
            if published == ceiling:
                until_s = time.monotonic() + 0.3  # and not a byte more
    assert published == ceiling


def test_the_kernel_keeps_twice_what_it_is_asked_for_or_what_it_may_grow_to() -> None:
    asked = Settings(network=NetworkSettings(send_buffer=1_000, receive_buffer=3_000))
    assert kernel_bytes(asked) == 8_000
    assert kernel_bytes(Settings()) >= 65_536


# Stamps.


def every(pause_s: float, start_s: float, end_s: float) -> list[int]:
    return list(range(round(start_s * 1e9), round(end_s * 1e9), round(pause_s * 1e9)))


def stamps(*parts: list[int]) -> Stamps:
    return Stamps(array("q", [stamp for part in parts for stamp in part]), start_ns=0)


def test_rates_over_time() -> None:
    one = stamps(every(0.001, 0, 0.5), every(0.01, 0.5, 1.0))
    assert (rate_between(one, 0.1, 0.4), rate_between(one, 0.6, 1.0)) == (pytest.approx(1000), pytest.approx(100))
    middles, found = rates(one, 1.0, 0.25)
    assert middles == [0.125, 0.375, 0.625, 0.875]
    assert found == [1000, 1000, 100, 100]


@pytest.mark.parametrize(
    ("parts", "target", "after_s"),
    [
        ([(0.001, 0, 1.0), (0.01, 1.0, 2.0)], 100, 0.0),
        ([(0.001, 0, 1.2), (0.01, 1.2, 2.0)], 100, 0.2),
        ([(0.001, 0, 1.2), (0.009, 1.2, 2.0)], 100, 0.2),  # within 25 %
        ([(0.001, 0, 1.2), (0.5, 1.2, 2.0)], 100, 0.2),  # overshot
        ([(0.001, 0, 2.0)], 100, 1.0),  # never
        ([(0.01, 0, 1.3), (0.001, 1.3, 2.0)], 1000, 0.29),  # a window of one slow bin and four fast is near enough
        ([(0.01, 0, 2.0)], 1000, 1.0),
    ],
)
def test_when_a_rate_follows(parts: list[tuple[float, float, float]], target: float, after_s: float) -> None:
    series = stamps(*(every(*part) for part in parts))
    assert follows_after_s(series, target, start_s=1.0, end_s=2.0) == pytest.approx(after_s)


def test_in_flight_is_what_was_produced_and_not_consumed() -> None:
    produced, consumed = stamps([0, 10, 20, 30, 100]), stamps([25, 40, 50, 60, 200])
    assert in_flight(produced, consumed, [0.0, 15e-9, 35e-9, 70e-9, 150e-9]) == [1, 2, 3, 0, 1]
    assert highest_in_flight(produced, consumed) == 3
    assert highest_in_flight(stamps([]), stamps([])) == 0


def test_a_phase_counts_without_its_beginning() -> None:
    # Alone at 1,000/s, then at 100/s after a stop, then at 3,000/s; the other one at 50/s.
    fast = stamps(every(0.001, 0, 1), every(0.01, 1.25, 2), every(1 / 3000, 2, 3))
    barriers = [(0.5, 9.0), (1.2, 7.0), (1.3, 8.0), (1.8, 1.0)], [(2.5, 4.0)]
    found = NeighboursOutcome(Phases(1.0, 1.0), 10, fast, stamps(every(0.02, 1, 2)), barriers)
    assert found.alone() == pytest.approx(10 * 2000, rel=0.01)
    assert found.beside() == pytest.approx(10 * 100, rel=0.02)
    assert found.neighbour() == pytest.approx(10 * 50, rel=0.05)
    assert (found.barrier_ms(0, 50), found.barrier_ms(0, 100)) == (7.0, 8.0)
    assert found.barrier_ms(1, 50) == 4.0, "held back all the time: the first one after it"


# The chart.


@pytest.mark.spec("B4")
@pytest.mark.parametrize(("name", "begins"), [("wire.svg", b"<?xml"), ("wire.png", b"\x89PNG")])
def test_the_chart_is_drawn(ran: tuple[Report, Told], tmp_path: Path, name: str, begins: bytes) -> None:
    panels = ran[0].panels
    assert [panel.title for panel in panels] == [
        "A fast channel beside a slow one on the same connection",
        "Barriers through both channels, by the time they were sent",
        *(
            f"{title}, {mode}"
            for mode in ("credit", "tcp")
            for title in ("A consumer that drops to 10 % and returns", "Written and not yet read")
        ),
    ]
    assert [series.name for series in panels[0].series] == ["credit", "tcp"]
    assert panels[0].shaded == [(0.1, 0.6)]
    draw_panels(panels, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_the_suite_is_found_and_nobody_pays_for_its_chart() -> None:
    assert find_suite("wire").charts
    script = "import sys, headgate.bench.wire, headgate.cli.bench; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_rows_go_into_a_report(ran: tuple[Report, Told]) -> None:
    rows = ran[0].to_json()["rows"]
    assert isinstance(rows, list)
    assert len(rows) == len(GOALS)
    assert all(isinstance(row, Row) for row in ran[0].rows)
