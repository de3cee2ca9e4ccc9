"""Runs a job's workers as the tasks of one Spark barrier stage, and its coordinator in the driver.

`run` returns at once. A job has two threads: one waits for Spark's job, the other for the coordinator's, and ends both
completely. If the plan has a vertex in the driver, a third thread runs that worker. A BATCH job that loses a worker
continues with another attempt: another Spark job, with other workers, started by the second thread when the one before
has ended completely.

How a job stops: the coordinator cancels all workers; Spark ends those that have not left after `_GOODBYE_S`. An error
that only Spark reports (a lost executor, code that cannot be loaded) is passed to the coordinator, so the job fails
with it unless a worker has reported a better reason.

Invariants: nothing is started unless there are slots for all workers, counting the other jobs of this session; after a
job's `wind_up` none of its threads, sockets or Spark tasks is left.
"""

from __future__ import annotations

import logging
import secrets
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from headgate.control.link import COORDINATOR
from headgate.coordinator import JobStatus
from headgate.coordinator.batch import coordinator_for
from headgate.errors import ConfigError, HeadgateError, TransportError
from headgate.graph.fitting import check_memory
from headgate.ids import AttemptId
from headgate.net import Address, Authority
from headgate.spark.closure import pack
from headgate.spark.dataframe import partition_for_workers, sources_of
from headgate.spark.failures import spark_failure, was_cancelled
from headgate.spark.frame_sink import DataFrameSink, arrow_schema, pipeline_function
from headgate.spark.session import (
    check_barrier,
    conf_of,
    is_connect,
    is_loopback,
    local_session,
    require_slots,
    slots,
    wait_for_slots,
)
from headgate.spark.tasks import LOOPBACK, WorkerAssignment, host_ip, worker_function
from headgate.wire.handshake import SECRET_BYTES
from headgate.worker.memory import expected_segments
from headgate.worker.run import run_worker
from headgate.worker.storage import open_job_storage, remove_job_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headgate.coordinator import Job
    from headgate.graph.plan import Plan
    from headgate.net import Credentials
    from headgate.worker.storage import Storage

__all__ = ["SparkHost"]

_log = logging.getLogger(__name__)

_FIRST: Final = AttemptId(1)
_GOODBYE_S: Final = 2.0  # Spark takes about 2.5 s more to end a worker: 5 s in all
_AFTER_END_S: Final = 3.0  # for Spark's job to end after the pipeline has finished
_AFTER_STOP_S: Final = 0.5  # for Spark's job to end after the pipeline was stopped
_INTERRUPT_S: Final = 0.2  # between interrupts: one that arrives before Spark's job has begun is lost
_FILES_S: Final = 5.0  # for Spark's Python workers to exit after Spark has reported their end
_WIND_UP_S: Final = 20.0
_REGISTER_S: Final = 120.0
_NO_LIMIT_S: Final = 30 * 86400.0  # Spark computes DataFrames before the workers start

_used: WeakKeyDictionary[Any, dict[_Run, int]] = WeakKeyDictionary()
_used_lock = threading.Lock()


