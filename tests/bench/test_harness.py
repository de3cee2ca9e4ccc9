"""The harness of the bench suites: turns, medians, goals, and the table of suites."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import pytest

from headgate.bench.charts import ChartPanel, Line
from headgate.bench.harness import (
    SUITES,
    Bench,
    BenchReport,
    Case,
    Contest,
    Row,
    Suite,
    alternate,
    find_suite,
    machine,
    percentile,
    run_suite,
)
from headgate.errors import ConfigError


def test_each_run_is_called_once_before_any_is_called_again():
    order: list[str] = []
    started: list[tuple[str, int]] = []
    runs = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    found = alternate(runs, 3, lambda name, turn: started.append((name, turn)))
    assert "".join(order) == "abccbaabc"
    assert found == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}
    assert started == [(name, turn) for turn, part in enumerate(("abc", "cba", "abc")) for name in part]


@pytest.mark.parametrize(("q", "expected"), [(0, 1), (1, 1), (1.5, 2), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_percentile_of_a_hundred(q: float, expected: float):
    assert percentile([float(value) for value in range(100, 0, -1)], q) == expected


def test_percentile_rejects_no_values_and_other_shares():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    for q in (-1, 101, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 100"):
            percentile([1.0], q)


@pytest.mark.parametrize(
    ("ratio", "goal", "at_most", "ok"),
    [
        (2.0, 2.0, False, True),
        (1.9, 2.0, False, False),
        (1.5, 1.5, True, True),
        (1.6, 1.5, True, False),
        (1.6, None, True, None),
    ],
)
def test_a_goal_applies_to_the_ratio_if_there_is_one(ratio: float, goal: float | None, at_most: bool, ok: bool | None):
    # The value itself would give the opposite answer.
    value = 1000.0 if at_most else 0.0
    assert Row(case="c", value=value, unit="s", against="x", ratio=ratio, goal=goal, at_most=at_most).ok is ok


def test_a_goal_without_ratio_applies_to_the_value():
    assert Row(case="c", value=3.0, unit="MiB", goal=4.0, at_most=True).ok is True
    assert Row(case="c", value=3.0, unit="MiB", goal=4.0).ok is False


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_figures_are_finite_so_that_json_is_valid(figure: float):
    with pytest.raises(ValueError, match="not a figure"):
        Row(case="c", value=figure, unit="s")


def test_json_has_exactly_the_documented_fields():
    row = Row(case="c", value=1.0, unit="s", against="x", ratio=0.5, goal=2.0, at_most=True)
    report = json.loads(json.dumps(BenchReport("tiny", machine(), (row,)).to_json(), allow_nan=False))
    assert set(report) == {"suite", "machine", "rows"}
    assert report["rows"] == [
        {"case": "c", "value": 1.0, "unit": "s", "against": "x", "ratio": 0.5, "goal": 2.0, "ok": True}
    ]
    assert set(report["machine"]) == {
        "cores",
        "cpu",
        "memory_bytes",
        "platform",
        "python",
        "switch_interval_s",
        "versions",
    }
    assert set(report["machine"]["versions"]) == {"headgate", "numpy", "pyarrow", "msgspec"}
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["memory_bytes"] > 2**20


def test_a_case_takes_medians_and_the_largest_baseline():
    found = {"ours": [(9, 1), (4, 1), (6, 1)], "x": [(0, 1), (0, 3), (0, 2)], "y": [(0, 1), (0, 1), (0, 99)]}
    common = {"unit": "s", "run": "ours", "figure": lambda one: one[0], "goal": 3.0}
    row = Case(case="c", against="best", baseline=("x", "y"), baseline_figure=lambda one: one[1], **common).row(found)
    assert (row.value, row.ratio, row.against, row.ok) == (6, 3.0, "best", True)
    assert Case(case="c", **common).row(found).ratio is None
    assert Case(case="c", against="itself", baseline=("ours",), **common).row(found).ratio == 1.0
    assert Case(case="c", at_most=True, **common).row(found).ok is False
    with pytest.raises(AssertionError, match="names the baseline"):
        Case(case="c", against="nothing", **common)


def test_a_paired_ratio_is_the_median_of_the_ratios_of_each_round():
    case = Case("on", "s", "on", against="off", baseline=("off",), paired=True, goal=0.98)
    row = case.row({"on": [99.0, 48.0, 199.0], "off": [100.0, 50.0, 200.0]})
    assert (row.value, row.ratio, row.ok) == (99.0, 0.99, True)
    with pytest.raises(AssertionError, match="one baseline"):
        Case("on", "s", "on", against="any", baseline=("a", "b"), paired=True)


def test_a_baseline_of_zero_has_no_ratio():
    with pytest.raises(ValueError, match="'c': the baseline measured 0"):
        Case("c", "s", "a", against="b", baseline=("b",)).row({"a": [1.0], "b": [0.0]})


def _race(order: list[str]) -> Contest[float]:
    def panels(found: Mapping[str, Sequence[float]]) -> list[ChartPanel]:
        return [ChartPanel(title="race", y_label="m", lines=[Line(name, [0.0], [y[-1]]) for name, y in found.items()])]

    return Contest(
        name="race",
        runs={name: lambda name=name: order.append(name) or 1.0 for name in ("hare", "tortoise", "snail")},
        cases=[
            Case("race, hare", "m/s", "hare", against="snail", baseline=("snail",)),
            Case("race, tortoise", "m/s", "tortoise"),
        ],
        panels=panels,
    )


def test_only_the_chosen_cases_and_their_baselines_are_run():
    order: list[str] = []
    calls: list[tuple[str, int, int]] = []
    bench = Bench(repeats=2, only=["HARE"], progress=lambda *call: calls.append(call))
    assert [row.case for row in bench.run([_race(order)])] == ["race, hare"]
    assert order == ["hare", "snail", "snail", "hare"]
    assert calls == [
        ("race, hare (1/2)", 0, 4),
        ("race, snail (1/2)", 1, 4),
        ("race, snail (2/2)", 2, 4),
        ("race, hare (2/2)", 3, 4),
    ]
    assert [[one.name for one in panel.lines] for panel in bench.panels] == [["hare", "snail"]]
    order.clear()
    none = Bench(only=["no such case"])
    assert (list(none.run([_race(order)])), order, none.panels) == ([], [], [])


def test_rounds_multiply_the_repeats_and_once_replaces_them():
    order: list[str] = []
    contest = dataclasses.replace(_race(order), rounds=3)
    assert [row.case for row in Bench(repeats=2, only=["tortoise"]).run([contest])] == ["race, tortoise"]
    assert order == ["tortoise"] * 6
    order.clear()
    list(Bench(repeats=5, only=["tortoise"]).run([dataclasses.replace(contest, once=True)]))
    assert order == ["tortoise"]
    with pytest.raises(ConfigError, match="repeats = 0"):
        Bench(repeats=0)


def test_progress_covers_all_groups_and_each_group_has_its_end():
    order: list[str] = []
    calls: list[tuple[str, int, int]] = []
    bench = Bench(repeats=1, progress=lambda *call: calls.append(call))
    groups = [[_race(order)], [_race(order), _race(order)]]
    rows = list(bench.run(*groups, after_group=lambda: order.append("end")))
    assert len(rows) == 6
    assert order == ["hare", "tortoise", "snail", "end", *["hare", "tortoise", "snail"] * 2, "end"]
    assert [(done, total) for _, done, total in calls] == [(number, 9) for number in range(9)]


def test_a_contest_has_all_runs_that_its_cases_need():
    with pytest.raises(AssertionError, match="needs a run that the contest does not have"):
        Contest(name="race", runs={}, cases=[Case("c", "s", "hare")])


def test_a_report_has_rows_in_order_and_the_missed_goals():
    def cases(bench: Bench) -> Iterator[Row]:
        yield Row(case="first", value=bench.pick(full=1.0, quick=2.0), unit="s", goal=1.5)
        yield Row(case="second", value=1.0, unit="s", against="x", ratio=0.25, goal=0.5)

    report = run_suite(Suite("tiny", "Tiny.", cases), Bench(quick=True))
    assert [(row.case, row.value, row.ok) for row in report.rows] == [("first", 2.0, True), ("second", 1.0, False)]
    assert report.missed == ("second",)
    assert Bench().pick(full=1, quick=2) == 1


def test_two_cases_of_one_name_are_a_mistake():
    with pytest.raises(AssertionError, match="same name"):
        run_suite(Suite("tiny", "Tiny.", lambda bench: [Row(case="c", value=1.0, unit="s")] * 2), Bench())


def test_suites_are_found_by_name_and_listing_them_imports_none():
    assert [find_suite(name).name for name in SUITES] == ["batch", "local", "meters", "pipeline", "wire"]
    with pytest.raises(
        ConfigError, match="unknown bench suite 'wires': known are batch, local, meters, pipeline, wire"
    ):
        find_suite("wires")
    code = "import sys, headgate.cli.bench; sys.exit(bool({'pyspark', 'matplotlib', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_suite_runs_the_function_of_its_name():
    assert list(SUITES["local"].cases(Bench(only=["no such case"]))) == []
