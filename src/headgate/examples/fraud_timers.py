"""Fraud: a card is tried with a very small payment, and a large one follows within a minute.

    $ python -m headgate.examples.fraud_timers

Shows: a `KeyedProcessFunction` with state of each key and event-time timers, and a side output.

The payments of a card come from several sources in parallel, so in any order. The function keeps each until the
watermark says that no earlier one can come, which a timer tells, and judges them in the order of their times. So the
answer does not depend on how many subtasks there are or how fast they happen to be.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import headgate as hg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SMALL = 100
"""Cents; less than this is a trial of the card."""

LARGE = 50_000
"""Cents; more than this, right after a trial, is fraud."""

WITHIN = hg.Time.minutes(1)
"""How soon after the trial."""

DISORDER = hg.Time.seconds(5)
"""How much later than others a payment may come."""


class Payment(NamedTuple):
    """Somebody pays with a card."""

    card: str
    at: int  # milliseconds since 1970
    cents: int


class Alert(NamedTuple):
    """Something to look into."""

    card: str
    at: int  # of the payment that it is about
    kind: str  # "fraud", or "trial" of which nothing came


TRIALS: hg.OutputTag[Alert] = hg.OutputTag("trials", Alert)
"""The side output for trials of which nothing came: of interest, but not urgent."""


def payments(count: int = 5_000, seed: int = 1) -> list[Payment]:
    """Some payments, about in the order of their times."""
    rng = random.Random(seed)
    made = []
    for n in range(count):
        cents = rng.choice([rng.randrange(1, SMALL), rng.randrange(SMALL, LARGE), rng.randrange(LARGE, 4 * LARGE)])
        made.append(Payment(f"card-{rng.randrange(50)}", 1_750_000_000_000 + 400 * n + rng.randrange(DISORDER), cents))
    return made


class FraudDetector(hg.KeyedProcessFunction[str, Payment, Alert]):
    """Looks at the payments of each card, one after the other."""

    def open(self, context: hg.RuntimeContext) -> None:
        """State belongs to the card whose payment, or timer, is at hand."""
        self.waiting = context.get_list_state("waiting")  # payments that an earlier one may still overtake
        self.trial = context.get_state("trial")  # when the card was tried, if that was the last payment

    def process_element(self, value: Payment, ctx: hg.KeyedProcessFunction.Context) -> None:
        """Wait until all payments up to this one are here."""
        self.waiting.add(value)
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, ctx: hg.KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """The watermark has come to a payment, or to the end of a trial's minute: all payments up to then are here."""
        waiting = self.waiting.get()
        self.waiting.update([payment for payment in waiting if payment.at > timestamp])
        for payment in sorted(payment for payment in waiting if payment.at <= timestamp):
            tried_at = self.trial.value()
            if tried_at is not None:  # this is the payment after the trial
                self.trial.clear()
                if payment.cents > LARGE:
                    yield Alert(payment.card, payment.at, "fraud")
            if payment.cents < SMALL:
                self.trial.update(payment.at)
                ctx.timer_service().register_event_time_timer(payment.at + WITHIN)
        tried_at = self.trial.value()
        if tried_at is not None and timestamp >= tried_at + WITHIN:
            self.trial.clear()
            yield TRIALS, Alert(ctx.get_current_key(), tried_at, "trial")


def main(env: hg.StreamExecutionEnvironment | None = None, paid: Iterable[Payment] | None = None) -> list[Alert]:
    """Find what is suspicious about some payments, by card and time.

    >>> paid = [Payment("a", 1_000, 5), Payment("a", 9_000, 99_900), Payment("b", 2_000, 5), Payment("b", 90_000, 500)]
    >>> for alert in main(hg.environment(local=True, parallelism=2), paid):
    ...     print(alert)
    Alert(card='a', at=9000, kind='fraud')
    Alert(card='b', at=2000, kind='trial')
    """
    env = env or hg.environment()
    strategy = hg.WatermarkStrategy.for_bounded_out_of_orderness(DISORDER)
    event_time = strategy.with_timestamp_assigner(lambda paid: paid.at)
    frauds = (
        env.from_collection(payments() if paid is None else paid, type_info=Payment)
        .assign_timestamps_and_watermarks(event_time)
        .key_by(lambda payment: payment.card)
        .process(FraudDetector(), output_type=Alert)
    )
    alerts = frauds.union(frauds.get_side_output(TRIALS))
    return sorted(alerts.execute_and_collect("fraud"))


if __name__ == "__main__":
    found = main()
    for alert in found[:10]:
        print(f"{alert.card:8} {alert.at} {alert.kind}")
    print(f"... {len(found)} alerts")
