"""The wire suite: every case runs and yields its row, with tiny amounts; speed is not asserted."""

import time
from array import array
from functools import partial
from pathlib import Path

import pytest
from tests.support.bench_children import echo_end

from headgate.bench import ceiling as ceiling_module
from headgate.bench import wire as suite
from headgate.bench.ceiling import ceiling_of
from headgate.bench.charts import draw_panels
from headgate.bench.harness import Bench, BenchReport, Suite, run_suite
from headgate.bench.processes import ProcessPair
from headgate.bench.slow_consumers import NeighbourOutcome, NeighbourPhases, ResponseOutcome, Stamps
from headgate.bench.wire import WireAmounts, wire
from headgate.bench.workers import run_workers
from headgate.config import FlowControl, MemorySettings, NetworkSettings, Settings
from headgate.errors import ConfigError, InvariantViolated
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Identity
from headgate.net.socket_stream import SLAB_BYTES
from headgate.worker import Environment

TINY = WireAmounts(total=2**20, latency_s=0.05, neighbours=NeighbourPhases(0.1, 0.5), response_s=0.12)

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


def replace_baselines(patch: pytest.MonkeyPatch) -> None:
    """Baselines have tests of their own, and take long to start."""
    factors = {"raw sockets": 1e4, "Flight": 1e4, "gRPC": 2e4, "ZeroMQ": 3e4}
    patch.setattr(suite, "baseline_throughput", lambda library, total, size: factors[library] * size)
    patch.setattr(suite, "check_installed", lambda: None)
    patch.setattr(suite, "message_delays_ms", lambda *args, **kwargs: [0.1, 0.2])


Calls = list[tuple[str, int, int]]


def run_tiny(*only: str) -> tuple[BenchReport, Calls]:
    calls: Calls = []
    bench = Bench(repeats=1, only=only, progress=lambda *call: calls.append(call))
    return run_suite(Suite("wire", "Tiny.", partial(wire, amounts=TINY), charts=True), bench), calls


@pytest.fixture(scope="module")
def ran() -> tuple[BenchReport, Calls]:
    """The whole suite, once for all tests of its report."""
    with pytest.MonkeyPatch.context() as patch:
        replace_baselines(patch)
        return run_tiny()


@pytest.mark.spec("B4")
def test_every_case_has_its_row_and_its_goal(ran: tuple[BenchReport, Calls]) -> None:
    found = {row.case: row for row in ran[0].rows}
    assert set(found) == set(GOALS)
    for case, row in found.items():
        assert GOALS[case] == (None if row.goal is None else ("<=" if row.at_most else ">=", row.goal)), case
        assert row.goal is None or row.ratio is not None or "latency" not in case
        assert row.value > 0 or "to the" in case, case


def test_progress_has_an_end(ran: tuple[BenchReport, Calls]) -> None:
    calls = ran[1]
    assert [done for _, done, _ in calls] == list(range(len(calls)))
    assert {total for _, _, total in calls} == {len(calls)}
    assert calls[0][0] == "throughput, 1 channel (1/3)"


def test_the_libraries_are_run_with_the_named_sizes(ran: tuple[BenchReport, Calls]) -> None:
    """By the figures of `replace_baselines`: 1, 2 and 3 times the size of their messages."""
    found = {row.case: row for row in ran[0].rows}
    assert found["throughput, Flight 64 KiB"].value == pytest.approx(1 * 65_536e4 / 1e9)
    for which, best in (("our own size", 3 * 32_768e4), ("their best size (no goal)", 3 * 2**20 * 1e4)):
        row = found[f"throughput, 10 channels, libraries at {which}"]
        assert row.ratio == pytest.approx(row.value / (best / 1e9))
        assert row.against is not None
        assert row.against.startswith("best of Flight ")


def test_only_the_chosen_cases_are_run() -> None:
    report, calls = run_tiny("channels, checksum", "CREDIT, TO THE")
    assert [row.case for row in report.rows] == [
        "throughput, 10 channels, checksum",
        "response, credit, to the drop",
        "response, credit, to the return",
    ]
    assert calls == [
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


def test_a_missing_package_leaves_its_cases_out_or_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "find_spec", lambda name: None)
    *_, libraries, variants = suite._throughput(ProcessPair(), 1)
    assert [case.run for case in variants.cases] == ["TLS", *(f"transport {o}" for o in ("shared", "asyncio"))]

    def missing() -> None:
        raise ConfigError("grpcio is not installed")

    monkeypatch.setattr(suite, "check_installed", missing)
    with pytest.raises(ConfigError, match="grpcio is not installed"):
        libraries.runs["Flight"]()


@pytest.mark.parametrize(
    ("run", "lost", "message"),
    [
        (lambda pair: suite._carry(pair, 2**20), (0, (17, 1_000)), "17 of 1048576 bytes arrived"),
        (lambda pair: suite._delays(pair, 1_000, 0.05, "auto"), (None, [0.1] * 17), "17 of 50 records arrived"),
    ],
)
def test_missing_records_are_an_error(monkeypatch: pytest.MonkeyPatch, run, lost, message: str) -> None:
    monkeypatch.setattr(suite, "run_workers", lambda *args, **kwargs: lost)
    with pytest.raises(InvariantViolated, match=message):
        run(ProcessPair())


def test_each_process_is_a_worker_of_its_own_with_one_secret() -> None:
    settings = Settings(memory=MemorySettings(segment_size=4096))
    with ProcessPair() as pair:
        producer, consumer = run_workers(pair, echo_end, echo_end, settings=settings, channels=7, tls=True)
    assert (producer.identity.worker, consumer.identity.worker) == (0, 1)
    assert producer.identity.secret == consumer.identity.secret
    assert (producer.settings, producer.channels) == (settings, 7)
    assert producer.identity.credentials.worker == 0
    assert producer.identity.credentials.authority == consumer.identity.credentials.authority


