"""The harness of all suites: cases as data, runs in turns, rows, the report, and the table of suites.

A suite is a generator from a `Bench` to rows. It hands its contests to `Bench.run`, which measures only the runs that
the chosen cases need. The runs of a contest alternate, so a busy machine slows both sides of a ratio.
"""

import gc
import importlib
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from headgate.bench.charts import ChartPanel
from headgate.errors import ConfigError
from headgate.version import __version__

__all__ = [
    "SUITES",
    "Bench",
    "BenchReport",
    "Case",
    "Contest",
    "Progress",
    "Row",
    "Suite",
    "alternate",
    "find_suite",
    "machine",
    "per_second",
    "percentile",
    "run_suite",
]

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called before each run: its name, the number of finished runs, and the number of all runs."""


# Figures ---------------------------------------------------------------------------------------------------------


def per_second(count: int, work: Callable[[], object]) -> float:
    """Return `count` divided by the seconds that one call of `work` takes."""
    start_ns = time.perf_counter_ns()
    work()
    return count * 1e9 / max(1, time.perf_counter_ns() - start_ns)


def percentile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that at least `q` per cent of the values do not exceed.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 50), percentile([4.0, 1.0, 3.0, 2.0], 99)
    (2.0, 4.0)
    """
    if not values:
        raise ValueError("no values: a percentile needs at least one")
    if not 0 <= q <= 100:
        raise ValueError(f"q = {q:g}: a percentile is from 0 to 100")
    return sorted(values)[max(0, math.ceil(len(values) * q / 100) - 1)]


