"""Every example on Spark, as a stream and as a batch, finds what a plain PySpark program finds in the same input.

The programs are written as somebody would who has Spark and no headgate: columns, joins, window functions, and Python
functions where the example is about those. Nothing of headgate is in them but the figures of the examples.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from tests.examples import answers

import headgate as hg
from headgate.bench.batch_words import count_by_headgate, count_by_spark, expected
from headgate.examples import (
    EXAMPLES,
    async_enrichment,
    click_sessions,
    dataframe_to_parquet,
    fraud_timers,
    streaming_join,
    word_count,
)
from headgate.examples.nexmark import queries, reference
from headgate.graph.plan import Plan
from headgate.spark import SparkHost

pytestmark = pytest.mark.timeout(300)  # the first test waits for the session

TEXT = word_count.text()[:60]
CLICKS = click_sessions.clicks(800)
SHOWN, CLICKED = streaming_join.adverts(500)
PAYMENTS = fraud_timers.payments(900)
ORDERS = [async_enrichment.Order(n, n * n % 31) for n in range(300)]
READINGS = 4_000
EVENTS = 2_500


def rows(frame: DataFrame) -> list[tuple]:
    return sorted(map(tuple, frame.collect()))


def counted_words(spark: SparkSession) -> list[tuple]:
    lines = spark.createDataFrame([(line,) for line in TEXT], "line string")
    words = lines.select(f.explode(f.regexp_extract_all(f.lower("line"), f.lit("[a-z]+"), f.lit(0))).alias("word"))
    return rows(words.groupBy("word").count())


def sessions(spark: SparkSession) -> list[tuple]:
    """A session begins where the click before it, if there is one, is longer ago than the gap."""
    clicks = spark.createDataFrame(CLICKS, "user string, page string, at long")
    by_time = Window.partitionBy("user").orderBy("at")
    begins = f.coalesce(f.col("at") - f.lag("at").over(by_time) > int(click_sessions.GAP), f.lit(True)).cast("int")
    so_far = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    numbered = clicks.withColumn("begins", begins).withColumn("session", f.sum("begins").over(so_far))
    pages = f.sort_array(f.collect_set("page")).alias("pages")
    found = numbered.groupBy("user", "session").agg(f.min("at"), f.max("at"), f.count("*"), pages)
    return sorted((user, begin, end, n, tuple(pages)) for user, _, begin, end, n, pages in found.collect())


def hits(spark: SparkSession) -> list[tuple]:
    shown = spark.createDataFrame(SHOWN, "advert long, campaign string, shown_at long")
    clicked = spark.createDataFrame(CLICKED, "advert long, clicked_at long")
    window = f"shown_at div {int(streaming_join.WINDOW)} = clicked_at div {int(streaming_join.WINDOW)}"
    after = f.expr("clicked_at - shown_at")
    return rows(shown.join(clicked, "advert").where(window).select("campaign", "advert", after))


def alerts(spark: SparkSession) -> list[tuple]:
    """A trial is judged by the payment that follows it."""
    payments = spark.createDataFrame(PAYMENTS, "card string, at long, cents long")
    by_time = Window.partitionBy("card").orderBy("at", "cents")
    following = payments.select("*", *(f.lead(name).over(by_time).alias(f"next_{name}") for name in ("at", "cents")))
    trials = following.where(f.col("cents") < fraud_timers.SMALL)
    nothing_came = f.coalesce(f.col("next_at") > f.col("at") + int(fraud_timers.WITHIN), f.lit(True))
    in_vain = trials.where(nothing_came).select("card", "at", f.lit("trial"))
    frauds = trials.where(~nothing_came & (f.col("next_cents") > fraud_timers.LARGE))
    return rows(in_vain.union(frauds.select("card", "next_at", f.lit("fraud"))))


def shipments(spark: SparkSession) -> list[tuple]:
    """The same questions to the same registry, a batch of rows at a time."""

    async def cities(customers: list[int]) -> list[str]:
        registry = async_enrichment.Registry()
        return await asyncio.gather(*map(registry.city_of, customers))

    def with_cities(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column("city", pa.array(asyncio.run(cities(batch["customer"].to_pylist()))))

    orders = spark.createDataFrame(ORDERS, "id long, customer long")
    return rows(orders.mapInArrow(with_cities, "id long, customer long, city string"))


def hours(spark: SparkSession) -> list[tuple]:
    hour = f.expr("at - at % 3600000").alias("hour")
    valid = dataframe_to_parquet.readings(spark, READINGS).where("millimetres >= 0").groupBy("gauge", hour)
    return rows(valid.agg(f.count("*"), f.avg("millimetres"), f.max("millimetres")))


@cache
def auction_house(spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
    return reference.frames(spark, EVENTS)


@dataclass(frozen=True)
class Example:
    """What is compared: the pipeline, the PySpark program, and plain Python where that has an answer."""

    name: str
    ours: Callable[[hg.StreamExecutionEnvironment], list[Any]]
    spark: Callable[[SparkSession], list[tuple]]
    python: Callable[[], list[Any]] | None = None

    def __str__(self) -> str:
        return self.name


def nexmark(query: int) -> Example:
    return Example(
        f"nexmark-{query}",
        lambda env: queries.main(env, query, EVENTS),
        lambda spark: rows(reference.QUERIES[query](*auction_house(spark))),
        lambda: answers.Nexmark(EVENTS).answer(query),
    )


ALL = [
    Example(
        "word_count",
        lambda env: sorted(word_count.main(env, TEXT).items()),
        counted_words,
        lambda: sorted(answers.word_counts(TEXT).items()),
    ),
    Example(
        "click_sessions",
        lambda env: click_sessions.main(env, CLICKS),
        sessions,
        lambda: answers.click_sessions(CLICKS),
    ),
    Example(
        "streaming_join",
        lambda env: streaming_join.main(env, SHOWN, CLICKED),
        hits,
        lambda: answers.hits(SHOWN, CLICKED),
    ),
    Example("fraud_timers", lambda env: fraud_timers.main(env, PAYMENTS), alerts, lambda: answers.alerts(PAYMENTS)),
    Example("async_enrichment", lambda env: async_enrichment.main(env, ORDERS), shipments),
    Example(
        "dataframe_to_parquet",
        lambda env: dataframe_to_parquet.main(env, frame=dataframe_to_parquet.readings(env.spark, READINGS)),
        hours,
    ),
    *map(nexmark, queries.QUERIES),
]


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> Callable[[Example], list[tuple]]:
    """What PySpark says, which is asked once for each example."""
    known: dict[str, list[tuple]] = {}

    def answer(example: Example) -> list[tuple]:
        if example.name not in known:
            known[example.name] = example.spark(spark)
        return known[example.name]

    return answer


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that Spark gets to run."""
    seen: list[Plan] = []

    def remembering(run: Callable[..., Any]) -> Callable[..., Any]:
        def remember(host: SparkHost, plan: Plan, *rest: Any, **named: Any) -> Any:
            seen.append(plan)
            return run(host, plan, *rest, **named)

        return remember

    for name in ("run", "to_dataframe"):
        monkeypatch.setattr(SparkHost, name, remembering(getattr(SparkHost, name)))
    return seen