# The ceiling.


@pytest.fixture
def kernel_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("tcp_wmem", 4000), ("tcp_rmem", 6000)):
        (tmp_path / name).write_text(f"1 2 {size}\n")
    monkeypatch.setattr(ceiling_module, "_KERNEL_TABLES", tmp_path)


def test_the_ceiling_of_a_hand_made_exchange() -> None:
    network = NetworkSettings(buffers_per_channel=3, floating_buffers_per_gate=5, max_buffers_per_channel=4)
    credit = Settings(memory=MemorySettings(segment_size=1000), network=network)
    # Producer: 2 x 3 + 5 = 11 by the pool, but 2 x 4 = 8 by the queues. Consumer: 2 x 3 exclusive, 5 floating.
    assert ceiling_of(credit, channels=2).bytes == (8 + 6 + 5) * 1000
    assert ceiling_of(credit, channels=2, overdraft=2, batches=7).bytes == (8 + 2 + 6 + 5) * 1000 + 7


@pytest.mark.usefixtures("kernel_tables")
def test_without_credit_the_kernels_buffers_are_added() -> None:
    network = NetworkSettings(
        buffers_per_channel=3, floating_buffers_per_gate=5, max_buffers_per_channel=40, flow_control=FlowControl.TCP
    )
    tcp = Settings(memory=MemorySettings(segment_size=1000), network=network)
    # Producer: 11 by the pool. Consumer: a pool of 2 x 3 + 5. In between the kernel and one read.
    assert ceiling_of(tcp, channels=2).bytes == (11 + 11) * 1000 + 10_000 + SLAB_BYTES
    assert "in the socket" in str(ceiling_of(tcp))
    asked = NetworkSettings(flow_control=FlowControl.TCP, send_buffer=1000, receive_buffer=3000)
    assert ceiling_of(Settings(network=asked)).socket == 8000 + SLAB_BYTES, "the kernel keeps twice the requested size"


def test_a_blocked_consumer_lets_in_exactly_the_ceiling() -> None:
    settings, identity = Settings(), partial(Identity, JobId("ceiling"), AttemptId(1), secret=bytes(32))
    ceiling = ceiling_of(settings).bytes
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
                until_s = time.monotonic() + 0.3  # not a byte more
    assert published == ceiling


# Stamps.


def every(pause_s: float, start_s: float, end_s: float) -> list[int]:
    return list(range(round(start_s * 1e9), round(end_s * 1e9), round(pause_s * 1e9)))


def stamps(*parts: list[int]) -> Stamps:
    return Stamps(array("q", [stamp for part in parts for stamp in part]), start_ns=0)


def test_rates_over_time() -> None:
    one = stamps(every(0.001, 0, 0.5), every(0.01, 0.5, 1.0))
    assert (one.rate(0.1, 0.4), one.rate(0.6, 1.0)) == (pytest.approx(1000), pytest.approx(100))
    assert one.rates(0, 1.0, 0.25) == ([0.125, 0.375, 0.625, 0.875], [1000, 1000, 100, 100])


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
    assert series.follows_after_s(target, start_s=1.0, end_s=2.0) == pytest.approx(after_s)


def test_in_flight_is_produced_minus_consumed() -> None:
    produced, consumed = stamps([0, 10, 20, 30, 100]), stamps([25, 40, 50, 60, 200])
    assert produced.in_flight(consumed, [0.0, 15e-9, 35e-9, 70e-9, 150e-9]).tolist() == [1, 2, 3, 0, 1]
    assert ResponseOutcome(1.0, 2**20, 5 * 2**20, produced, consumed).most_mib() == 3
    assert ResponseOutcome(1.0, 2**20, 5 * 2**20, stamps([]), stamps([])).most_mib() == 0


def test_a_phase_counts_without_its_beginning() -> None:
    # Alone at 1,000/s, then at 100/s after a stop, then at 3,000/s; the slow one at 50/s.
    fast = stamps(every(0.001, 0, 1), every(0.01, 1.25, 2), every(1 / 3000, 2, 3))
    barriers = [(0.5, 9.0), (1.2, 7.0), (1.3, 8.0), (1.8, 1.0)], [(2.5, 4.0)]
    found = NeighbourOutcome(NeighbourPhases(1.0, 1.0), 10**7, fast, stamps(every(0.02, 1, 2)), barriers)
    assert found.alone() == pytest.approx(10 * 2000, rel=0.01)
    assert found.beside() == pytest.approx(10 * 100, rel=0.02)
    assert found.neighbour() == pytest.approx(10 * 50, rel=0.05)
    assert (found.barrier_ms(0, 50), found.barrier_ms(0, 100)) == (7.0, 8.0)
    assert found.barrier_ms(1, 50) == 4.0, "its task was blocked all the time: the first barrier after it"


# The chart.


@pytest.mark.spec("B4")
@pytest.mark.parametrize(("name", "begins"), [("wire.svg", b"<?xml"), ("wire.png", b"\x89PNG")])
def test_the_chart_is_drawn(ran: tuple[BenchReport, Calls], tmp_path: Path, name: str, begins: bytes) -> None:
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
    assert [line.name for line in panels[0].lines] == ["credit", "tcp"]
    assert [(span.begin_s, span.end_s, span.shaded) for span in panels[0].spans] == [(0.1, 0.6, True)]
    draw_panels("--plot", panels, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
