"""The meters suite: every case runs and yields its row, tiny and in threads; speed is not asserted."""

import threading
import time
from contextlib import nullcontext
from functools import partial

import pytest
from tests.support.pipelines import END_S, Endless, Gathered, running, wait_progress

import headgate as hg
from headgate.bench import meters as suite_module
from headgate.bench.harness import Bench, BenchReport, Suite, run_suite
from headgate.bench.meters import OFF, meters, watching

local = partial(hg.environment, local=True, parallelism=2)

CASES = {
    f"{what}, {run}": 0.98 if run == "meters on" else None
    for what in ("W4 shuffle, keyed", "W1 word count")
    for run in ("meters off", "meters on", "meters on, watched")
}


def run_tiny(*only: str, quick: bool = True, repeats: int = 1) -> BenchReport:
    cases = partial(meters, seconds=0.05, host=nullcontext(local))
    return run_suite(Suite("meters", "Tiny.", cases), Bench(quick=quick, repeats=repeats, only=only))


def test_every_case_runs_and_has_its_row_and_goal() -> None:
    report = run_tiny()
    assert {row.case: row.goal for row in report.rows} == CASES
    assert all(row.value > 0 for row in report.rows)
    assert [row.against for row in report.rows] == [None, "meters off", "meters off"] * 2


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Hand-made figures instead of runs; what each was: with meters, watched."""
    made: list[tuple[bool, bool]] = []
    figures = {
        (False, False): iter([100.0, 10.0, 50.0]),
        (True, False): iter([90.0, 9.9, 60.0]),
        (True, True): iter([80.0, 8.0, 40.0]),
    }

    def figure(make, name, seconds, during) -> float:
        made.append((make.keywords.get("settings") != OFF, during is watching))
        return next(figures[made[-1]])

    monkeypatch.setattr(suite_module, "throughput", figure)
    return made


def test_the_ratio_is_the_median_of_the_ratios_of_each_round(runs: list[tuple[bool, bool]]) -> None:
    rows = {row.case: row for row in run_tiny("W1", repeats=1, quick=False).rows}
    on, watched = rows["W1 word count, meters on"], rows["W1 word count, meters on, watched"]
    assert (on.value, on.ratio, on.ok) == (60.0, 0.99, True)
    assert (watched.value, watched.ratio, watched.ok) == (40.0, 0.8, None)
    turn = [(False, False), (True, False), (True, True)]
    assert runs == [*turn, *turn[::-1], *turn], "three turns for one repeat, in changing order"


def test_off_reports_only_counters() -> None:
    env = local(settings=OFF)
    assert env.settings.metrics.interval.ns == env.settings.metrics.latency_interval.ns == 0
    env.from_source(Endless(batch=100, pause_s=0.001)).key_by(lambda n: "london").sink_to(Gathered())
    with running(env) as job:
        wait_progress(job, lambda progress: progress.vertices[1].records_in > 1000)
        for vertex in job.last_progress.vertices:
            assert (vertex.latencies, vertex.hot_keys) == ((), ())
        assert all(moment <= 0 for line in job.timeline().tasks for moment in line.busy), "no past is kept"


def test_the_watching_thread_gets_answers_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "_LOOK_S", 0.01)
    env = local()
    env.from_source(Endless(batch=100, pause_s=0.001)).rebalance().sink_to(Gathered())
    with running(env) as job, watching(job) as sizes:
        until_s = time.monotonic() + END_S
        while len(sizes) < 3 and time.monotonic() < until_s:
            time.sleep(0.01)
        assert len(sizes) >= 3
        assert min(sizes) > 1000
    assert "headgate-bench-look" not in {thread.name for thread in threading.enumerate()}
