"""Runs a job's workers as the tasks of one Spark barrier stage, and its coordinator in the driver.

`run` returns at once. Two threads belong to a job: one waits for Spark's own job, the other for the coordinator's, and
ends what is left of either. Where the plan has a vertex in the driver, a third runs that worker. A BATCH job that loses
a worker goes on with another attempt: another job of Spark's, with other workers, started by the second thread when
nothing of the one before is left.

How a job stops: the coordinator tells all workers; who is not gone `_GOODBYE_S` later is ended by Spark. What fails on
Spark's side only (an executor that is lost, code that does not load) is told to the coordinator, so that the job fails
of it unless a worker has told a better reason.

Invariants: nothing is started unless there are slots for all workers, those of this session's other jobs counted;
after a job's `wind_up` none of its threads, sockets or Spark tasks is left.
"""

from __future__ import annotations

import logging
import secrets
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from headgate.coordinator import JobStatus
from headgate.coordinator.batch_coordinator import coordinator_for
from headgate.errors import ConfigError, HeadgateError, TransportError
from headgate.ids import AttemptId
from headgate.net import Address, Authority
from headgate.spark.closure import pack
from headgate.spark.dataframe import feed_workers, sources_of
from headgate.spark.failures import spark_failure, was_cancelled
from headgate.spark.frame_sink import DataFrameSink, arrow_schema, pipeline_function
from headgate.spark.session import check_barrier, conf_of, is_connect, is_loopback, local_session, require_slots, slots
from headgate.spark.tasks import LOOPBACK, Errand, host_ip, worker_function
from headgate.wire.handshake import SECRET_BYTES
from headgate.worker.job_files import job_storage, remove_files
from headgate.worker.link import COORDINATOR
from headgate.worker.run import run_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headgate.coordinator import Job
    from headgate.graph.plan import Plan
    from headgate.net import Credentials
    from headgate.worker.storage import Storage

__all__ = ["SparkHost"]

_log = logging.getLogger(__name__)

_FIRST: Final = AttemptId(1)
_GOODBYE_S: Final = 2.0  # and about 2.5 s until Spark has ended a worker: 5 s in all
_AFTER_END_S: Final = 3.0  # what Spark's job may take longer than the pipeline
_AFTER_STOP_S: Final = 0.5  # the same, when it was stopped
_INTERRUPT_S: Final = 0.2  # an interrupt that comes before Spark's job has begun is lost: repeat
_FILES_S: Final = 5.0  # what Spark's workers may take to end when Spark says that they have
_WIND_UP_S: Final = 20.0
_REGISTER_S: Final = 120.0
_FOREVER_S: Final = 30 * 86400.0  # where Spark has work of its own before the workers can start

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
        """The session; one with as many slots is started if there is none."""
        if self._spark is None or _is_stopped(self._spark):
            self._spark = local_session(parallelism, master=self._master)
        return self._spark

    def spark_conf(self) -> dict[str, str]:
        """What Spark's conf says; headgate's settings may be among it."""
        spark = self._spark
        if spark is None:
            return {}
        if hasattr(spark.conf, "getAll"):
            every = spark.conf.getAll
            return dict(every() if callable(every) else every)
        return {}

    def default_parallelism(self) -> int:
        """As many subtasks as there are slots."""
        return max(1, slots(self.session()) or 1)

    def run(self, plan: Plan) -> Job:
        """Start a job; returns at once.

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
        """The sink of a pipeline that becomes a DataFrame.

        Args:
            schema: DDL such as "word string, n long", or a Spark schema.

        Raises:
            ConfigError: it is no schema.
        """
        self.session()  # which parses it
        return DataFrameSink(arrow_schema(schema)[1])

    def to_dataframe(self, plan: Plan, sink: DataFrameSink, *, streamed: bool = False) -> DataFrame:
        """A plan that ends in this sink, as a DataFrame: Spark runs it whenever it computes the DataFrame.

        Args:
            plan: What to run; nothing of it in the driver.
            sink: Where it ends.
            streamed: Rows go on to the next step while the pipeline runs. Spark can then compute the DataFrame only as
                a whole (write it, count it, collect it): `show`, `take`, `limit` and `union` fail. Otherwise Spark
                keeps the rows on its disks first, as after any shuffle, and everything works.

        Raises:
            ConfigError: there are too few slots, or a part of it runs in the driver.
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
        parcel = pack((plan, tuple(source.name for source in sources), sink.name), same_machine=loopback)
        schema = from_arrow_schema(sink.schema)
        frame = feed_workers(spark, plan, sources)
        rows = frame.mapInArrow(pipeline_function(parcel, loopback=loopback), schema, barrier=True)
        return rows if streamed else rows.repartitionById(plan.workers, spark_partition_id())


