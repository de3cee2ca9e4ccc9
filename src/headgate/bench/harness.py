"""The frame of every bench suite: what a suite gets, what it yields, and what is said about the machine.

A suite is a function from a `Bench` to rows, registered with `@suite` in the module of `headgate.bench` that
bears its name; `headgate bench` runs it and prints the report. Nothing here prints. Invariant: no case is measured
that was not asked for, and none that was asked for is left out.
"""

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import TypeVar

from headgate.bench._figures import Case, Compared, Contest, Row, Run, median_of, ratio_of_medians, take_turns
from headgate.bench._machine import machine
from headgate.bench._plot import Panel
from headgate.errors import ConfigError

__all__ = [
    "Bench",
    "Case",
    "Compared",
    "Contest",
    "Progress",
    "Report",
    "Row",
    "Rows",
    "Suite",
    "find_suite",
    "machine",
    "median_of",
    "per_second",
    "ratio_of_medians",
    "run_suite",
    "suite",
    "suites",
    "take_turns",
]

_T = TypeVar("_T")

Progress = Callable[[str, int, int | None], None]
"""Called when a case starts: its name, how many are done, and how many there are where the suite has said."""

Rows = Iterable[Row | None]
"""What a suite yields, one by one; None stands for a case that was not asked for."""


def per_second(count: int, work: Callable[[], object]) -> float:
    """How many things a second, where one call of `work` does `count` of them.

    >>> per_second(1000, lambda: sum(range(1000))) > 0
    True
    """
    start_ns = time.perf_counter_ns()
    work()
    return count * 1e9 / max(1, time.perf_counter_ns() - start_ns)


class Bench:
    """What a suite is handed: how much to do, how to measure, which cases, and whom to tell.

    >>> bench = Bench(quick=True)
    >>> row = bench.compare("sum", lambda: 30.0, lambda: 20.0, unit="records/s", against="a loop", goal=1.2)
    >>> row.ratio, row.ok
    (1.5, True)
    """

    def __init__(
        self,
        *,
        quick: bool = False,
        repeats: int = 3,
        only: Sequence[str] = (),
        progress: Progress | None = None,
        directory: Path | None = None,
    ) -> None:
        if repeats < 1:
            raise ConfigError(f"repeats = {repeats}: measure at least once")
        self.quick = quick
        self.repeats = repeats
        self.directory = directory
        """Where files go, if somebody has said it: for suites with `disk`."""
        self.panels: list[Panel] = []
        """What a chart of the cases so far would show."""
        self.notes: list[str] = []
        """What a reader of the report should know, such as what was left out and why."""
        self._only = tuple(text.lower() for text in only)
        self._progress = progress
        self._done = 0
        self._total: int | None = None

    def expect(self, cases: int) -> None:
        """Say how many cases there are, so that the progress bar has an end; those not asked for count too."""
        self._total = cases

    def wants(self, case: str) -> bool:
        """Whether the case was asked for: without a choice all are, else those with one of the texts in their name.

        >>> Bench(only=["1 ms"]).wants("latency, 1 ms"), Bench(only=["1 ms"]).wants("latency, 10 ms")
        (True, False)
        """
        return not self._only or any(text in case.lower() for text in self._only)

    def pick(self, *, full: _T, quick: _T) -> _T:
        """The amount of work for this run; with `quick`, a whole suite has about a minute.

        >>> Bench(quick=True).pick(full=1_000_000, quick=10_000)
        10000
        """
        return quick if self.quick else full

    def progress(self, case: str) -> None:
        """A case starts. `measure`, `compare` and `contest` say so themselves."""
        if self._progress is not None:
            self._progress(case, self._done, self._total)
        self._done += 1

    def measure(
        self, case: str, run: Run, *, unit: str, goal: float | None = None, at_most: bool = False
    ) -> Row | None:
        """A row with the median of a figure."""
        if not self._start(case):
            return None
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
    ) -> Row | None:
        """A row with the median of our figure and its ratio to the baseline's; the goal is the ratio's."""
        if not self._start(case):
            return None
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

    def contest(self, contest: Contest[_T]) -> Iterator[Row]:
        """The rows of a contest, and its chart; only what they are made of is run.

        >>> cases = [Case(case=name, unit="s", run=name, figure=float) for name in ("fast", "slow")]
        >>> contest = Contest(name="race", runs={"fast": lambda: 1.0, "slow": lambda: 9.0}, cases=cases)
        >>> [row.case for row in Bench(only=["slow"]).contest(contest)]
        ['slow']
        """
        cases = [case for case in contest.cases if self.wants(case.case)]
        if not cases:
            return

        turns = self.repeats * contest.rounds

        def starting(name: str, turn: int) -> None:
            self.progress(f"{contest.name}, {name} ({turn + 1}/{turns})")

        found = take_turns(contest.needed(cases), turns, starting)
        self.panels += contest.panels(found)
        for case in cases:
            yield case.row(found)

    def steps(self, contest: Contest[_T]) -> int:
        """How much a contest adds to what `expect` is told: every turn of every run is a step."""
        cases = [case for case in contest.cases if self.wants(case.case)]
        return len(contest.needed(cases)) * self.repeats * contest.rounds

    def _start(self, case: str) -> bool:
        wanted = self.wants(case)
        if wanted:
            self.progress(case)
        elif self._total is not None:
            self._total -= 1
        return wanted


@dataclass(frozen=True, slots=True)
class Suite:
    """A named set of cases.

    >>> Suite("tiny", "Nothing at all.", lambda bench: []).name
    'tiny'
    """

    name: str
    meaning: str
    cases: Callable[[Bench], Rows]
    charts: bool = False  # some of its cases can be drawn
    disk: bool = False  # it writes files, to a directory that can be chosen


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of a suite found, and on what machine.

    >>> Report("tiny", {}, (Row(case="a", value=1.0, unit="s", goal=2.0),)).missed
    ('a',)
    """

    suite: str
    machine: dict[str, object]
    rows: tuple[Row, ...]
    panels: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[str, ...]:
        """The cases that missed their goal."""
        return tuple(row.case for row in self.rows if row.ok is False)

    def to_json(self) -> dict[str, object]:
        """The one object that `--json` prints."""
        noted = {"notes": list(self.notes)} if self.notes else {}
        return {"suite": self.suite, "machine": self.machine, "rows": [row.to_json() for row in self.rows], **noted}


_SUITES: dict[str, Suite] = {}


def suite(
    name: str, meaning: str, *, charts: bool = False, disk: bool = False
) -> Callable[[Callable[[Bench], Rows]], Callable[[Bench], Rows]]:
    """Register a function as the suite `name`; `meaning` is one sentence for `headgate bench --list`.

    >>> @suite("doctest", "Only an example.")
    ... def cases(bench):
    ...     yield bench.measure("one", lambda: 1.0, unit="s")
    >>> run_suite(_SUITES.pop("doctest"), Bench()).rows[0].value
    1.0
    """

    def register(cases: Callable[[Bench], Rows]) -> Callable[[Bench], Rows]:
        assert name not in _SUITES, f"two bench suites are called {name!r}"
        _SUITES[name] = Suite(name, meaning, cases, charts, disk)
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
    """Run a suite from first to last case, or those of its cases that the bench wants.

    >>> run_suite(Suite("tiny", "Nothing at all.", lambda bench: []), Bench()).rows
    ()
    """
    rows = tuple(row for row in which.cases(bench) if row is not None and bench.wants(row.case))
    assert len({row.case for row in rows}) == len(rows), f"suite {which.name}: two cases have the same name"
    return Report(which.name, machine(), rows, tuple(bench.panels), tuple(bench.notes))
