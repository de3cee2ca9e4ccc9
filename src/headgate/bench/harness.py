"""The frame of every bench suite: what a suite gets, what it yields, and what is said about the machine.

A suite is a function from a `Bench` to rows, registered with `@suite` in the module of `headgate.bench` that
bears its name; `headgate bench` runs it and prints the report. Nothing here prints. Invariant: the two sides
of a ratio are measured in one run, taking turns, so that a busy machine slows both.
"""

import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pkgutil import iter_modules
from typing import NamedTuple, TypeVar

from headgate.bench._machine import machine
from headgate.errors import ConfigError

__all__ = [
    "Bench",
    "Compared",
    "Progress",
    "Report",
    "Row",
    "Suite",
    "find_suite",
    "machine",
    "median_of",
    "per_second",
    "ratio_of_medians",
    "run_suite",
    "suite",
    "suites",
]

_T = TypeVar("_T")

Progress = Callable[[str, int, int | None], None]
"""Called when a case starts: its name, how many are done, and how many there are where the suite has said."""

Run = Callable[[], float]
"""One measurement: does the work and returns the figure, such as records per second or bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of a report, and the goal it has to meet, if any.

    A goal is about the ratio where there is one, else about the value; it is the least that will do, or
    with `at_most` the most.

    >>> Row(case="hash", value=9.0, unit="records/s", against="a list", ratio=0.9, goal=0.5).ok
    True
    >>> Row(case="idle", value=80.0, unit="MiB", goal=64.0, at_most=True).ok
    False
    """

    case: str
    value: float
    unit: str
    against: str | None = None
    ratio: float | None = None
    goal: float | None = None
    at_most: bool = False

    def __post_init__(self) -> None:
        assert (self.against is None) == (self.ratio is None), "a ratio and what it is against go together"
        for number in (self.value, self.ratio, self.goal):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"bench case {self.case!r}: {number} is not a figure")

    @property
    def ok(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.goal is None:
            return None
        figure = self.value if self.ratio is None else self.ratio
        return figure <= self.goal if self.at_most else figure >= self.goal

    def to_json(self) -> dict[str, object]:
        """The row as `--json` has it."""
        return {
            "case": self.case,
            "value": self.value,
            "unit": self.unit,
            "against": self.against,
            "ratio": self.ratio,
            "goal": self.goal,
            "ok": self.ok,
        }


class Compared(NamedTuple):
    """The medians of two sides that took turns.

    >>> Compared(ours=30.0, baseline=20.0).ratio
    1.5
    """

    ours: float
    baseline: float

    @property
    def ratio(self) -> float:
        """How many times the baseline ours is."""
        if self.baseline == 0:
            raise ValueError("the baseline measured 0: a ratio to it means nothing")
        return self.ours / self.baseline


def median_of(run: Run, repeats: int = 3) -> float:
    """The median of several measurements.

    >>> figures = iter([5.0, 1.0, 3.0])
    >>> median_of(lambda: next(figures))
    3.0
    """
    return statistics.median(_fresh(run) for _ in range(repeats))


def ratio_of_medians(ours: Run, baseline: Run, repeats: int = 3) -> Compared:
    """Measure two sides in turns, and take the median of each.

    The side that goes first changes with each round, so that neither always finds the caches warm.

    >>> ratio_of_medians(lambda: 30.0, lambda: 20.0)
    Compared(ours=30.0, baseline=20.0)
    """
    figures: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats):
        for side in ((0, 1), (1, 0))[turn % 2]:
            figures[side].append(_fresh((ours, baseline)[side]))
    return Compared(statistics.median(figures[0]), statistics.median(figures[1]))


def per_second(count: int, work: Callable[[], object]) -> float:
    """How many things a second, where one call of `work` does `count` of them.

    >>> per_second(1000, lambda: sum(range(1000))) > 0
    True
    """
    start_ns = time.perf_counter_ns()
    work()
    return count * 1e9 / max(1, time.perf_counter_ns() - start_ns)


def _fresh(run: Run) -> float:
    gc.collect()  # one run's garbage must not be collected on the next one's time
    return run()