class _Attempt:
    """One job of Spark's, and the driver's worker beside it."""

    def __init__(self, job: str, number: AttemptId) -> None:
        self.number = number
        self.tag = f"headgate-{job}-{number}"
        self.spark_over = threading.Event()
        self.interrupted = False  # by us
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
        self._parcel = pack((plan, tuple(source.name for source in sources)), same_machine=loopback)
        self._frame = feed_workers(self.spark, plan, sources)
        self._coordinator = coordinator_for(
            plan,
            self._secret,
            _FIRST,
            renews=True,
            credentials=None if self._credentials is None else self._credentials[COORDINATOR],
            bind_host=bind,
            registration_timeout_s=_FOREVER_S if sources else _REGISTER_S,
            goodbye_timeout_s=_GOODBYE_S,
        )
        try:
            self._storage = job_storage(plan, _FIRST)  # as long as the job lasts: nobody sweeps up what is in it
            self._coordinator.start()
            first = self._begin(_FIRST)
        except BaseException:
            self._coordinator.close()
            self._remove_files()
            raise
        from pyspark import inheritable_thread_target  # noqa: PLC0415

        end = self._thread("end", inheritable_thread_target(self.spark)(lambda: self._see_through(first)))
        self._coordinator.job.wind_up = lambda: end.join(_WIND_UP_S)
        end.start()
        return self._coordinator.job

    def _begin(self, number: AttemptId) -> _Attempt:
        """Start the workers of an attempt."""
        from pyspark import inheritable_thread_target  # noqa: PLC0415

        plan, attempt, own = self._plan, _Attempt(self._plan.job, number), self._credentials
        address = Address(self._host, self._coordinator.address.port)
        theirs = None if own is None else {n: own[n] for n in range(plan.workers)}
        errand = Errand(address, number, self._secret, theirs)
        workers = self._frame.mapInArrow(worker_function(self._parcel, errand), "nothing long", barrier=True)
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
            _log.debug("the driver's worker: %s", error)  # the coordinator knows
            if plan.batch:  # unless it did not come so far: its disk may be full
                self._coordinator.fail(error, attempt=attempt.number, workers=[plan.workers])
        except Exception:  # noqa: BLE001 - a thread's end: the coordinator misses the worker
            _log.exception("the driver's worker: a bug in headgate")

    def _run_spark(self, workers: DataFrame, attempt: _Attempt) -> None:
        job = self._coordinator.job
        try:
            if is_connect(self.spark):
                self.spark.addTag(attempt.tag)
            else:
                self.spark.sparkContext.addJobTag(attempt.tag)
            workers.collect()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is why the job fails
            self._failed(error, attempt)
            if self._plan.batch:
                return  # the coordinator knows what comes of that
        finally:
            attempt.spark_over.set()
        # In BATCH there may be another attempt by now, which is known at once: workers leave when they are told to.
        if not job.wait(0 if self._plan.batch else _AFTER_END_S) and not job.stopping:
            self._lose(TransportError("all tasks on Spark have ended, but not the job", peer="Spark"), attempt)

    def _failed(self, error: Exception, attempt: _Attempt) -> None:
        job = self._coordinator.job
        if was_cancelled(error) and not job.stopping:
            if not attempt.interrupted:
                self._coordinator.cancel("cancelled through Spark")
        elif not job.stopping:
            job.wait(0.5)  # a worker that is lost is missed at once, by name
            if not job.stopping:
                self._lose(spark_failure(error), attempt)
        if isinstance(job.exception, TransportError):
            job.exception.add_note(f"Spark says: {spark_failure(error)}")

    def _lose(self, error: HeadgateError, attempt: _Attempt) -> None:
        """Spark's tasks are gone, of this attempt: it has no effect on a later one."""
        self._coordinator.fail(error, attempt=attempt.number, workers=range(self._plan.workers))

    def _interrupt(self, attempt: _Attempt) -> None:
        """Let Spark end its tasks. A session's tags do that in Spark Connect only, those of the context elsewhere."""
        attempt.interrupted = True
        if is_connect(self.spark):
            self.spark.interruptTag(attempt.tag)
        else:
            self.spark.sparkContext.cancelJobsWithTag(attempt.tag)

    def _see_through(self, attempt: _Attempt) -> None:
        """See the job to its end, then Spark's, then everything of theirs here."""
        job = self._coordinator.job
        while (following := self._coordinator.next_attempt(attempt.number)) is not None:
            self._wind_up(attempt, _AFTER_STOP_S)
            try:
                attempt = self._begin(following)
            except Exception as error:  # noqa: BLE001 - the session may have been stopped meanwhile
                attempt = _Attempt(self._plan.job, following)  # which nobody waits for
                attempt.spark_over.set()
                self._coordinator.fail(spark_failure(error))
        self._coordinator.close()  # workers that are done leave at once
        self._wind_up(attempt, _AFTER_END_S if job.status is JobStatus.FINISHED else _AFTER_STOP_S)
        self._remove_files()
        _forget(self)

    def _wind_up(self, attempt: _Attempt, timeout_s: float) -> None:
        """Wait for the end of an attempt that is over, and see to it if need be."""
        try:
            if not attempt.spark_over.wait(timeout_s):
                while not attempt.spark_over.wait(_INTERRUPT_S):
                    self._interrupt(attempt)
        except Exception:  # noqa: BLE001 - the session may have been stopped meanwhile
            _log.debug("the end of %r", self._coordinator.job, exc_info=True)
        for thread in attempt.threads:
            thread.join(_WIND_UP_S)

    def _remove_files(self) -> None:
        if self._storage is not None:
            remove_files(self._plan, self._storage, _FILES_S)


def _forget(run: _Run) -> None:
    with _used_lock:
        _used.get(run.spark, {}).pop(run, None)


def _is_stopped(spark: SparkSession) -> bool:
    context = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None