class SparkHost:
    """Runs plans on a Spark session: the given one, or one on this machine.

    >>> SparkHost().name
    'spark'
    """

    name = "spark"

    def __init__(self, spark: SparkSession | None = None, *, master: str | None = None) -> None:
        self._spark = spark
        self._master = master

    def session(self, parallelism: int = 1) -> SparkSession:
        """Return the session; start one with so many slots if there is none."""
        if self._spark is None or _is_stopped(self._spark):
            self._spark = local_session(parallelism, master=self._master)
        return self._spark

    def spark_conf(self) -> dict[str, str]:
        """Return Spark's conf; it may contain headgate's settings."""
        spark = self._spark
        if spark is None:
            return {}
        if hasattr(spark.conf, "getAll"):
            every = spark.conf.getAll
            return dict(every() if callable(every) else every)
        return {}

    def default_parallelism(self) -> int:
        """Return the number of slots."""
        return max(1, slots(self.session()) or 1)

    def check(self, plan: Plan) -> None:
        """Raise if the workers cannot have enough memory for a plan. Starts Spark if necessary, but no worker.

        Workers on other machines are assumed to have `memory.network.max`. If they register with less, the coordinator
        fails the job before it deploys anything.

        Raises:
            InsufficientBuffers: The text has the sum and the smallest sufficient changes.
        """
        segments = expected_segments(plan)
        if not is_loopback(self.session(plan.workers)):
            memory = plan.settings.memory
            segments[: plan.workers] = [memory.network.max // memory.segment_size] * plan.workers
        check_memory(plan, segments)

    def run(self, plan: Plan) -> Job:
        """Start a job and return at once.

        Raises:
            ConfigError: there are too few slots, or the plan cannot be sent to workers.
        """
        spark = self.session(plan.workers)
        check_barrier(spark)
        run = _Run(spark, plan)
        with _used_lock:
            others = _used.setdefault(spark, {})
            busy = sum(others.values())
            others[run] = plan.workers
        try:
            require_slots(spark, plan.workers, busy=busy)
            return run.start()
        except BaseException:
            _forget(run)
            raise

    def dataframe_sink(self, schema: Any) -> DataFrameSink:
        """Return the sink of a pipeline that becomes a DataFrame.

        Args:
            schema: DDL such as "word string, n long", or a Spark schema.

        Raises:
            ConfigError: it is not a schema.
        """
        self.session()  # parses the DDL
        return DataFrameSink(arrow_schema(schema)[1])

    def to_dataframe(self, plan: Plan, sink: DataFrameSink, *, streamed: bool = False) -> DataFrame:
        """Return a plan that ends in this sink as a DataFrame: it runs whenever Spark computes the DataFrame.

        Args:
            plan: The pipeline; without vertices in the driver.
            sink: Its sink.
            streamed: Spark's next step reads rows while the pipeline runs. Spark can then compute the DataFrame only as
                a whole (write it, count it, collect it): `show`, `take`, `limit` and `union` fail. Otherwise Spark
                first writes the rows to its disks, as in any shuffle, and all operations work.

        Raises:
            ConfigError: there are too few slots, or a vertex runs in the driver.
        """
        from pyspark.sql.functions import spark_partition_id  # noqa: PLC0415
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        if plan.uses_driver:
            names = ", ".join(vertex.name for vertex in plan.vertices if vertex.in_driver)
            raise ConfigError(f"a pipeline that becomes a DataFrame runs without the driver, where {names} would be")
        spark = self.session(plan.workers)
        check_barrier(spark)
        require_slots(spark, plan.workers)
        sources, loopback = sources_of(plan), is_loopback(spark)
        packed = pack((plan, tuple(source.name for source in sources), sink.name), same_machine=loopback)
        schema = from_arrow_schema(sink.schema)
        frame = partition_for_workers(spark, plan, sources)
        rows = frame.mapInArrow(pipeline_function(packed, loopback=loopback), schema, barrier=True)
        return rows if streamed else rows.repartitionById(plan.workers, spark_partition_id())


class _Attempt:
    """One Spark job, and the driver's worker beside it."""

    def __init__(self, job: str, number: AttemptId) -> None:
        self.number = number
        self.tag = f"headgate-{job}-{number}"
        self.spark_over = threading.Event()
        self.interrupted = False  # by `_interrupt`
        self.threads: list[threading.Thread] = []


class _Run:
    """One job on Spark."""

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self.spark = spark
        self._plan = plan
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._storage: Storage | None = None
        self._credentials: dict[int, Credentials] | None = None  # by worker; None: loopback

    def start(self) -> Job:
        plan, loopback = self._plan, is_loopback(self.spark)
        bind = self._host = LOOPBACK
        if not loopback:
            self._host = host_ip(conf_of(self.spark, "spark.driver.host", LOOPBACK))
            bind = host_ip(conf_of(self.spark, "spark.driver.bindAddress", self._host))
            authority = Authority(plan.job, datetime.now(UTC))
            members = [*range(plan.workers + plan.uses_driver), COORDINATOR]
            self._credentials = {number: authority.issue(number) for number in members}
        sources = sources_of(plan)
        self._packed = pack((plan, tuple(source.name for source in sources)), same_machine=loopback)
        self._frame = partition_for_workers(self.spark, plan, sources)
        self._coordinator = coordinator_for(
            plan,
            self._secret,
            _FIRST,
            renews=True,
            credentials=None if self._credentials is None else self._credentials[COORDINATOR],
            bind_host=bind,
            registration_timeout_s=_NO_LIMIT_S if sources else _REGISTER_S,
            goodbye_timeout_s=_GOODBYE_S,
        )
        try:
            self._storage = open_job_storage(plan, _FIRST)  # keeps the files until the job's end
            self._coordinator.start()
            first = self._begin(_FIRST)
        except BaseException:
            self._coordinator.close()
            self._remove_files()
            raise
        from pyspark import inheritable_thread_target  # noqa: PLC0415

        end = self._thread("end", inheritable_thread_target(self.spark)(lambda: self._run_attempts(first)))
        self._coordinator.job.wind_up = lambda: end.join(_WIND_UP_S)
        end.start()
        return self._coordinator.job

    def _begin(self, number: AttemptId) -> _Attempt:
        """Start the workers of an attempt."""
        from pyspark import inheritable_thread_target  # noqa: PLC0415

        plan, attempt, own = self._plan, _Attempt(self._plan.job, number), self._credentials
        address = Address(self._host, self._coordinator.address.port)
        theirs = None if own is None else {n: own[n] for n in range(plan.workers)}
        assignment = WorkerAssignment(address, number, self._secret, theirs)
        workers = self._frame.mapInArrow(worker_function(self._packed, assignment), "nothing long", barrier=True)
        run_spark = inheritable_thread_target(self.spark)(lambda: self._run_spark(workers, attempt))
        attempt.threads.append(self._thread("spark", run_spark))
        if plan.uses_driver:
            credentials = None if own is None else own[plan.workers]
            attempt.threads.append(self._thread("driver", lambda: self._run_driver(address, attempt, credentials)))
        for thread in attempt.threads:
            thread.start()
        return attempt

    def _thread(self, name: str, target: Any) -> threading.Thread:
        return threading.Thread(target=target, name=f"headgate-{name}-{self._plan.job}", daemon=True)

    def _run_driver(self, address: Address, attempt: _Attempt, credentials: Credentials | None) -> None:
        plan = self._plan
        try:
            run_worker(
                plan,
                plan.workers,
                attempt.number,
                self._secret,
                address,
                bind_host=self._host,
                credentials=credentials,
            )
        except HeadgateError as error:
            _log.debug("the driver's worker: %s", error)  # the worker has reported it
            if plan.batch:  # unless its link was not open yet: its disk may be full
                self._coordinator.fail(error, attempt=attempt.number, workers=[plan.workers])
        except Exception:  # noqa: BLE001 - the end of a thread: the coordinator notices the loss
            _log.exception("the driver's worker: a bug in headgate")

    def _run_spark(self, workers: DataFrame, attempt: _Attempt) -> None:
        job = self._coordinator.job
        try:
            if is_connect(self.spark):
                self.spark.addTag(attempt.tag)
            else:
                self.spark.sparkContext.addJobTag(attempt.tag)
            workers.collect()
        except Exception as error:  # noqa: BLE001 - any error of Spark fails the job
            self._on_spark_error(error, attempt)
            if self._plan.batch:
                return  # the coordinator decides how the job continues
        finally:
            attempt.spark_over.set()
        # In BATCH another attempt may have begun, so this does not wait: workers leave only after `Cancel`.
        if not job.wait(0 if self._plan.batch else _AFTER_END_S) and not job.stopping:
            self._report_loss(TransportError("all tasks on Spark have ended, but not the job", peer="Spark"), attempt)

    def _on_spark_error(self, error: Exception, attempt: _Attempt) -> None:
        job = self._coordinator.job
        if was_cancelled(error) and not job.stopping:
            if not attempt.interrupted:
                self._coordinator.cancel("cancelled through Spark")
        elif not job.stopping:
            job.wait(0.5)  # the coordinator reports a lost worker by its number
            if not job.stopping:
                self._report_loss(spark_failure(error), attempt)
        if isinstance(job.exception, TransportError):
            job.exception.add_note(f"Spark reports: {spark_failure(error)}")

    def _report_loss(self, error: HeadgateError, attempt: _Attempt) -> None:
        """Report the loss of all workers of this attempt; it has no effect on a later one."""
        self._coordinator.fail(error, attempt=attempt.number, workers=range(self._plan.workers))

    def _interrupt(self, attempt: _Attempt) -> None:
        """Interrupt Spark's tasks: by the session's tags in Spark Connect, by those of the context otherwise."""
        attempt.interrupted = True
        if is_connect(self.spark):
            self.spark.interruptTag(attempt.tag)
        else:
            self.spark.sparkContext.cancelJobsWithTag(attempt.tag)

    def _run_attempts(self, attempt: _Attempt) -> None:
        """Run all attempts; then end Spark's job, all threads, and remove the files."""
        job = self._coordinator.job
        while (following := self._coordinator.next_attempt(attempt.number)) is not None:
            self._wind_up(attempt, _AFTER_STOP_S)
            try:
                if not self._wait_for_slots():
                    continue  # the job is over, or fails
                attempt = self._begin(following)
            except Exception as error:  # noqa: BLE001 - the session may be stopped
                attempt = _Attempt(self._plan.job, following)  # without threads
                attempt.spark_over.set()
                self._coordinator.fail(spark_failure(error))
        self._coordinator.close()  # workers leave when their links end
        self._wind_up(attempt, _AFTER_END_S if job.status is JobStatus.FINISHED else _AFTER_STOP_S)
        self._remove_files()
        _forget(self)

    def _wait_for_slots(self) -> bool:
        """Block until Spark has slots for another attempt. Return False if it has not in time, or the job is over.

        Spark may take a minute to replace a lost executor. An attempt that begins earlier fails within seconds.
        """
        coordinator, timeout = self._coordinator, self._plan.settings.batch.slots_timeout
        coordinator.await_workers(timeout.seconds)
        there = wait_for_slots(
            self.spark, self._slots_needed, timeout.seconds, pause=coordinator.job.wait, report=self._report_slots
        )
        if coordinator.job.wait(0):
            return False
        if there is not None and there < self._slots_needed():
            coordinator.fail(
                TransportError(
                    f"no further attempt: the job needs {self._slots_needed()} task slots at once, and Spark has had "
                    f"{there} for {timeout} (batch.slots_timeout)",
                    peer="Spark",
                )
            )
            return False
        coordinator.await_workers(0)
        return True

    def _slots_needed(self) -> int:
        """Return the slots for this job and the session's other jobs."""
        with _used_lock:
            return sum(_used.get(self.spark, {}).values())

    def _report_slots(self, there: int, needed: int) -> None:
        limit = self._plan.settings.batch.slots_timeout
        text = f"waiting up to {limit} for {needed} task slots: Spark has {there}"
        _log.warning("job %s: %s", self._plan.name, text)
        self._coordinator.note(text, "warning")

    def _wind_up(self, attempt: _Attempt, timeout_s: float) -> None:
        """Block until the threads and the Spark job of an attempt have ended; interrupt Spark after `timeout_s`."""
        try:
            if not attempt.spark_over.wait(timeout_s):
                while not attempt.spark_over.wait(_INTERRUPT_S):
                    self._interrupt(attempt)
        except Exception:  # noqa: BLE001 - the session may be stopped
            _log.debug("the end of %r", self._coordinator.job, exc_info=True)
        for thread in attempt.threads:
            thread.join(_WIND_UP_S)

    def _remove_files(self) -> None:
        if self._storage is not None:
            remove_job_files(self._plan, self._storage, _FILES_S)


def _forget(run: _Run) -> None:
    with _used_lock:
        _used.get(run.spark, {}).pop(run, None)


def _is_stopped(spark: SparkSession) -> bool:
    context = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None
