"""A pipeline as a DataFrame: the pipeline runs whenever Spark computes the DataFrame, and its records are the rows.

The DataFrame is one barrier stage that needs nothing of the driver: the task of worker 0 runs the coordinator, and
sends its address to the other tasks by Spark's `allGather`. So each evaluation is a run with its own secret, and the
driver keeps nothing for a DataFrame that is never computed. In a worker, a `DataFrameSink` puts Arrow batches
into a bounded queue (`batch_queues`) that Spark's thread drains: a slow reader back-pressures the pipeline.

In BATCH no region runs again here, because Spark may have used rows of the failed run: the stage fails, and Spark
computes it again if it can.
"""

from __future__ import annotations

import base64
import secrets
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headgate.control.link import COORDINATOR
from headgate.coordinator import JobStatus
from headgate.coordinator.batch import coordinator_for
from headgate.errors import Cancelled, ConfigError, HeadgateError, SerializationError
from headgate.functions.sink import Sink
from headgate.ids import AttemptId, JobId
from headgate.net import Authority
from headgate.spark.batch_queues import BatchQueue, filling_source_queues, open_sink_queue, sink_queue
from headgate.spark.tasks import LOOPBACK, WorkerAssignment, task_host
from headgate.wire.handshake import SECRET_BYTES
from headgate.worker.run import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from headgate.coordinator import Coordinator
    from headgate.functions.place import Place
    from headgate.graph.plan import Plan
    from headgate.spark.closure import PackedPlan

__all__ = ["DataFrameSink", "pipeline_function"]

_GOODBYE_S = 2.0
_REGISTER_S = 60.0  # all tasks of a barrier stage start together
_STOP_S = 6.0
_OUTPUT_ROWS = 10_000


class DataFrameSink(Sink[Any]):
    """Makes rows from records: tuples in the order of the schema, dicts, objects with its names, or Arrow batches.

    >>> import pyarrow as pa
    >>> sink = DataFrameSink(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    >>> sink.batch([("to", 2), {"word": "be"}]).to_pylist()
    [{'word': 'to', 'n': 2}, {'word': 'be', 'n': None}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.name = f"rows-{secrets.token_hex(8)}"
        self.schema = schema
        self._queue: BatchQueue | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_queue": None}

    def open(self, place: Place) -> None:  # noqa: ARG002 - a worker has one queue
        """Find the queue."""
        self._queue = sink_queue(self.name)

    def write(self, values: list[Any]) -> None:
        """Put batches into the queue; block while it is full."""
        assert self._queue is not None, "open() was called"
        import pyarrow as pa  # noqa: PLC0415 - imported when first needed

        if values and isinstance(values[0], pa.RecordBatch):
            for value in values:
                self._queue.put(self._cast(value))
            return
        for begin in range(0, len(values), _OUTPUT_ROWS):
            self._queue.put(self.batch(values[begin : begin + _OUTPUT_ROWS]))

    def batch(self, values: list[Any]) -> pa.RecordBatch:
        """Return records as one Arrow batch.

        Raises:
            SerializationError: a record does not fit the schema.
        """
        import pyarrow as pa  # noqa: PLC0415 - imported when first needed

        names = self.schema.names
        rows = [self._row(value, names) for value in values]
        try:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, type=field.type) for field, column in zip(self.schema, columns, strict=True)]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SerializationError(
                f"a record does not fit the DataFrame's schema ({self._columns()}): {error}"
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _row(self, value: Any, names: list[str]) -> tuple[Any, ...]:
        if isinstance(value, tuple | list):
            if len(value) != len(names):
                raise SerializationError(
                    f"a record has {len(value)} values, the DataFrame's schema {len(names)} columns ({self._columns()})"
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
                f"a record of type {type(value).__name__} is no row of the DataFrame ({self._columns()}): {error}; "
                "give tuples, dicts, or objects with these names"
            ) from error

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - imported when first needed

        if batch.schema.equals(self.schema):
            return batch
        try:
            return batch.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, KeyError) as error:
            raise SerializationError(
                f"a record batch does not fit the DataFrame's schema ({self._columns()}): {error}"
            ) from error

    def _columns(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in self.schema)


def pipeline_function(
    packed: PackedPlan, *, loopback: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark calls in each task of the stage.

    >>> from headgate.spark.closure import pack
    >>> callable(pipeline_function(pack("a plan", same_machine=True), loopback=True))
    True
    """

    def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headgate.spark.frame_sink import run_pipeline  # noqa: PLC0415 - it runs in a Spark worker

        return run_pipeline(packed, batches, loopback=loopback)

    return compute


def run_pipeline(packed: PackedPlan, batches: Iterator[pa.RecordBatch], *, loopback: bool) -> Iterator[pa.RecordBatch]:
    """Run the worker of this Spark task, and yield its rows as they arrive."""
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - only in a Spark task

    from headgate.spark.closure import cloudpickle  # noqa: PLC0415

    task = BarrierTaskContext.get()
    index = task.partitionId()
    plan, sources, sink = packed.open()
    bind_host = LOOPBACK if loopback else task_host(index)
    coordinator, message = None, ""
    if index == 0:
        coordinator, assignment = _coordinate(plan, bind_host, loopback=loopback)
        message = base64.b64encode(cloudpickle.dumps(assignment)).decode("ascii")
    try:
        assignment = cloudpickle.loads(base64.b64decode(task.allGather(message)[0]))
        plan = replace(plan, job=assignment.job)
        with open_sink_queue(sink) as rows, filling_source_queues(sources, batches, in_turn=plan.batch):
            yield from _compute(plan, index, assignment, bind_host, rows)
        if coordinator is not None:
            coordinator.job.wait(_STOP_S)
            if coordinator.job.status is not JobStatus.FINISHED:
                raise coordinator.job.exception or Cancelled(f"the pipeline is {coordinator.job.status}")
    finally:
        if coordinator is not None:
            coordinator.close()


def _coordinate(plan: Plan, bind_host: str, *, loopback: bool) -> tuple[Coordinator, WorkerAssignment]:
    """Start the coordinator of this run, in the task of worker 0. A repeated run has another secret and name."""
    secret, attempt = secrets.token_bytes(SECRET_BYTES), AttemptId(1)
    plan = replace(plan, job=JobId(f"{plan.job}-{secrets.token_hex(4)}"))  # its files in BATCH have another name, too
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
    return coordinator, WorkerAssignment(coordinator.start(), attempt, secret, credentials, plan.job)


def _compute(
    plan: Plan, index: int, assignment: WorkerAssignment, bind_host: str, rows: BatchQueue
) -> Iterator[pa.RecordBatch]:
    """Run the worker in a thread, and yield its rows meanwhile."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run_worker(
                plan,
                index,
                assignment.attempt,
                assignment.secret,
                assignment.coordinator,
                bind_host=bind_host,
                credentials=None if assignment.credentials is None else assignment.credentials[index],
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
    """Return the Spark schema, given as such or as DDL, and the Arrow schema of its batches.

    Raises:
        ConfigError: it is not a schema.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - imported when first needed
    from pyspark.sql.types import StructType, _parse_datatype_string  # noqa: PLC0415

    try:
        spark_schema = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise ConfigError(f"to_dataframe: {schema!r} is no schema: {str(error).splitlines()[0]}") from error
    if not isinstance(spark_schema, StructType):
        raise ConfigError(f"to_dataframe wants a schema such as 'word string, n long', not {schema!r}")
    return spark_schema, to_arrow_schema(spark_schema, timezone="UTC")
