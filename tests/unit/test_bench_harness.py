"""The frame of the bench suites: turns, medians, goals, and how suites are found."""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import headgate.bench as package
from headgate.bench import harness
from headgate.bench._plot import Panel, Series
from headgate.bench.harness import (
    Bench,
    Case,
    Compared,
    Contest,
    Report,
    Row,
    Rows,
    Suite,
    find_suite,
    machine,
    median_of,
    ratio_of_medians,
    run_suite,
    suite,
    suites,
    take_turns,
)
from headgate.errors import ConfigError


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Suite]:
    """A registry of the test's own, with what was imported already: a module registers its suite only once."""
    own = dict(harness._SUITES)
    monkeypatch.setattr(harness, "_SUITES", own)
    return own


def test_the_two_sides_take_turns_and_the_first_changes():
    order: list[str] = []

    def side(name: str, figures: list[float]) -> float:
        order.append(name)
        return figures.pop(0)

    ours, baseline = [100.0, 4.0, 6.0], [1.0, 2.0, 50.0]
    compared = ratio_of_medians(lambda: side("ours", ours), lambda: side("base", baseline))
    assert order == ["ours", "base", "base", "ours", "ours", "base"]
    assert compared == Compared(ours=6.0, baseline=2.0)
    assert compared.ratio == 3.0


def test_median_is_neither_mean_nor_best():
    figures = iter([1.0, 90.0, 2.0, 3.0, 100.0])
    assert median_of(lambda: next(figures), repeats=5) == 3.0


def test_a_baseline_of_zero_has_no_ratio():
    with pytest.raises(ValueError, match="baseline measured 0"):
        _ = Compared(1.0, 0.0).ratio


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
def test_a_goal_is_about_the_ratio_where_there_is_one(ratio: float, goal: float | None, at_most: bool, ok: bool | None):
    # The value itself would give the opposite answer.
    value = 1000.0 if at_most else 0.0
    assert Row(case="c", value=value, unit="s", against="x", ratio=ratio, goal=goal, at_most=at_most).ok is ok


def test_a_goal_without_ratio_is_about_the_value():
    assert Row(case="c", value=3.0, unit="MiB", goal=4.0, at_most=True).ok is True
    assert Row(case="c", value=3.0, unit="MiB", goal=4.0).ok is False


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_figures_are_finite_so_that_json_is_valid(figure: float):
    with pytest.raises(ValueError, match="not a figure"):
        Row(case="c", value=figure, unit="s")


def test_json_has_exactly_the_promised_fields():
    row = Row(case="c", value=1.0, unit="s", against="x", ratio=0.5, goal=2.0, at_most=True)
    report = json.loads(json.dumps(Report("tiny", machine(), (row,)).to_json(), allow_nan=False))
    assert set(report) == {"suite", "machine", "rows"}
    assert report["rows"] == [
        {"case": "c", "value": 1.0, "unit": "s", "against": "x", "ratio": 0.5, "goal": 2.0, "ok": True}
    ]
    assert set(report["machine"]["versions"]) == {"headgate", "numpy", "pyarrow", "msgspec"}
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["memory_bytes"] > 2**20


def test_a_suite_reports_progress_and_rows_in_order():
    told: list[tuple[str, int, int | None]] = []

    def cases(bench: Bench) -> Iterator[Row]:
        bench.expect(cases=2)
        yield bench.measure("first", lambda: bench.pick(full=1.0, quick=2.0), unit="s", goal=1.5)
        yield bench.compare("second", lambda: 1.0, lambda: 4.0, unit="s", against="x", goal=0.5)

    bench = Bench(quick=True, progress=lambda *call: told.append(call))
    report = run_suite(Suite("tiny", "Tiny.", cases), bench)
    assert told == [("first", 0, 2), ("second", 1, 2)]
    assert [(row.case, row.value, row.ratio, row.ok) for row in report.rows] == [
        ("first", 2.0, None, True),
        ("second", 1.0, 0.25, False),
    ]
    assert report.missed == ("second",)
    assert Bench().pick(full=1, quick=2) == 1


def test_repeats_are_those_asked_for():
    runs: list[float] = []
    Bench(repeats=5).measure("c", lambda: runs.append(1.0) or 1.0, unit="s")
    assert len(runs) == 5
    with pytest.raises(ConfigError, match="repeats = 0"):
        Bench(repeats=0)


def test_all_go_once_before_any_goes_again():
    order: list[str] = []
    started: list[tuple[str, int]] = []
    runs = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    found = take_turns(runs, 3, lambda name, turn: started.append((name, turn)))
    assert "".join(order) == "abccbaabc"
    assert found == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}
    assert started == [(name, turn) for turn, part in enumerate(("abc", "cba", "abc")) for name in part]


