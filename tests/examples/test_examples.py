"""Every example returns the answer of plain Python, with any number of workers and buffers."""

import asyncio
import random

import pyarrow as pa
import pytest
from tests.examples import answers

import headgate as hg
from headgate.examples import (
    EXAMPLES,
    async_enrichment,
    click_sessions,
    dataframe_to_parquet,
    describe,
    fraud_timers,
    streaming_join,
    word_count,
)


def test_words_of_the_text_are_counted(env):
    assert word_count.main(env) == answers.word_counts(word_count.text())


def test_words_of_given_lines_are_counted(env):
    lines = ["", "the mill", "The  MILL-race", *["weir"] * 3_000]
    assert word_count.main(env, lines) == {"the": 2, "mill": 2, "race": 1, "weir": 3_000}


def test_sessions_are_found(env):
    clicks = click_sessions.clicks()
    found = click_sessions.main(env)
    assert found == answers.click_sessions(clicks)
    assert sum(session.clicks for session in found) == len(clicks)


def test_clicks_as_far_apart_as_the_gap_are_one_session(env):
    gap = int(click_sessions.GAP)
    times = [0, gap, 2 * gap + 1]
    clicks = [click_sessions.Click("ann", "/", at) for at in times]
    assert [(one.begin, one.end) for one in click_sessions.main(env, clicks)] == [(0, times[1]), (times[2], times[2])]


def test_adverts_and_clicks_are_joined(env):
    found = streaming_join.main(env)
    assert found == answers.hits(*streaming_join.adverts())
    assert len(found) > 100


def test_every_pair_is_joined(env):
    shown = [streaming_join.Impression(7, f"campaign-{n}", n) for n in range(30)]
    clicked = [streaming_join.Clicked(7, 100 + n) for n in range(20)]
    assert streaming_join.main(env, shown, clicked) == answers.hits(shown, clicked)


def test_frauds_and_trials_are_found(env):
    found = fraud_timers.main(env)
    assert found == answers.alerts(fraud_timers.payments())
    assert {alert.kind for alert in found} == {"fraud", "trial"}


def test_payments_at_the_limits(env):
    at, within = 1_000_000, int(fraud_timers.WITHIN)
    small, large = fraud_timers.SMALL - 1, fraud_timers.LARGE + 1
    cards = {
        "at the last moment": [(at, small), (at + within, large)],
        "a moment too late": [(at, small), (at + within + 1, large)],
        "not so small": [(at, small + 1), (at + 1, large)],
        "not so large": [(at, small), (at + 1, large - 1)],
        "at once": [(at, small), (at, large)],
        "one between": [(at, small), (at + 1, 5_000), (at + 2, large)],
        "two trials": [(at, small), (at + 1, small), (at + 2, large)],
    }
    paid = [fraud_timers.Payment(card, *payment) for card, own in cards.items() for payment in own]
    paid.sort(key=lambda payment: payment.at)
    found = fraud_timers.main(env, paid)
    assert found == answers.alerts(paid)
    assert {alert.card for alert in found if alert.kind == "fraud"} == {"at the last moment", "at once", "two trials"}


def test_the_order_of_arrival_does_not_matter(env):
    paid = fraud_timers.payments(500)
    paid.sort(key=lambda payment: payment.at + random.Random(payment.cents).randrange(fraud_timers.DISORDER))
    assert fraud_timers.main(env, paid) == answers.alerts(paid)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("capacity", [1, 100])
def test_orders_get_their_cities(env, ordered, capacity):
    orders = [async_enrichment.Order(n, n % 30) for n in range(400)]
    cities = async_enrichment.CITIES
    expected = [async_enrichment.Shipment(n, n % 30, cities[n % 30 % len(cities)]) for n in range(400)]
    assert async_enrichment.main(env, orders, capacity=capacity, ordered=ordered) == expected


def test_the_service_is_called_once_for_each_customer(monkeypatch):
    asked = []

    async def city_of(self, customer):
        asked.append(customer)
        await asyncio.sleep(0)
        return "Cork"

    monkeypatch.setattr(async_enrichment.Registry, "city_of", city_of)
    orders = [async_enrichment.Order(n, n % 3) for n in range(60)]
    assert len(async_enrichment.main(hg.environment(local=True, parallelism=1), orders)) == 60
    assert sorted(asked) == [0, 1, 2]


def test_readings_become_hours(env):
    """The pipeline between the DataFrames, with batches of our own in their place."""
    rng = random.Random(1)
    readings = [(f"gauge-{n % 7}", 1_000 * n, rng.choice([-1, rng.randrange(3_000)])) for n in range(20_000)]
    expected = []
    for (gauge, hour), own in answers.grouped(readings, lambda one: (one[0], one[1] // 3_600_000)).items():
        levels = [level for _, _, level in own if level >= 0]
        expected.append((gauge, hour * 3_600_000, len(levels), sum(levels) / len(levels), max(levels)))
    rng.shuffle(readings)
    columns = ["gauge", "at", "millimetres"]
    batches = [
        pa.record_batch([list(column) for column in zip(*readings[begin : begin + 300], strict=True)], columns)
        for begin in range(0, len(readings), 300)
    ]
    hours = dataframe_to_parquet.hourly(env.from_collection(batches, type_info=pa.RecordBatch))
    assert sorted(hours.execute_and_collect()) == sorted(expected)


def test_an_empty_input_has_an_empty_answer(env):
    assert word_count.main(env, []) == {}
    assert click_sessions.main(env, []) == []
    assert streaming_join.main(env, [], []) == []
    assert fraud_timers.main(env, []) == []
    assert async_enrichment.main(env, []) == []


def test_all_examples_have_a_description():
    for name in EXAMPLES:
        assert ":" in describe(name)
    assert len({describe(name) for name in EXAMPLES}) == len(EXAMPLES)


def test_the_text_is_long_enough_to_count():
    assert len(word_count.text()) > 150
    assert len(answers.word_counts(word_count.text())) > 500
