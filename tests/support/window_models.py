"""A model of windows by definition, record by record, with which the operators are compared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from headgate.functions.times import MAX_WATERMARK_MS

if TYPE_CHECKING:
    from headgate.testing.harness import OperatorHarness

FOREVER = 10**30


@dataclass(frozen=True)
class Rec:
    key: str
    n: int  # which record it is
    time: int


@dataclass(frozen=True)
class Mark:
    time: int


CUT = "cut"  # a batch ends here

Stream = list[Rec | Mark | str]
Fired = tuple[str, int, int, tuple[int, ...]]  # key, start, end, the records' numbers in order


@st.composite
def streams(draw: st.DrawFn, *, late: bool = True) -> Stream:
    """Draw records out of order, watermarks that rise, and cuts; without `late`, no record is behind a watermark.

    Nor just after one: a session ends one millisecond before a record that would still be in it, as in Flink.
    """
    stream: Stream = []
    latest, keys = draw(st.sampled_from([10, 30, 80])), draw(st.sampled_from(["a", "abc"]))
    watermark = -(10**9)
    kinds = st.sampled_from(["record"] * 6 + ["mark", CUT])
    for n, kind in enumerate(draw(st.lists(kinds, max_size=40))):
        if kind == "record":
            low = -latest if late else max(-latest, watermark + 2)
            stream.append(Rec(draw(st.sampled_from(keys)), n, draw(st.integers(low, max(low, latest)))))
        elif kind == "mark":
            watermark = max(watermark, draw(st.integers(-latest, latest)))
            stream.append(Mark(watermark))
        else:
            stream.append(CUT)
    return stream


def play(harness: OperatorHarness, stream: Stream, value: Any = lambda record: record) -> None:
    """Pass a stream to an operator, in batches, to its end."""
    for is_batch, items in groupby(stream, lambda one: isinstance(one, Rec)):
        if is_batch:
            records = [one for one in items if isinstance(one, Rec)]
            harness.process([value(one) for one in records], [one.time for one in records])
        else:
            for one in items:
                if isinstance(one, Mark):
                    harness.watermark(one.time)
    harness.end()


@dataclass
class Model:
    """A model of time windows with lateness; its two subclasses assign the windows."""

    lateness: int = 0
    now: int = -FOREVER
    fired: list[Fired] = field(default_factory=list)
    late: list[Rec] = field(default_factory=list)
    windows: dict[tuple[str, int, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def run(self, stream: Stream) -> Model:
        for one in [*stream, Mark(MAX_WATERMARK_MS)]:
            if isinstance(one, Rec):
                self.record(one)
            elif isinstance(one, Mark):
                self.mark(one.time)
        assert not self.windows
        return self

    def record(self, record: Rec) -> None:
        raise NotImplementedError

    def mark(self, time: int) -> None:
        for window in sorted(self.windows, key=lambda one: one[2]):
            if self.now < window[2] - 1 <= time:
                self.fire(window)
            if window[2] - 1 + self.lateness <= time:
                del self.windows[window]
        self.now = time

    def fire(self, window: tuple[str, int, int]) -> None:
        self.fired.append((*window, tuple(self.windows[window])))

    def put(self, record: Rec, window: tuple[str, int, int]) -> None:
        self.windows[window].append(record.n)
        if window[2] - 1 <= self.now:
            self.fire(window)


@dataclass
class AlignedModel(Model):
    size: int = 10
    slide: int = 10
    offset: int = 0

    def record(self, record: Rec) -> None:
        starts = [
            start
            for start in range(record.time - self.size + 1, record.time + 1)
            if (start - self.offset) % self.slide == 0
        ]
        kept = [start for start in starts if start + self.size - 1 + self.lateness > self.now]
        for start in kept:
            self.put(record, (record.key, start, start + self.size))
        if len(kept) < len(starts) or (not starts and record.time + self.lateness <= self.now):
            self.late.append(record)


@dataclass
class SessionModel(Model):
    gap: int = 10

    def record(self, record: Rec) -> None:
        start, end = record.time, record.time + self.gap
        touching = [
            one for one in self.windows if one[0] == record.key and one[1] <= end and start <= one[2]
        ]  # as Flink: a gap of exactly the length does not divide
        if not touching and end - 1 + self.lateness <= self.now:
            self.late.append(record)
            return
        numbers = [n for one in sorted(touching) for n in self.windows.pop(one)]
        window = record.key, min([start, *(one[1] for one in touching)]), max([end, *(one[2] for one in touching)])
        self.windows[window] = numbers
        self.put(record, window)


def by_window(fired: list[Fired]) -> dict[tuple[str, int, int], list[tuple[int, ...]]]:
    """Return the results of each window in order; the order between windows is not defined."""
    grouped: dict[tuple[str, int, int], list[tuple[int, ...]]] = defaultdict(list)
    for key, start, end, numbers in fired:
        grouped[key, start, end].append(numbers)
    return dict(grouped)