def test_every_example_is_compared():
    assert {one.name.partition("-")[0] for one in ALL} == set(EXAMPLES)


@pytest.mark.parametrize("example", [one for one in ALL if one.python is not None], ids=str)
def test_plain_pyspark_and_plain_python_agree(plain, example):
    assert plain(example) == example.python()


# NEXMark in STREAMING is compared in test_nexmark_on_spark, in many ways.
RUNS = [(one, mode) for one in ALL for mode in ("STREAMING", "BATCH") if mode == "BATCH" or "nexmark" not in one.name]


@pytest.mark.spec("T4")
@pytest.mark.parametrize(("example", "mode"), RUNS, ids=str)
def test_headgate_and_plain_pyspark_agree(spark, plain, plans, example, mode):
    env = hg.environment(spark, parallelism=2, settings={"execution.runtime_mode": mode})
    assert list(map(tuple, example.ours(env))) == plain(example)
    assert len(plain(example)) > 0, "there is something to find"
    assert [plan.batch for plan in plans] == [mode == "BATCH"]


def test_the_word_counts_that_are_measured_agree(spark, tmp_path):
    make = partial(hg.environment, spark, parallelism=2)
    assert count_by_spark(spark, 401) == expected(401)
    assert count_by_headgate(make, "BATCH", str(tmp_path), 401) == expected(401)