def alternate(
    runs: Mapping[str, Callable[[], T]], turns: int, starting: Callable[[str, int], object] = lambda *_: None
) -> dict[str, list[T]]:
    """Return the results of `turns` calls of each run: each run is called once before any is called again.

    The order is reversed in every other turn, so that no run always finds the caches warm. Garbage is collected before
    each call: a run must not pay for the garbage of the run before it.
    """
    found: dict[str, list[T]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            starting(name, turn)
            gc.collect()
            found[name].append(runs[name]())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of a report and its goal, if it has one.

    The goal applies to the ratio if there is one, otherwise to the value. It is a minimum, or with `at_most` a maximum.

    >>> Row(case="hash", value=9.0, unit="records/s", against="a list", ratio=0.9, goal=0.5).ok
    True
    """

    case: str
    value: float
    unit: str
    against: str | None = None
    ratio: float | None = None
    goal: float | None = None
    at_most: bool = False

    def __post_init__(self) -> None:
        for number in (self.value, self.ratio, self.goal):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"bench case {self.case!r}: {number} is not a figure")

    @property
    def ok(self) -> bool | None:
        """True if the goal is met, None without a goal."""
        if self.goal is None:
            return None
        figure = self.value if self.ratio is None else self.ratio
        return figure <= self.goal if self.at_most else figure >= self.goal

    def to_json(self) -> dict[str, object]:
        """Return the row as `--json` prints it."""
        names = ("case", "value", "unit", "against", "ratio", "goal", "ok")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Case(Generic[T]):
    """A row to be made from the results of a contest's runs.

    The value is the median of `figure` over the results of the run `run`. With `against`, the ratio divides it by the
    median of `baseline_figure` (default: `figure`) over the results of the run named in `baseline`; of several
    baselines the largest median counts. With `paired`, the ratio is the median of the ratios of each turn: this shows
    differences that are smaller than the machine's changes of speed between turns.

    >>> case = Case("speed", "MB/s", "ours", against="best", baseline=("x", "y"), goal=2.0)
    >>> row = case.row({"ours": [9.0, 8.0, 1.0], "x": [1.0], "y": [4.0]})
    >>> row.value, row.ratio, row.ok
    (8.0, 2.0, True)
    """

    case: str
    unit: str
    run: str
    figure: Callable[[T], float] = float  # type: ignore[assignment] # the results are figures themselves
    against: str | None = None
    baseline: tuple[str, ...] = ()
    baseline_figure: Callable[[T], float] | None = None
    goal: float | None = None
    at_most: bool = False
    paired: bool = False

    def __post_init__(self) -> None:
        assert (self.against is None) == (not self.baseline), "`against` names the baseline"
        assert len(self.baseline) == 1 or not self.paired, "a pair has one baseline"

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the runs that the row is made from."""
        return (self.run, *self.baseline)

    def row(self, found: Mapping[str, Sequence[T]]) -> Row:
        """Return the row for these results."""
        own, theirs = [self.figure(one) for one in found[self.run]], self.baseline_figure or self.figure
        value, ratio = statistics.median(own), None
        beside = {name: [theirs(one) for one in found[name]] for name in self.baseline}
        if self.paired:
            pairs = zip(own, beside[self.baseline[0]], strict=True)
            ratio = statistics.median(self._ratio(*pair) for pair in pairs)
        elif beside:
            ratio = self._ratio(value, max(map(statistics.median, beside.values())))
        return Row(
            case=self.case,
            value=value,
            unit=self.unit,
            against=self.against,
            ratio=ratio,
            goal=self.goal,
            at_most=self.at_most,
        )

    def _ratio(self, ours: float, baseline: float) -> float:
        if baseline == 0:
            raise ValueError(f"bench case {self.case!r}: the baseline measured 0, so there is no ratio")
        return ours / baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest(Generic[T]):
    """Runs that alternate, the cases made from their results, and the charts of them."""

    name: str
    runs: Mapping[str, Callable[[], T]]
    cases: Sequence[Case[T]]
    rounds: int = 1
    """Turns for every repeat: a machine's speed changes by the second, so many short runs show more than one long."""
    once: bool = False
    """Run one turn, whatever the number of repeats."""
    panels: Callable[[Mapping[str, Sequence[T]]], Sequence[ChartPanel]] = lambda _: ()
    """Receives the results of the runs that were done, which may be a part of `runs`."""

    def __post_init__(self) -> None:
        for case in self.cases:
            assert self.runs.keys() >= set(case.needs), f"{case.case!r} needs a run that the contest does not have"


# Running ---------------------------------------------------------------------------------------------------------


class Bench:
    """The options of one command: how much to run, which cases, where to write files, and where to report progress."""

    def __init__(
        self,
        *,
        quick: bool = False,
        repeats: int = 3,
        only: Sequence[str] = (),
        progress: Progress = lambda *_: None,
        directory: Path | None = None,
    ) -> None:
        if repeats < 1:
            raise ConfigError(f"repeats = {repeats}: measure at least once")
        self.quick = quick
        self.repeats = repeats
        self.directory = directory
        """For suites with `disk`: the directory of `--directory`."""
        self.panels: list[ChartPanel] = []
        self.notes: list[str] = []
        """Remarks for the reader of the report, such as a baseline that is not installed."""
        self._only = tuple(text.lower() for text in only)
        self._progress = progress

    def pick(self, *, full: T, quick: T) -> T:
        """Return the amount of work for this run."""
        return quick if self.quick else full

    def wanted(self, contest: Contest[T]) -> list[Case[T]]:
        """Return the chosen cases: all, or with `--case` those whose name contains one of the texts."""
        return [
            case for case in contest.cases if not self._only or any(text in case.case.lower() for text in self._only)
        ]

    def run(self, *groups: Sequence[Contest[Any]], after_group: Callable[[], object] = lambda: None) -> Iterator[Row]:
        """Run the contests in order and yield the rows of the chosen cases; call `after_group` after each group."""
        total = sum(len(self._needed(contest)) * self._turns(contest) for group in groups for contest in group)
        done = 0
        for group in groups:
            for contest in group:
                turns = self._turns(contest)

                def starting(name: str, turn: int, contest: Contest[Any] = contest, turns: int = turns) -> None:
                    nonlocal done
                    self._progress(f"{contest.name}, {name} ({turn + 1}/{turns})", done, total)
                    done += 1

                if cases := self.wanted(contest):
                    found = alternate(self._needed(contest), turns, starting)
                    self.panels += contest.panels(found)
                    yield from (case.row(found) for case in cases)
            after_group()

    def _turns(self, contest: Contest[Any]) -> int:
        return 1 if contest.once else self.repeats * contest.rounds

    def _needed(self, contest: Contest[T]) -> dict[str, Callable[[], T]]:
        names = {name for case in self.wanted(contest) for name in case.needs}
        return {name: run for name, run in contest.runs.items() if name in names}


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The result of one run of a suite."""

    suite: str
    machine: dict[str, object]
    rows: tuple[Row, ...]
    panels: tuple[ChartPanel, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[str, ...]:
        """The cases that missed their goal."""
        return tuple(row.case for row in self.rows if row.ok is False)

    def to_json(self) -> dict[str, object]:
        """Return the object that `--json` prints."""
        noted = {"notes": list(self.notes)} if self.notes else {}
        return {"suite": self.suite, "machine": self.machine, "rows": [row.to_json() for row in self.rows], **noted}


def machine() -> dict[str, object]:
    """Return what a reader needs to judge the figures: hardware, interpreter, versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "switch_interval_s": sys.getswitchinterval(),
        "versions": {"headgate": __version__, **{name: _version(name) for name in ("numpy", "pyarrow", "msgspec")}},
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


# The suites ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Suite:
    """A named set of cases."""

    name: str
    meaning: str  # for `headgate bench --list`
    cases: Callable[[Bench], Iterable[Row]]
    charts: bool = False  # `--plot` can draw some of its cases
    disk: bool = False  # it writes files: `--directory` applies


def _load(name: str) -> Callable[[Bench], Iterable[Row]]:
    """Return a suite's function, whose module is imported on the first call: a list of suites needs no Spark."""

    def cases(bench: Bench) -> Iterable[Row]:
        rows: Iterable[Row] = getattr(importlib.import_module(f"headgate.bench.{name}"), name)(bench)
        return rows

    return cases


SUITES: dict[str, Suite] = {
    one.name: one
    for one in (
        Suite("batch", "Blocking partitions beside plain files; word count beside PySpark.", _load("batch"), disk=True),
        Suite(
            "local",
            "The exchange inside one worker: buffers, records, emit, Arrow, many channels, memory.",
            _load("local"),
        ),
        Suite("meters", "The cost of meters, latency markers, hot keys and an open page on Spark.", _load("meters")),
        Suite(
            "pipeline",
            "Whole pipelines on Spark: word count, windows, latency, shuffle, start, memory.",
            _load("pipeline"),
        ),
        Suite(
            "wire",
            "The exchange between two workers: throughput, latency, a slow neighbour, response.",
            _load("wire"),
            charts=True,
        ),
    )
}
"""All suites, by name."""


def find_suite(name: str) -> Suite:
    """Return the suite of that name.

    Raises:
        ConfigError: There is no such suite.
    """
    if name not in SUITES:
        raise ConfigError(f"unknown bench suite {name!r}: known are {', '.join(sorted(SUITES))}")
    return SUITES[name]


def run_suite(suite: Suite, bench: Bench) -> BenchReport:
    """Run the chosen cases of a suite."""
    rows = tuple(suite.cases(bench))
    assert len({row.case for row in rows}) == len(rows), f"suite {suite.name}: two cases have the same name"
    return BenchReport(suite.name, machine(), rows, tuple(bench.panels), tuple(bench.notes))
