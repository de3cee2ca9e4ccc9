"""A pipeline as a DataFrame: whenever Spark computes it the pipeline runs, and its records are the rows.

The DataFrame is one barrier stage that needs nothing of the driver: the task of worker 0 has the coordinator, and tells
the other tasks by Spark's `allGather` where it is. So each evaluation is a run of its own, with its own secret, and
nothing is kept in the driver for a DataFrame that nobody computes. In a worker, a `DataFrameSink` puts Arrow batches
into a bounded queue (`worker.feeds`) that Spark's thread drains: a reader that is slow holds the pipeline back.

In BATCH nothing is tried again here, for Spark may have used rows that a failed region gave out: it fails, and Spark
computes the stage again if it can.
"""

from __future__ import annotations

import base64
import secrets
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headgate.coordinator import JobStatus
from headgate.coordinator.batch_coordinator import coordinator_for
from headgate.errors import Cancelled, ConfigError, HeadgateError, SerializationError
from headgate.ids import AttemptId, JobId
from headgate.net import Authority
from headgate.spark.tasks import LOOPBACK, Errand, task_host
from headgate.task.sink import Sink
from headgate.wire.handshake import SECRET_BYTES
from headgate.worker.feeds import Outlet, feeding, outlet, outlet_of
from headgate.worker.link import COORDINATOR
from headgate.worker.run import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from headgate.coordinator import Coordinator
    from headgate.graph.plan import Plan
    from headgate.spark.closure import Parcel
    from headgate.task.operator import Place

__all__ = ["DataFrameSink", "pipeline_function"]

_GOODBYE_S = 2.0
_REGISTER_S = 60.0  # all tasks of a barrier stage are there at once
_STOP_S = 6.0
_OUTPUT_ROWS = 10_000


class DataFrameSink(Sink[Any]):
    """Makes rows of records: tuples in the order of the schema, dicts, objects with its names, or Arrow batches.

    >>> import pyarrow as pa
    >>> sink = DataFrameSink(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    >>> sink.batch([("to", 2), {"word": "be"}]).to_pylist()
    [{'word': 'to', 'n': 2}, {'word': 'be', 'n': None}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.name = f"rows-{secrets.token_hex(8)}"
        self.schema = schema
        self._outlet: Outlet | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_outlet": None}

    def open(self, place: Place) -> None:  # noqa: ARG002 - there is one queue in a worker
        """Find the queue."""
        self._outlet = outlet_of(self.name)

    def write(self, values: list[Any]) -> None:
        """Hand batches to Spark; waits while it is slow."""
        assert self._outlet is not None, "it was opened"
        import pyarrow as pa  # noqa: PLC0415 - not before it is used

        if values and isinstance(values[0], pa.RecordBatch):
            for value in values:
                self._outlet.put(self._fitted(value))
            return
        for begin in range(0, len(values), _OUTPUT_ROWS):
            self._outlet.put(self.batch(values[begin : begin + _OUTPUT_ROWS]))

    def batch(self, values: list[Any]) -> pa.RecordBatch:
        """Records as one Arrow batch.

        Raises:
            SerializationError: one does not fit the schema.
        """
        import pyarrow as pa  # noqa: PLC0415 - not before it is used

        names = self.schema.names
        rows = [self._row(value, names) for value in values]
        try:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, type=field.type) for field, column in zip(self.schema, columns, strict=True)]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SerializationError(
                f"a record does not fit the DataFrame's schema ({self._said()}): {error}"
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _row(self, value: Any, names: list[str]) -> tuple[Any, ...]:
        if isinstance(value, tuple | list):
            if len(value) != len(names):
                raise SerializationError(
                    f"a record has {len(value)} values, the DataFrame's schema {len(names)} columns ({self._said()})"
                )
            return tuple(value)
        if isinstance(value, dict):
            return tuple(map(value.get, names))
        if len(names) == 1 and not hasattr(value, names[0]):
            return (value,)
        try:
            return tuple(getattr(value, name) for name in names)
        except AttributeError as error:
            raise SerializationError(
                f"a record of type {type(value).__name__} is no row of the DataFrame ({self._said()}): {error}; "
                "give tuples, dicts, or objects with these names"
            ) from error

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - not before it is used

        if batch.schema.equals(self.schema):
            return batch
        try:
            return batch.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, KeyError) as error:
            raise SerializationError(
                f"a record batch does not fit the DataFrame's schema ({self._said()}): {error}"
            ) from error

    def _said(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in self.schema)


def pipeline_function(
    parcel: Parcel, *, loopback: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark calls in each task of the stage.

    >>> from headgate.spark.closure import pack
    >>> callable(pipeline_function(pack("a plan", same_machine=True), loopback=True))
    True
    """

    def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headgate.spark.frame_sink import run_pipeline  # noqa: PLC0415 - it runs elsewhere

        return run_pipeline(parcel, batches, loopback=loopback)

    return compute


