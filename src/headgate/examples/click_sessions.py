"""Sessions of clicks: which users visited a site, for how long, and which pages?

    $ python -m headgate.examples.click_sessions

Shows: event time and watermarks for records that are out of order, session windows, an aggregate (its state is small:
a summary, not all clicks of a session), and a window function that receives key and window.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import headgate as hg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GAP = hg.Time.minutes(30)
"""A session ends after a pause of this length."""

DISORDER = hg.Time.seconds(10)
"""Clicks come from many servers: a click may arrive this much later than a newer one."""


class Click(NamedTuple):
    """A user opens a page."""

    user: str
    page: str
    at: int  # milliseconds since 1970


class Session(NamedTuple):
    """The clicks of a user without a long pause."""

    user: str
    begin: int
    end: int  # of the last click
    clicks: int
    pages: tuple[str, ...]  # each page once


def clicks(count: int = 3_000, seed: int = 1) -> list[Click]:
    """Return clicks of a day, roughly in the order of their times."""
    rng = random.Random(seed)
    users = [f"user-{n}" for n in range(40)]
    pages = ["/", "/search", "/boats", "/mills", "/cart", "/pay"]
    day_ms, start = 24 * 3_600_000, 1_750_000_000_000
    times = sorted(rng.randrange(day_ms) for _ in range(count))
    made = [Click(rng.choice(users), rng.choice(pages), start + at) for at in times]
    return sorted(made, key=lambda click: click.at + rng.randrange(DISORDER))  # roughly: some arrive late


class Summary(hg.AggregateFunction[Click, Any, Any]):
    """Number of clicks, time of the first and the last, and the pages. Session windows merge, so it needs `merge`."""

    def create_accumulator(self) -> tuple[int, float, float, frozenset[str]]:
        """Return the state without clicks."""
        return 0, float("inf"), float("-inf"), frozenset()

    def add(self, value: Click, accumulator: Any) -> Any:
        """Add a click."""
        return self.merge(accumulator, (1, value.at, value.at, frozenset([value.page])))

    def merge(self, a: Any, b: Any) -> Any:
        """Merge two sessions: a late click may close the gap between them."""
        return a[0] + b[0], min(a[1], b[1]), max(a[2], b[2]), a[3] | b[3]

    def get_result(self, accumulator: Any) -> Any:
        """Return the accumulator itself."""
        return accumulator


class ToSession(hg.ProcessWindowFunction[str, Any, Session]):
    """Adds the user, which is the window's key, to the result of the aggregate."""

    def process(self, key: str, context: Any, elements: list[Any]) -> Iterator[Session]:  # noqa: ARG002
        """Called once for each session, when the watermark has passed its end."""
        for count, begin, end, pages in elements:
            yield Session(key, begin, end, count, tuple(sorted(pages)))


def main(env: hg.StreamExecutionEnvironment | None = None, visits: Iterable[Click] | None = None) -> list[Session]:
    """Find the sessions in some clicks, by user and time.

    >>> visits = [Click("ann", "/", 0), Click("bob", "/", 5_000), Click("ann", "/cart", 60_000)]
    >>> visits.append(Click("ann", "/", 9_000_000))
    >>> for session in main(hg.environment(local=True, parallelism=2), visits):
    ...     print(session)
    Session(user='ann', begin=0, end=60000, clicks=2, pages=('/', '/cart'))
    Session(user='ann', begin=9000000, end=9000000, clicks=1, pages=('/',))
    Session(user='bob', begin=5000, end=5000, clicks=1, pages=('/',))
    """
    env = env or hg.environment()
    strategy = hg.WatermarkStrategy.for_bounded_out_of_orderness(DISORDER)
    event_time = strategy.with_timestamp_assigner(lambda click: click.at)
    sessions = (
        env.from_collection(clicks() if visits is None else visits, type_info=Click)
        .assign_timestamps_and_watermarks(event_time)
        .key_by(lambda click: click.user)
        .window(hg.EventTimeSessionWindows.with_gap(GAP))
        .aggregate(Summary(), ToSession())
    )
    return sorted(sessions.execute_and_collect("click sessions"))


if __name__ == "__main__":
    for session in main()[:10]:
        minutes = (session.end - session.begin) / 60_000
        print(f"{session.user:8} {session.clicks:4} clicks in {minutes:6.1f} min: {' '.join(session.pages)}")
