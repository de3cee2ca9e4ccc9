"""The pipeline suite: every case runs and yields its row, tiny and in threads; speed is not asserted."""

import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

import headgate as hg
from headgate.bench import bytewax_runs, pipeline_runs, workloads
from headgate.bench import pipeline as suite_module
from headgate.bench.bytewax_runs import PeerFailed, bytewax_delays_ms, bytewax_per_second, find_bytewax
from headgate.bench.harness import Bench, BenchReport, Suite, run_suite
from headgate.bench.pipeline import PipelineAmounts, pipeline
from headgate.bench.pipeline_flows import FIRST, FLOWS, LAST, MADE, SEEN, CountingSink, CountingSource, Tally, latency
from headgate.bench.pipeline_runs import Held, bounded, delays_ms, held_of, start_s, throughput
from headgate.errors import HeadgateError, InvariantViolated

TINY = PipelineAmounts(throughput_s=0.05, latency_s=0.1, skip_s=0.05, bounded_s=1.6)
local = partial(hg.environment, local=True, parallelism=2)

OURS = {
    "W1 word count": None,
    "W1 word count, Arrow": None,
    "W2 windowed sum": None,
    "W2 windowed sum, Arrow": None,
    "W3 latency at 10,000/s, p50": None,
    "W3 latency at 10,000/s, p99": ("<=", 5.0),
    "W3 latency at 10,000/s, Arrow, p50": None,
    "W3 latency at 10,000/s, Arrow, p99": None,
    "W4 shuffle": (">=", 1_050_000),
    "W4 shuffle, keyed": (">=", 1_050_000),
    "W4 shuffle, Arrow": (">=", 4.0),
    "W4 shuffle, Arrow, keyed": (">=", 4.0),
    "start to first record, warm session": ("<=", 1.5),
    "bounded, sink at 1 % for 1.6 s, source back-pressured": None,
    "bounded, sink at 1 % for 1.6 s, largest worker at 25 %": None,
    "bounded, sink at 1 % for 1.6 s, growth from then on": ("<=", 16.0),
}
PEERS = {
    "W1 word count, Bytewax": None,
    "W1 word count, beside Bytewax": (">=", 3.0),
    "W2 windowed sum, Bytewax": None,
    "W2 windowed sum, beside Bytewax": (">=", 5.0),
    "W3 latency at 10,000/s, Bytewax, p50": None,
    "W3 latency at 10,000/s, Bytewax, p99": None,
    "W4 shuffle, Bytewax": None,
    "W4 shuffle, Bytewax, keyed": None,
    "W4 shuffle, beside Bytewax": None,
    "W4 shuffle, keyed, beside Bytewax": None,
}


def run_tiny(*only: str, bytewax: Path | None = None, quick: bool = False, repeats: int = 1) -> BenchReport:
    cases = partial(pipeline, amounts=TINY, host=nullcontext(local), bytewax=bytewax)
    return run_suite(Suite("pipeline", "Tiny.", cases), Bench(quick=quick, repeats=repeats, only=only))


def goals(report: BenchReport) -> dict[str, tuple[str, float] | None]:
    return {row.case: None if row.goal is None else ("<=" if row.at_most else ">=", row.goal) for row in report.rows}


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory without peers."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-made figures instead of runs."""
    rates = {"W1": 600.0, "W1 Arrow": 1200.0, "W2": 80.0, "W2 Arrow": 160.0}
    rates |= {"W4": 2e6, "W4 keyed": 1e6, "W4 Arrow": 6e6, "W4 Arrow keyed": 4e6}
    peers = {"word-count": 150.0, "window-sum": 20.0, "shuffle": 5e5, "shuffle-keyed": 2e5}
    monkeypatch.setattr(suite_module, "throughput", lambda make, name, seconds: rates[name])
    monkeypatch.setattr(suite_module, "bytewax_per_second", lambda python, case, seconds: peers[case])
    monkeypatch.setattr(suite_module, "delays_ms", lambda *args: [float(n) for n in range(1, 101)])
    monkeypatch.setattr(suite_module, "bytewax_delays_ms", lambda *args: [0.5])
    monkeypatch.setattr(suite_module, "start_s", lambda make: 0.7)
    monkeypatch.setattr(suite_module, "bounded", lambda make, seconds: Held(100.0, 17.0, 0.99))