def test_a_case_is_made_of_medians_and_of_the_largest_baseline():
    found = {"ours": [(9, 1), (4, 1), (6, 1)], "x": [(0, 1), (0, 3), (0, 2)], "y": [(0, 1), (0, 1), (0, 99)]}
    common = {"unit": "s", "run": "ours", "figure": lambda one: one[0], "goal": 3.0}
    row = Case(case="c", against="best", baseline=("x", "y"), baseline_figure=lambda one: one[1], **common).row(found)
    assert (row.value, row.ratio, row.against, row.ok) == (6, 3.0, "best", True)
    assert Case(case="c", **common).row(found).ratio is None
    assert Case(case="c", against="itself", baseline=("ours",), **common).row(found).ratio == 1.0
    assert Case(case="c", at_most=True, **common).row(found).ok is False
    with pytest.raises(AssertionError, match="goes with a name"):
        Case(case="c", against="nothing", **common)


def _contest(order: list[str]) -> Contest[float]:
    def panels(found: Mapping[str, Sequence[float]]) -> list[Panel]:
        series = [Series(name=name, x=[0.0], y=[figures[-1]]) for name, figures in found.items()]
        return [Panel(title="race", x_label="s", y_label="m", series=series)]

    return Contest(
        name="race",
        runs={name: lambda name=name: order.append(name) or 1.0 for name in ("hare", "tortoise", "snail")},
        cases=[
            Case(case="race, hare", unit="m/s", run="hare", figure=float, against="snail", baseline=("snail",)),
            Case(case="race, tortoise", unit="m/s", run="tortoise", figure=float),
        ],
        panels=panels,
    )


def test_a_contest_runs_what_was_asked_for_and_what_that_needs():
    order: list[str] = []
    told: list[tuple[str, int, int | None]] = []
    bench = Bench(repeats=2, only=["HARE"], progress=lambda *call: told.append(call))
    contest = _contest(order)
    bench.expect(bench.steps(contest))
    assert [row.case for row in bench.contest(contest)] == ["race, hare"]
    assert order == ["hare", "snail", "snail", "hare"]
    assert told == [
        ("race, hare (1/2)", 0, 4),
        ("race, snail (1/2)", 1, 4),
        ("race, snail (2/2)", 2, 4),
        ("race, hare (2/2)", 3, 4),
    ]
    assert [[one.name for one in panel.series] for panel in bench.panels] == [["hare", "snail"]]
    assert list(Bench(only=["nobody"]).contest(contest)) == []
    assert Bench(only=["nobody"]).steps(contest) == 0


def test_a_contest_of_several_rounds_goes_so_often_for_every_repeat():
    order: list[str] = []
    bench = Bench(repeats=2, only=["tortoise"])
    contest = dataclasses.replace(_contest(order), rounds=3)
    assert bench.steps(contest) == 6
    assert [row.case for row in bench.contest(contest)] == ["race, tortoise"]
    assert order == ["tortoise"] * 6


def test_a_contest_knows_all_its_runs():
    with pytest.raises(AssertionError, match="needs a run that there is not"):
        Contest(name="race", runs={}, cases=[Case(case="c", unit="s", run="hare", figure=float)])


def test_a_choice_leaves_other_cases_unmeasured():
    told: list[tuple[str, int, int | None]] = []
    ran: list[str] = []

    def cases(bench: Bench) -> Rows:
        bench.expect(cases=4)
        yield bench.measure("small", lambda: ran.append("small") or 1.0, unit="s")
        yield bench.compare("large", lambda: ran.append("large") or 1.0, lambda: 1.0, unit="s", against="x")
        yield bench.measure("large too", lambda: 1.0, unit="s")
        yield Row(case="made by hand", value=1.0, unit="s")

    bench = Bench(repeats=1, only=["large", "none"], progress=lambda *call: told.append(call))
    report = run_suite(Suite("tiny", "Tiny.", cases), bench)
    assert [row.case for row in report.rows] == ["large", "large too"]
    assert ran == ["large"]
    assert told == [("large", 0, 3), ("large too", 1, 3)]


def test_two_cases_of_one_name_are_a_mistake():
    with pytest.raises(AssertionError, match="same name"):
        run_suite(Suite("tiny", "Tiny.", lambda bench: [Row(case="c", value=1.0, unit="s")] * 2), Bench())


def test_suites_register_once_and_are_found_by_name(registry: dict[str, Suite]):
    @suite("tiny-test", "A suite of this test.")
    def cases(bench: Bench) -> list[Row]:
        return []

    assert find_suite("tiny-test").cases is cases
    assert "tiny-test" in [one.name for one in suites()]
    with pytest.raises(AssertionError, match="two bench suites"):
        suite("tiny-test", "Again.")(cases)
    with pytest.raises(ConfigError, match=r"unknown bench suite 'tinytest': known are .*tiny-test"):
        find_suite("tinytest")


def test_a_module_of_the_package_is_a_suite(
    registry: dict[str, Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "made_up.py").write_text(
        "from headgate.bench.harness import suite\n@suite('made-up', 'Made up.')\ndef cases(bench): return []\n",
        encoding="utf-8",
    )
    (tmp_path / "_private.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    monkeypatch.setattr(package, "made_up", None, raising=False)
    assert find_suite("made-up").meaning == "Made up."
    assert {one.name for one in suites()} == {"made-up", *registry}
    del sys.modules["headgate.bench.made_up"]
