"""Streaming join: which adverts were clicked in the minute in which they were shown?

    $ python -m headgate.examples.streaming_join

Shows: two streams of different types, joined by key in windows of event time. The records of a window are dropped once
the watermarks of both streams have passed it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import headgate as hg

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW = hg.Time.minutes(1)
"""An advert and its click are joined if they are in the same window of this length."""

DISORDER = hg.Time.seconds(5)
"""A record may arrive this much later than a newer one."""


class Impression(NamedTuple):
    """An advert was shown to a user."""

    advert: int
    campaign: str
    at: int  # milliseconds since 1970


class Clicked(NamedTuple):
    """An advert was clicked."""

    advert: int
    at: int


class Hit(NamedTuple):
    """An advert was clicked soon after it was shown."""

    campaign: str
    advert: int
    after_ms: int


def adverts(count: int = 2_000, seed: int = 1) -> tuple[list[Impression], list[Clicked]]:
    """Return adverts, and clicks on one in four of them; both roughly in the order of their times."""
    rng = random.Random(seed)
    start = 1_750_000_000_000
    campaigns = ["spring", "summer", "autumn", "winter"]
    shown = [Impression(n, rng.choice(campaigns), start + 150 * n + rng.randrange(1_000)) for n in range(count)]
    clicked = [Clicked(one.advert, one.at + rng.randrange(40_000)) for one in shown if rng.random() < 0.25]
    return shown, sorted(clicked, key=lambda click: click.at + rng.randrange(DISORDER))


def hit(shown: Impression, clicked: Clicked) -> Hit:
    """Return the hit of a pair with the same advert in the same window."""
    return Hit(shown.campaign, shown.advert, clicked.at - shown.at)


def main(
    env: hg.StreamExecutionEnvironment | None = None,
    shown: Iterable[Impression] | None = None,
    clicked: Iterable[Clicked] | None = None,
) -> list[Hit]:
    """Join adverts and clicks.

    >>> shown = [Impression(1, "spring", 1_000), Impression(2, "winter", 2_000)]
    >>> clicked = [Clicked(1, 5_000), Clicked(2, 61_000)]  # the second click is in the next minute
    >>> main(hg.environment(local=True, parallelism=2), shown, clicked)
    [Hit(campaign='spring', advert=1, after_ms=4000)]
    """
    env = env or hg.environment()
    some_shown, some_clicked = adverts()
    strategy = hg.WatermarkStrategy.for_bounded_out_of_orderness(DISORDER)
    event_time = strategy.with_timestamp_assigner(lambda record: record.at)
    left = env.from_collection(some_shown if shown is None else shown, type_info=Impression)
    right = env.from_collection(some_clicked if clicked is None else clicked, type_info=Clicked)
    hits = (
        left.assign_timestamps_and_watermarks(event_time)
        .join(right.assign_timestamps_and_watermarks(event_time))
        .where(lambda shown: shown.advert)
        .equal_to(lambda clicked: clicked.advert)
        .window(hg.TumblingEventTimeWindows.of(WINDOW))
        .apply(hit)
    )
    return sorted(hits.execute_and_collect("streaming join"))


if __name__ == "__main__":
    hits = main()
    for campaign in sorted({one.campaign for one in hits}):
        times = [one.after_ms for one in hits if one.campaign == campaign]
        print(f"{campaign:8} {len(times):4} clicks, {sum(times) / len(times) / 1000:.1f} s after the advert on average")
