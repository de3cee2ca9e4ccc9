"""DataFrame in, pipeline, DataFrame out, Parquet: the mean and the highest level of each river gauge, hour by hour.

    $ python -m headgate.examples.dataframe_to_parquet [directory]

Shows: a Spark DataFrame as a source (Arrow batches, read in the executors), a function for whole batches with pyarrow,
rows where code is simpler row by row, and a DataFrame of the results. Needs Spark.
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


class GaugeReading(NamedTuple):
    """A reading of a river gauge."""

    gauge: str
    at: int  # milliseconds since 1970
    millimetres: int


class Hour(NamedTuple):
    """The readings of a gauge in an hour."""

    gauge: str
    hour: int  # its first millisecond
    readings: int
    mean: float
    highest: int


def readings(spark: SparkSession, count: int = 20_000) -> DataFrame:
    """Return readings of seven gauges, one every four seconds; -1 is an error of the gauge."""
    return spark.range(count).selectExpr(
        "concat('gauge-', id % 7) as gauge",
        "1750000000000 + id * 4000 as at",
        "if(id % 97 = 0, -1, cast(1500 + 400 * sin(id / 900) + 100 * (id % 7) as long)) as millimetres",
    )


def valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the valid rows of a batch, without a Python object for each row."""
    import pyarrow.compute as pc  # noqa: PLC0415 - in the worker

    return batch.filter(pc.greater_equal(batch["millimetres"], 0))


class LevelSummary(hg.AggregateFunction[GaugeReading, Any, Any]):
    """Number, sum and maximum of the readings of an hour; sums of integers do not depend on their order."""

    def create_accumulator(self) -> tuple[int, int, int]:
        """Return the state without readings."""
        return 0, 0, 0

    def add(self, value: GaugeReading, accumulator: tuple[int, int, int]) -> tuple[int, int, int]:
        """Add a reading."""
        count, total, highest = accumulator
        return count + 1, total + value.millimetres, max(highest, value.millimetres)

    def get_result(self, accumulator: tuple[int, int, int]) -> tuple[int, float, int]:
        """Return number, mean and maximum."""
        count, total, highest = accumulator
        return count, total / count, highest


def hour(gauge: str, window: hg.TimeWindow, levels: list[tuple[int, float, int]]) -> list[Hour]:
    """Return the result of an hour, with its gauge and time."""
    return [Hour(gauge, window.start, *one) for one in levels]


def hourly(batches: hg.DataStream[pa.RecordBatch]) -> hg.DataStream[Hour]:
    """Return the hours of batches of readings: Arrow batches first, then rows."""
    # Partitions of a DataFrame are in no order, so no watermark is right before all of them are read: the windows of
    # this bounded input are emitted at its end.
    event_time = hg.WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda reading: reading.at)
    return (
        batches.map_batches(valid, form="arrow")
        .from_arrow()
        .map(lambda row: GaugeReading(*row), output_type=GaugeReading)
        .assign_timestamps_and_watermarks(event_time)
        .key_by(lambda reading: reading.gauge)
        .window(hg.TumblingEventTimeWindows.of(HOUR))
        .aggregate(LevelSummary(), hour)
    )


def main(
    env: hg.StreamExecutionEnvironment | None = None, path: str | None = None, frame: DataFrame | None = None
) -> list[Hour]:
    """Write the hours of some readings to Parquet, and read them again."""
    env = env or hg.environment()
    hours = hourly(env.from_dataframe(readings(env.spark) if frame is None else frame, form="arrow"))
    # The pipeline runs when the DataFrame is used, here by the writer.
    written = hours.to_dataframe("gauge string, hour long, readings long, mean double, highest long")
    with tempfile.TemporaryDirectory(prefix="headgate-") as temporary:
        target = path or f"{temporary}/hours"
        written.write.mode("overwrite").parquet(target)
        return sorted(Hour(*row) for row in env.spark.read.parquet(target).collect())


if __name__ == "__main__":
    for one in main(path=sys.argv[1] if len(sys.argv) > 1 else None)[:10]:
        print(f"{one.gauge} {one.hour} {one.readings:4} readings, mean {one.mean:7.1f} mm, highest {one.highest} mm")
