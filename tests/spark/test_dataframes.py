"""DataFrames into pipelines and out of them."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import headgate as hg
from headgate.errors import ConfigError
from headgate.spark import SparkHost
from headgate.spark.dataframe import DataFrameSource, _partitions


@pytest.fixture
def host(spark: SparkSession) -> SparkHost:
    return SparkHost(spark)


def as_dataframe(host: SparkHost, build, schema: str, *, streamed: bool = False) -> DataFrame:
    env = hg.environment(host=host, parallelism=2)
    sink = host.dataframe_sink(schema)
    build(env).sink_to(sink)
    return host.to_dataframe(env._plan(env._graph.nodes(), "rows"), sink, streamed=streamed)


@pytest.mark.parametrize(
    ("form", "number"),
    [("tuple", lambda row: row[0]), ("dict", lambda row: row["id"]), ("row", lambda row: row.id)],
)
def test_rows_come_in_every_form(host: SparkHost, spark: SparkSession, form: str, number) -> None:
    env = hg.environment(host=host, parallelism=2)
    rows = env.from_source(DataFrameSource(spark.range(1000), form)).map(number)
    assert sorted(rows.execute_and_collect()) == list(range(1000))


def test_arrow_batches_come_as_they_are(host: SparkHost, spark: SparkSession) -> None:
    env = hg.environment(host=host, parallelism=2)
    batches = env.from_source(DataFrameSource(spark.range(1000), "arrow"))
    assert sum(batch.num_rows for batch in batches.execute_and_collect()) == 1000


def test_partitions_are_read_where_they_are(spark: SparkSession) -> None:
    frame = spark.range(0, 10, 1, 2).where("id > 3").selectExpr("id + 1 as n")
    assert _partitions(frame) == 2
    assert _partitions(spark.range(0, 10, 1, 3)) == 3
    assert _partitions(frame.repartition(2)) is None, "known when it runs"
    assert _partitions(frame.union(frame)) is None, "no barrier stage may contain it"


def test_several_dataframes_in_one_pipeline(host: SparkHost, spark: SparkSession) -> None:
    def build(env):
        left = env.from_source(DataFrameSource(spark.range(0, 5000, 1, 3))).map(lambda row: ("left", row[0]))
        right = env.from_source(DataFrameSource(spark.range(300), "dict")).map(lambda row: ("right", row["id"]))
        return left.union(right).key_by(lambda pair: pair[0]).sum(1)

    sums = as_dataframe(host, build, "side string, total long").groupBy("side").max("total").collect()
    assert {row[0]: row[1] for row in sums} == {"left": sum(range(5000)), "right": sum(range(300))}


def test_an_unknown_form_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="tuple, dict, row, arrow, not as 'list'"):
        DataFrameSource(spark.range(1), "list")


def test_a_dataframe_is_computed_anew_each_time(host: SparkHost, tmp_path: Path) -> None:
    def build(env):
        return env.from_collection(range(50)).map(lambda n: (n, str(n)))

    frame = as_dataframe(host, build, "n long, s string")
    assert frame.schema.simpleString() == "struct<n:bigint,s:string>"
    assert frame.count() == 50
    assert sorted(row.n for row in frame.collect()) == list(range(50))
    assert len(frame.limit(3).collect()) == 3
    assert frame.union(frame).count() == 100
    frame.write.parquet(str(tmp_path / "out"))
    assert frame.sparkSession.read.parquet(str(tmp_path / "out")).count() == 50


def test_streamed_rows_and_record_batches(host: SparkHost, spark: SparkSession) -> None:
    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([2 * n for n in batch.column(0).to_pylist()])], names=["n"])

    def build(env):
        return env.from_source(DataFrameSource(spark.range(100), "arrow")).map_batches(double, form="arrow")

    rows = as_dataframe(host, build, "n long", streamed=True).collect()
    assert sorted(row.n for row in rows) == list(range(0, 200, 2))


def test_a_failure_of_the_user_fails_the_query(host: SparkHost) -> None:
    frame = as_dataframe(host, lambda env: env.from_collection([1, 0]).map(lambda n: (1 // n,)), "n long")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        frame.collect()
    wrong = as_dataframe(host, lambda env: env.from_collection([(1, 2)]), "n long")
    with pytest.raises(Exception, match="a record has 2 values"):
        wrong.collect()


def test_a_sink_in_the_driver_is_refused_in_a_dataframe(host: SparkHost) -> None:
    def build(env):
        stream = env.from_collection([1])
        stream.print()
        return stream

    with pytest.raises(ConfigError, match="runs without the driver, where print would be"):
        as_dataframe(host, build, "n long")


def test_no_schema_is_refused(host: SparkHost) -> None:
    for schema in ("word strong", None):
        with pytest.raises(ConfigError, match="schema"):
            host.dataframe_sink(schema)