@pytest.mark.usefixtures("nowhere")
def test_every_case_of_ours_runs_and_has_its_row_and_goal() -> None:
    report = run_tiny()
    assert goals(report) == OURS
    assert all(row.value > 0 for row in report.rows if "growth" not in row.case)
    assert report.notes == (bytewax_runs.HOW_TO_GET,)
    assert report.to_json()["notes"] == [bytewax_runs.HOW_TO_GET]


@pytest.mark.usefixtures("figures")
def test_ratios_and_goals_beside_a_peer() -> None:
    report = run_tiny(bytewax=Path("python"))
    assert goals(report) == OURS | PEERS
    rows = {row.case: row for row in report.rows}
    ratios = {case: row.ratio for case, row in rows.items() if row.ratio is not None}
    assert ratios == {
        "W1 word count, Arrow": 2.0,
        "W1 word count, beside Bytewax": 4.0,
        "W2 windowed sum, Arrow": 2.0,
        "W2 windowed sum, beside Bytewax": 4.0,
        "W4 shuffle, Arrow": 3.0,
        "W4 shuffle, Arrow, keyed": 4.0,
        "W4 shuffle, beside Bytewax": 4.0,
        "W4 shuffle, keyed, beside Bytewax": 5.0,
    }
    assert set(report.missed) == {
        "W2 windowed sum, beside Bytewax",
        "W3 latency at 10,000/s, p99",
        "W4 shuffle, keyed",
        "W4 shuffle, Arrow",
        "bounded, sink at 1 % for 1.6 s, growth from then on",
    }
    assert rows["W3 latency at 10,000/s, p50"].value == 50.0
    assert rows["W3 latency at 10,000/s, p99"].value == 99.0
    assert "notes" not in report.to_json()


@pytest.mark.usefixtures("figures", "nowhere")
def test_quick_runs_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(suite_module, "throughput", lambda make, name, *rest: runs.append(name) or 1.0)
    run_tiny("W1 word count", repeats=3)
    assert sorted(runs) == ["W1"] * 3 + ["W1 Arrow"] * 3
    runs.clear()
    run_tiny("W1 word count", repeats=3, quick=True)
    assert runs == ["W1", "W1 Arrow"]


@pytest.mark.usefixtures("figures", "nowhere")
def test_a_row_of_the_one_long_run_can_be_chosen() -> None:
    assert [row.case for row in run_tiny("growth from then on").rows] == [list(OURS)[-1]]


@pytest.mark.parametrize("name", FLOWS)
def test_every_pipeline_emits_all_that_it_reads(name: str) -> None:
    assert throughput(local, name, 0.05) > 0


def test_latency_counts_all_records_but_the_first() -> None:
    assert len(delays_ms(local, latency, 0.2, 0.1)) == 10_000 * 0.2


def test_start_is_from_before_the_job() -> None:
    assert 0 < start_s(local) < 60


def test_the_rate_is_from_the_first_record_to_the_last() -> None:
    counters = [{MADE: 30, FIRST: 2_000}, {MADE: 10, FIRST: 1_000}, {SEEN: 150, LAST: 5_000}, {SEEN: 50, LAST: 9_000}]
    assert Tally.of(counters, each=5) == Tally(made=200, seen=200, first_ns=1_000, last_ns=9_000)
    assert Tally.of(counters, each=5).per_second == 200 / 8e-6


@pytest.mark.parametrize("counters", [[{MADE: 2}, {SEEN: 1, LAST: 1}], [{MADE: 1}, {SEEN: 2}], [{}]])
def test_lost_records_are_no_figure(counters: list[dict[str, int]]) -> None:
    with pytest.raises(InvariantViolated, match=r"records were made and .* came to the sinks"):
        Tally.of(counters)


def test_growth_is_that_of_the_worker_that_grew_most() -> None:
    mib = 2**20
    samples = [
        (0.0, [900 * mib, mib]),
        (2.0, [100 * mib, 50 * mib]),
        (5.0, [101 * mib, 57 * mib]),
        (8.0, [100 * mib] * 2),
    ]
    assert held_of(samples, 2.0, 0.5) == Held(at_first_mib=100.0, growth_mib=50.0, back_pressured=0.5)


