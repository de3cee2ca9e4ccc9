"""DataFrame in, pipeline, DataFrame out, Parquet: the mean and the highest level of each river gauge, hour by hour.

    $ python -m headgate.examples.dataframe_to_parquet [directory]

Shows: a Spark DataFrame as a source (Arrow batches, read in the executors where they are), a function for whole batches
with pyarrow, rows for what is easier row by row, and a DataFrame of the results. Needs Spark.
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

import headgate as hg

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

HOUR = hg.Time.hours(1)


class Reading(NamedTuple):
    """What a gauge in a river says."""

    gauge: str
    at: int  # milliseconds since 1970
    millimetres: int


class Hour(NamedTuple):
    """What a gauge said in an hour."""

    gauge: str
    hour: int  # its first millisecond
    readings: int
    mean: float
    highest: int


def readings(spark: SparkSession, count: int = 20_000) -> DataFrame:
    """Readings of seven gauges, one in four seconds; a broken gauge says -1."""
    return spark.range(count).selectExpr(
        "concat('gauge-', id % 7) as gauge",
        "1750000000000 + id * 4000 as at",
        "if(id % 97 = 0, -1, cast(1500 + 400 * sin(id / 900) + 100 * (id % 7) as long)) as millimetres",
    )


def valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A whole batch at a time, without a Python object for any row."""
    import pyarrow.compute as pc  # noqa: PLC0415 - in the worker

    return batch.filter(pc.greater_equal(batch["millimetres"], 0))


class Levels(hg.AggregateFunction[Reading, Any, Any]):
    """Number, sum and maximum of the readings of an hour; in whole millimetres, so that their order does not matter."""

    def create_accumulator(self) -> tuple[int, int, int]:
        """Nothing yet."""
        return 0, 0, 0

    def add(self, value: Reading, accumulator: tuple[int, int, int]) -> tuple[int, int, int]:
        """One reading more."""
        count, total, highest = accumulator
        return count + 1, total + value.millimetres, max(highest, value.millimetres)

    def get_result(self, accumulator: tuple[int, int, int]) -> tuple[int, float, int]:
        """With the mean in place of the sum."""
        count, total, highest = accumulator
        return count, total / count, highest


def hour(gauge: str, window: hg.TimeWindow, levels: list[tuple[int, float, int]]) -> list[Hour]:
    """The result of an hour, with its gauge and time."""
    return [Hour(gauge, window.start, *one) for one in levels]


def hourly(batches: hg.DataStream[pa.RecordBatch]) -> hg.DataStream[Hour]:
    """The hours of batches of readings: from Arrow, for what is done to many rows alike, to rows, for the rest."""
    # Partitions of a DataFrame have no order among them, so no watermark is right before all of them are read:
    # the windows of this bounded input are given out at its end.
    event_time = hg.WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda reading: reading.at)
    return (
        batches.map_batches(valid, form="arrow")
        .from_arrow()
        .map(lambda row: Reading(*row), output_type=Reading)
        .assign_timestamps_and_watermarks(event_time)
        .key_by(lambda reading: reading.gauge)
        .window(hg.TumblingEventTimeWindows.of(HOUR))
        .aggregate(Levels(), hour)
    )


def main(
    env: hg.StreamExecutionEnvironment | None = None, path: str | None = None, frame: DataFrame | None = None
) -> list[Hour]:
    """Write the hours of some readings to Parquet, and read them again."""
    env = env or hg.environment()
    hours = hourly(env.from_dataframe(readings(env.spark) if frame is None else frame, form="arrow"))
    # A DataFrame like any other: the pipeline runs when it is used, here by the writer.
    written = hours.to_dataframe("gauge string, hour long, readings long, mean double, highest long")
    with tempfile.TemporaryDirectory(prefix="headgate-") as temporary:
        target = path or f"{temporary}/hours"
        written.write.mode("overwrite").parquet(target)
        return sorted(Hour(*row) for row in env.spark.read.parquet(target).collect())


if __name__ == "__main__":
    for one in main(path=sys.argv[1] if len(sys.argv) > 1 else None)[:10]:
        print(f"{one.gauge} {one.hour} {one.readings:4} readings, mean {one.mean:7.1f} mm, highest {one.highest} mm")
