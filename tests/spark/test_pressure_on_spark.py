"""Looking at a job whose tasks are in other processes: the same answers as in threads."""

import time

import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate.coordinator import JobStatus
from headgate.observe import PressureLevel
from headgate.spark import SparkHost

MOST_S = 60.0


@pytest.mark.spec("B1")
def test_the_slow_function_and_its_back_pressured_producer_are_found(spark: SparkSession) -> None:
    def slow(n: int) -> int:
        time.sleep(0.02)
        return n

    settings = {"backpressure.samples": 20, "backpressure.delay": "10 ms"}
    env = hg.environment(host=SparkHost(spark), parallelism=2, settings=settings)
    env.generate(lambda n: n).rebalance().map(slow).for_each(lambda n: None)
    job = env.execute_async()
    try:
        deadline = time.monotonic() + MOST_S
        while job.status is JobStatus.CREATED or job.pressure(refresh=True).vertices[0].ratio < 1.0:
            assert time.monotonic() < deadline, job.view()
            time.sleep(0.05)
        source, sink = job.pressure().vertices
        assert (source.level, sink.level) == (PressureLevel.HIGH, PressureLevel.OK)
        for vertex in (source, sink):
            assert [task.subtask for task in vertex.subtasks] == [0, 1]
        line = slow.__code__.co_firstlineno + 1
        for task in sink.subtasks:
            seen = task.stacks[0]
            assert (seen.operator, seen.frames) == ("map(slow)", (f"slow (test_pressure_on_spark.py:{line})",))
    finally:
        assert job.cancel(timeout_s=MOST_S)
    assert job.pressure().vertices == (source, sink), "also when it is over"