def test_the_error_of_a_bounded_run_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken():
        raise OSError("out of luck")

    monkeypatch.setattr(pipeline_runs, "_endless", broken)
    with pytest.raises(HeadgateError, match="out of luck"):
        bounded(local, 60)


def test_sources_and_sinks_leave_their_counts() -> None:
    env = local()
    env.from_source(CountingSource(lambda: iter(["ab", "", "c"]), str)).rebalance().sink_to(CountingSink())
    job = env.execute()
    source, sink = job.last_progress.vertices
    assert (source.counters[MADE], sink.counters[SEEN]) == (6, 6)


def test_workloads() -> None:
    batches = workloads.seconds_of(1_000, 60)
    times = [at_ms for _ in range(120) for _, at_ms, _ in next(batches)]
    assert times == sorted(times)
    assert [times.count(at_ms) for at_ms in (0, 999, 1_500)] == [workloads.SECOND_RECORDS // 1000] * 3
    assert len(list(workloads.repeat([1, 2, 3], 2, 0))) == 1


# Bytewax, with a script of the tests in its place.


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Replace the script that runs on Bytewax."""

    def replace(text: str) -> Path:
        file = tmp_path / "flows.py"
        file.write_text(text)
        monkeypatch.setattr(bytewax_runs, "_SCRIPT", file)
        return Path(sys.executable)

    return replace


@pytest.mark.parametrize(("together", "better"), [(20, 15.0), (40, 20.0)])
def test_the_better_layout_of_a_peer_counts(script, together: int, better: float) -> None:
    python = script(
        "import json, sys\n"
        "case, seconds, workers, number, addresses = sys.argv[1:]\n"
        "alone = workers == '2'\n"
        "assert case == 'word-count' and len(set(addresses.split(';'))) == (1 if alone else 2)\n"
        "print('worker: retrying', flush=True)\n"
        f"made, seen = ({together // 10}, {together}) if alone else (1 + int(number), 15)\n"
        "print(json.dumps(dict(made=made, seen=seen, first_ns=10, last_ns=10 + round(float(seconds) * 1e9))))\n"
    )
    assert bytewax_per_second(python, "word-count", 2.0) == better


def test_a_peers_first_records_do_not_count(script) -> None:
    found = {
        "made": 3,
        "seen": 3,
        "first_ns": 1,
        "last_ns": 2,
        "delays_ns": [[0, 9_000_000], [1, 2_000_000], [2, 500_000]],
    }
    python = script(f"print({json.dumps(json.dumps(found))})")
    assert bytewax_delays_ms(python, 1.0, 1, 0.5) == [2.0, 0.5, 2.0, 0.5], "of two processes; threads are not faster"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys; print('out of luck'); sys.exit(3 if sys.argv[4] == '1' else 0)", "out of luck"),
        (
            "import sys, time\nif sys.argv[4] == '1': sys.exit('out of luck')\ntime.sleep(600)",
            "ended with 1.*out of luck",
        ),
        ("print('nothing of note')", "printed no result; it printed: nothing of note"),
    ],
)
def test_the_error_of_a_peer_has_its_output(script, text: str, message: str) -> None:
    with pytest.raises(PeerFailed, match=f"(?s)flows.py shuffle .*{message}"):
        bytewax_per_second(script(text), "shuffle", 0.1)


def test_a_peer_that_does_not_end_is_ended(script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytewax_runs, "_LIMIT_S", 0.2)
    with pytest.raises(PeerFailed, match="did not end"):
        bytewax_per_second(script("import time; time.sleep(600)"), "shuffle", 0.1)


def test_a_peer_is_found_below_the_directory(tmp_path: Path) -> None:
    assert find_bytewax(tmp_path) is None
    python = tmp_path / ".bench" / "bytewax" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_bytewax(tmp_path) == python


@pytest.mark.skipif(find_bytewax(Path(__file__).parents[2]) is None, reason="make bench-peers installs Bytewax")
@pytest.mark.parametrize("case", ["word-count", "window-sum", "shuffle", "shuffle-keyed"])
def test_bytewax_emits_all_that_it_reads(case: str) -> None:
    python = find_bytewax(Path(__file__).parents[2])
    assert python is not None
    assert bytewax_per_second(python, case, 0.05) > 0
