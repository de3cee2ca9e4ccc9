"""Fraud: a card is tried with a very small payment, and a large one follows within a minute.

    $ python -m headgate.examples.fraud_timers

Shows: a `KeyedProcessFunction` with state of each key and event-time timers, and a side output.

The payments of a card arrive from several sources in parallel, in any order. The function keeps each until the
watermark has passed it: a timer fires, and no earlier payment can arrive. It then checks payments in the order of their
times. So the answer does not depend on the number and the speed of subtasks.
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
"""A large payment this soon after the trial is fraud."""

DISORDER = hg.Time.seconds(5)
"""A payment may arrive this much later than a newer one."""


class Payment(NamedTuple):
    """A payment with a card."""

    card: str
    at: int  # milliseconds since 1970
    cents: int


class Alert(NamedTuple):
    """A suspicious payment."""

    card: str
    at: int  # of the payment
    kind: str  # "fraud", or "trial" without a large payment after it


TRIALS: hg.OutputTag[Alert] = hg.OutputTag("trials", Alert)
"""The side output for trials without a large payment: interesting, but not urgent."""


def payments(count: int = 5_000, seed: int = 1) -> list[Payment]:
    """Return payments, roughly in the order of their times."""
    rng = random.Random(seed)
    made = []
    for n in range(count):
        cents = rng.choice([rng.randrange(1, SMALL), rng.randrange(SMALL, LARGE), rng.randrange(LARGE, 4 * LARGE)])
        made.append(Payment(f"card-{rng.randrange(50)}", 1_750_000_000_000 + 400 * n + rng.randrange(DISORDER), cents))
    return made


class FraudDetector(hg.KeyedProcessFunction[str, Payment, Alert]):
    """Checks the payments of each card, in the order of their times."""

    def open(self, context: hg.RuntimeContext) -> None:
        """Get the state of the current card: the card of the current payment or timer."""
        self.waiting = context.get_list_state("waiting")  # payments before which an earlier one may still arrive
        self.trial = context.get_state("trial")  # when the card was tried, if that was the last payment

    def process_element(self, value: Payment, ctx: hg.KeyedProcessFunction.Context) -> None:
        """Keep the payment until all earlier ones have arrived."""
        self.waiting.add(value)
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, ctx: hg.KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Check the payments up to `timestamp`: the watermark has passed it, so all of them have arrived."""
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
    """Return the suspicious payments, by card and time.

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
