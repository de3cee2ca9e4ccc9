"""Every example on Spark finds what plain Python, or plain PySpark, finds."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as f
from tests.examples import answers
from tests.examples.conftest import tiny_buffers

import headgate as hg
from headgate.examples import (
    async_enrichment,
    click_sessions,
    dataframe_to_parquet,
    fraud_timers,
    streaming_join,
    word_count,
)
from headgate.spark.session import slots

pytestmark = pytest.mark.timeout(300)  # some start a session


@pytest.fixture(params=["default", "tiny"])
def buffers(request):
    return request.param


@pytest.fixture(params=[1, 2, 4])
def env(request, spark, buffers):
    if (there := slots(spark) or 0) < request.param:
        pytest.skip(f"{request.param} workers need as many slots, and this session has {there}")
    settings = tiny_buffers(request.param) if buffers == "tiny" else {}
    return hg.environment(spark, parallelism=request.param, settings=settings)


def test_words_are_counted(env, spark):
    lines = spark.createDataFrame([(line,) for line in word_count.text()], "line string")
    words = lines.select(f.explode(f.regexp_extract_all(f.lower("line"), f.lit("[a-z]+"), f.lit(0))).alias("word"))
    assert word_count.main(env) == {row.word: row["count"] for row in words.groupBy("word").count().collect()}


def test_sessions_are_found(env):
    assert click_sessions.main(env) == answers.click_sessions(click_sessions.clicks())


def test_adverts_and_clicks_are_joined(env):
    assert streaming_join.main(env) == answers.hits(*streaming_join.adverts())


def test_frauds_and_trials_are_found(env):
    assert fraud_timers.main(env) == answers.alerts(fraud_timers.payments())


def test_orders_get_their_cities(env):
    orders = [async_enrichment.Order(n, n % 30) for n in range(400)]
    cities = async_enrichment.CITIES
    expected = [async_enrichment.Shipment(n, n % 30, cities[n % 30 % len(cities)]) for n in range(400)]
    assert async_enrichment.main(env, orders) == expected


def test_a_dataframe_becomes_parquet(env, spark, tmp_path):
    hour = f.expr("at - at % 3600000").alias("hour")
    hours = dataframe_to_parquet.readings(spark).where("millimetres >= 0").groupBy("gauge", hour)
    aggregated = hours.agg(f.count("*"), f.avg("millimetres"), f.max("millimetres"))
    expected = sorted(map(tuple, aggregated.collect()))
    assert dataframe_to_parquet.main(env, str(tmp_path / "hours")) == expected
    assert len(expected) > 100
    assert list((tmp_path / "hours").glob("*.parquet"))


def test_a_dataframe_in_any_order_becomes_the_same(env, spark):
    shuffled = dataframe_to_parquet.readings(spark, 5_000).orderBy(f.hash("at")).repartition(5)
    assert dataframe_to_parquet.main(env, frame=shuffled) == dataframe_to_parquet.main(
        env, frame=dataframe_to_parquet.readings(spark, 5_000)
    )


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("fraud_timers", "alerts"),
        ("dataframe_to_parquet", "readings, mean"),
    ],
)
def test_it_runs_as_a_script_without_an_environment(module, line):
    """In a process of its own: classes and functions are then those of `__main__`, and Spark is started by headgate."""
    command = [sys.executable, "-m", f"headgate.examples.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