def run_pipeline(parcel: Parcel, batches: Iterator[pa.RecordBatch], *, loopback: bool) -> Iterator[pa.RecordBatch]:
    """Run the worker of this Spark task, and give out its rows as they come."""
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - only in a Spark task

    from headgate.spark.closure import cloudpickle  # noqa: PLC0415

    task = BarrierTaskContext.get()
    index = task.partitionId()
    plan, sources, sink = parcel.open()
    bind_host = LOOPBACK if loopback else task_host(index)
    coordinator, said = None, ""
    if index == 0:
        coordinator, errand = _coordinate(plan, bind_host, loopback=loopback)
        said = base64.b64encode(cloudpickle.dumps(errand)).decode("ascii")
    try:
        errand = cloudpickle.loads(base64.b64decode(task.allGather(said)[0]))
        plan = replace(plan, job=errand.job)
        with outlet(sink) as rows, feeding(sources, batches, in_turn=plan.batch):
            yield from _compute(plan, index, errand, bind_host, rows)
        if coordinator is not None:
            coordinator.job.wait(_STOP_S)
            if coordinator.job.status is not JobStatus.FINISHED:
                raise coordinator.job.exception or Cancelled(f"the pipeline is {coordinator.job.status}")
    finally:
        if coordinator is not None:
            coordinator.close()


def _coordinate(plan: Plan, bind_host: str, *, loopback: bool) -> tuple[Coordinator, Errand]:
    """The coordinator of this run, in the task of worker 0. Runs that Spark repeats differ by their secret and name."""
    secret, attempt = secrets.token_bytes(SECRET_BYTES), AttemptId(1)
    plan = replace(plan, job=JobId(f"{plan.job}-{secrets.token_hex(4)}"))  # so do their files in BATCH
    credentials = None
    if not loopback:
        authority = Authority(plan.job, datetime.now(UTC))
        credentials = {number: authority.issue(number) for number in (*range(plan.workers), COORDINATOR)}
    coordinator = coordinator_for(
        plan,
        secret,
        attempt,
        renews=False,
        attempts=1,
        credentials=None if credentials is None else credentials.pop(COORDINATOR),
        bind_host=bind_host,
        registration_timeout_s=_REGISTER_S,
        goodbye_timeout_s=_GOODBYE_S,
    )
    return coordinator, Errand(coordinator.start(), attempt, secret, credentials, plan.job)


def _compute(plan: Plan, index: int, errand: Errand, bind_host: str, rows: Outlet) -> Iterator[pa.RecordBatch]:
    """Run the worker in a thread, and drain its rows meanwhile."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run_worker(
                plan,
                index,
                errand.attempt,
                errand.secret,
                errand.coordinator,
                bind_host=bind_host,
                credentials=None if errand.credentials is None else errand.credentials[index],
            )
        except BaseException as error:  # noqa: BLE001 - raised again in Spark's thread
            errors.append(error)
        finally:
            rows.end()

    thread = threading.Thread(target=work, name=f"headgate-worker-{index}", daemon=True)
    thread.start()
    try:
        while not rows.ended:
            batch = rows.take(None)
            if batch is not None:
                yield batch
    finally:
        rows.close()
        thread.join(_STOP_S)
    if errors:
        raise errors[0]
    if thread.is_alive():
        raise HeadgateError(f"worker {index} did not end")


def arrow_schema(schema: Any) -> tuple[Any, pa.Schema]:
    """A Spark schema, given as one or as DDL, and the Arrow schema of its batches.

    Raises:
        ConfigError: it is none.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - only where it is asked for
    from pyspark.sql.types import StructType, _parse_datatype_string  # noqa: PLC0415

    try:
        spark_schema = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise ConfigError(f"to_dataframe: {schema!r} is no schema: {str(error).splitlines()[0]}") from error
    if not isinstance(spark_schema, StructType):
        raise ConfigError(f"to_dataframe wants a schema such as 'word string, n long', not {schema!r}")
    return spark_schema, to_arrow_schema(spark_schema, timezone="UTC")