class Bench:
    """What a suite is handed: how much to do, how to measure, and whom to tell.

    >>> bench = Bench(quick=True)
    >>> row = bench.compare("sum", lambda: 30.0, lambda: 20.0, unit="records/s", against="a loop", goal=1.2)
    >>> row.ratio, row.ok
    (1.5, True)
    """

    def __init__(self, *, quick: bool = False, repeats: int = 3, progress: Progress | None = None) -> None:
        if repeats < 1:
            raise ConfigError(f"repeats = {repeats}: measure at least once")
        self.quick = quick
        self.repeats = repeats
        self._progress = progress
        self._done = 0
        self._total: int | None = None

    def expect(self, cases: int) -> None:
        """Say how many cases will come, so that the progress bar has an end."""
        self._total = cases

    def pick(self, *, full: _T, quick: _T) -> _T:
        """The amount of work for this run; with `quick`, a whole suite has 30 s.

        >>> Bench(quick=True).pick(full=1_000_000, quick=10_000)
        10000
        """
        return quick if self.quick else full

    def progress(self, case: str) -> None:
        """A case starts. `measure` and `compare` say so themselves."""
        if self._progress is not None:
            self._progress(case, self._done, self._total)
        self._done += 1

    def measure(self, case: str, run: Run, *, unit: str, goal: float | None = None, at_most: bool = False) -> Row:
        """A row with the median of a figure."""
        self.progress(case)
        return Row(case=case, value=median_of(run, self.repeats), unit=unit, goal=goal, at_most=at_most)

    def compare(
        self,
        case: str,
        ours: Run,
        baseline: Run,
        *,
        unit: str,
        against: str,
        goal: float | None = None,
        at_most: bool = False,
    ) -> Row:
        """A row with the median of our figure and its ratio to the baseline's; the goal is the ratio's."""
        self.progress(case)
        medians = ratio_of_medians(ours, baseline, self.repeats)
        return Row(
            case=case,
            value=medians.ours,
            unit=unit,
            against=against,
            ratio=medians.ratio,
            goal=goal,
            at_most=at_most,
        )


@dataclass(frozen=True, slots=True)
class Suite:
    """A named set of cases.

    >>> Suite("tiny", "Nothing at all.", lambda bench: []).name
    'tiny'
    """

    name: str
    meaning: str
    cases: Callable[[Bench], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of a suite found, and on what machine.

    >>> Report("tiny", {}, (Row(case="a", value=1.0, unit="s", goal=2.0),)).missed
    ('a',)
    """

    suite: str
    machine: dict[str, object]
    rows: tuple[Row, ...]

    @property
    def missed(self) -> tuple[str, ...]:
        """The cases that missed their goal."""
        return tuple(row.case for row in self.rows if row.ok is False)

    def to_json(self) -> dict[str, object]:
        """The one object that `--json` prints."""
        return {"suite": self.suite, "machine": self.machine, "rows": [row.to_json() for row in self.rows]}


_SUITES: dict[str, Suite] = {}


def suite(name: str, meaning: str) -> Callable[[Callable[[Bench], Iterable[Row]]], Callable[[Bench], Iterable[Row]]]:
    """Register a function as the suite `name`; `meaning` is one sentence for `headgate bench --list`.

    >>> @suite("doctest", "Only an example.")
    ... def cases(bench):
    ...     yield bench.measure("one", lambda: 1.0, unit="s")
    >>> run_suite(_SUITES.pop("doctest"), Bench()).rows[0].value
    1.0
    """

    def register(cases: Callable[[Bench], Iterable[Row]]) -> Callable[[Bench], Iterable[Row]]:
        assert name not in _SUITES, f"two bench suites are called {name!r}"
        _SUITES[name] = Suite(name, meaning, cases)
        return cases

    return register


def _modules() -> dict[str, str]:
    """Suite name -> module, from the files of this package; nothing is imported."""
    import headgate.bench as package  # noqa: PLC0415 - the package imports this module

    names = (one.name for one in iter_modules(package.__path__))
    return {
        name.replace("_", "-"): f"{package.__name__}.{name}"
        for name in names
        if name != "harness" and not name.startswith("_")
    }


def find_suite(name: str) -> Suite:
    """The suite of that name; only its own module is imported, so that suites do not weigh on each other.

    >>> find_suite("nonesuch")
    Traceback (most recent call last):
    headgate.errors.ConfigError: unknown bench suite 'nonesuch': known are ...
    """
    modules = _modules()
    if name not in _SUITES and name in modules:
        importlib.import_module(modules[name])
        assert name in _SUITES, f"{modules[name]} registers no suite called {name!r}"
    if name not in _SUITES:
        known = ", ".join(sorted({*_SUITES, *modules})) or "none"
        raise ConfigError(f"unknown bench suite {name!r}: known are {known}")
    return _SUITES[name]


def suites() -> tuple[Suite, ...]:
    """All suites, by name.

    >>> all(one.meaning for one in suites())
    True
    """
    return tuple(find_suite(name) for name in sorted({*_SUITES, *_modules()}))


def run_suite(which: Suite, bench: Bench) -> Report:
    """Run a suite from first to last case.

    >>> run_suite(Suite("tiny", "Nothing at all.", lambda bench: []), Bench()).rows
    ()
    """
    rows = tuple(which.cases(bench))
    assert len({row.case for row in rows}) == len(rows), f"suite {which.name}: two cases have the same name"
    return Report(which.name, machine(), rows)
