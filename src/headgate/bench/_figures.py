"""Figures and how they are compared: rows, medians, ratios, and runs that take turns.

Used by the harness, which exports what suites need; pure but for the runs it calls. Invariant: the two sides of a
ratio are measured in one run of a suite, taking turns, so that a busy machine slows both.
"""

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from headgate.bench._plot import Panel

__all__ = ["Case", "Compared", "Contest", "Row", "Run", "median_of", "ratio_of_medians", "take_turns"]

T = TypeVar("T")

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

    >>> ratio_of_medians(lambda: 30.0, lambda: 20.0)
    Compared(ours=30.0, baseline=20.0)
    """
    found = take_turns({"ours": ours, "baseline": baseline}, repeats)
    return Compared(statistics.median(found["ours"]), statistics.median(found["baseline"]))


def take_turns(
    runs: Mapping[str, Callable[[], T]], repeats: int = 3, starting: Callable[[str, int], object] | None = None
) -> dict[str, list[T]]:
    """What each of several runs found each time. All go once before any goes again; `starting` hears name and round.

    The order changes with each round, so that nobody always finds the caches warm.

    >>> order = []
    >>> take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2)
    {'a': [None, None], 'b': [None, None]}
    >>> order
    ['a', 'b', 'b', 'a']
    """
    found: dict[str, list[T]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            if starting is not None:
                starting(name, turn)
            found[name].append(_fresh(runs[name]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Generic[T]):
    """A row that will be made of what runs find that take turns.

    Its value is the median of `figure` over the results of the run named `run`. Its ratio, if it is `against`
    something, is to the median of `baseline_figure` over the results of the run named in `baseline`: of several, the
    one with the largest. If `paired`, it is the median of the ratios of each round instead, which tells small
    differences apart on a machine whose speed changes from round to round.

    >>> case = Case(case="speed", unit="MB/s", run="ours", figure=float, against="best", baseline=("x", "y"), goal=2.0)
    >>> row = case.row({"ours": [9.0, 8.0, 1.0], "x": [1.0], "y": [4.0]})
    >>> row.value, row.ratio, row.ok
    (8.0, 2.0, True)
    >>> case = Case(case="cost", unit="s", run="on", figure=float, against="off", baseline=("off",), paired=True)
    >>> case.row({"on": [9.0, 50.0, 2.0], "off": [10.0, 50.0, 1.0]}).ratio
    1.0
    """

    case: str
    unit: str
    run: str
    figure: Callable[[T], float]
    against: str | None = None
    baseline: tuple[str, ...] = ()
    baseline_figure: Callable[[T], float] | None = None  # None: as `figure`
    goal: float | None = None
    at_most: bool = False
    paired: bool = False

    def __post_init__(self) -> None:
        assert (self.against is None) == (not self.baseline), "what it is against goes with a name for it"
        assert len(self.baseline) == 1 or not self.paired, "a pair is of two"

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the runs that it is made of."""
        return (self.run, *self.baseline)

    def row(self, found: Mapping[str, Sequence[T]]) -> Row:
        """The row, once all runs have been done."""
        value = statistics.median(map(self.figure, found[self.run]))
        ratio, of = None, self.baseline_figure or self.figure
        if self.paired:
            pairs = zip(map(self.figure, found[self.run]), map(of, found[self.baseline[0]]), strict=True)
            ratio = statistics.median(Compared(ours, theirs).ratio for ours, theirs in pairs)
        elif self.baseline:
            ratio = Compared(value, max(statistics.median(map(of, found[name])) for name in self.baseline)).ratio
        return Row(
            case=self.case,
            value=value,
            unit=self.unit,
            against=self.against,
            ratio=ratio,
            goal=self.goal,
            at_most=self.at_most,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest(Generic[T]):
    """Runs that take turns, by name, the cases that are made of what they find, and a chart of it, if there is one.

    >>> contest = Contest(
    ...     name="race",
    ...     runs={"fast": lambda: 1.0, "slow": lambda: 9.0},
    ...     cases=[Case(case="slow", unit="s", run="slow", figure=float)],
    ... )
    >>> list(contest.needed(contest.cases))
    ['slow']
    """

    name: str
    runs: Mapping[str, Callable[[], T]]
    cases: Sequence[Case[T]]
    rounds: int = 1
    """How often each run goes for every repeat. A machine's speed may change from second to second: many short runs
    in turns tell more than few long ones."""
    panels: Callable[[Mapping[str, Sequence[T]]], Sequence[Panel]] = lambda _: ()
    """Made of what the runs found that were done, which may be some of them only."""

    def __post_init__(self) -> None:
        for case in self.cases:
            assert self.runs.keys() >= set(case.needs), f"{case.case!r} needs a run that there is not"

    def needed(self, cases: Sequence[Case[T]]) -> dict[str, Callable[[], T]]:
        """The runs that these cases are made of."""
        names = {name for case in cases for name in case.needs}
        return {name: run for name, run in self.runs.items() if name in names}


def _fresh(run: Callable[[], T]) -> T:
    gc.collect()  # one run's garbage must not be collected on the next one's time
    return run()
