"""A Spark session for pipelines without one, and how many tasks a session can run at once.

Called in the driver. `local_session` returns the running session if there is one, also one that spark-submit has
prepared, and otherwise starts one on this machine.

How slots are counted: by Spark's `maxNumConcurrentTasks`, the figure that Spark compares a barrier stage with; it
considers executors, cores, `spark.task.cpus` and other resources. Spark Connect does not offer it: there the slots of
`local[n]` and `local-cluster[n,c,m]` are read from the master's name, and those of other masters are unknown.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import ConfigError
from headgate.spark.java import find_java, without_incubator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["check_barrier", "is_connect", "is_loopback", "local_session", "require_slots", "slots", "wait_for_slots"]

_LAUNCH = threading.Lock()  # one JVM is started at a time: starting changes the environment temporarily
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
_FIRST_EXECUTOR_S: Final = 30.0  # for a cluster to start the application's first executor
_SETTLED_S: Final = 3.0  # the number of slots counts when it has not changed for so long
_POLL_S: Final = 0.1
_REPORT_S: Final = 10.0

_CONF: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.buffer.size": "4096",  # rows leave a Python worker after 0.05 s instead of 0.5 s
    "spark.python.worker.reuse": "true",
    "spark.python.task.killTimeout": "1s",
    "spark.stage.maxConsecutiveAttempts": "1",  # Spark does not run a failed pipeline three times more
    # If `require_slots` has missed something, Spark fails after 5 s instead of ten minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "5",
}
_UNFIT: Final = {
    "spark.dynamicAllocation.enabled": "dynamic allocation, which takes executors away from a stage that needs all",
    "spark.speculation": "speculation, which runs a task twice",
}


def local_session(
    parallelism: int, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session, or start one on this machine with `parallelism` slots.

    Settings of spark-submit, `spark-defaults.conf` and `conf` are kept; the default of `master` is `local[n]`.

    >>> spark = local_session(4)  # doctest: +SKIP
    >>> spark.sparkContext.master  # doctest: +SKIP
    'local[4]'
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - `import headgate` must be fast
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with _LAUNCH:
        running = SparkSession.getActiveSession()
        if running is not None:
            return running
        if master is not None and master.startswith("sc://"):
            return SparkSession.builder.remote(master).getOrCreate()
        if master is None and os.environ.get("SPARK_REMOTE"):
            return SparkSession.builder.getOrCreate()
        with _launch_environment():
            context: Any = SparkContext
            context._ensure_initialized()
            settings = _with_defaults(SparkConf(), parallelism, master, conf or {})
            return SparkSession.builder.config(conf=settings).getOrCreate()


def _with_defaults(settings: SparkConf, parallelism: int, master: str | None, conf: Mapping[str, str]) -> SparkConf:
    """Add headgate's defaults to the settings."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has set them
        if settings.get("spark.master", "local[*]") == "local[*]":
            settings.setMaster(f"local[{max(parallelism, os.cpu_count() or 1)}]")
        settings.set("spark.ui.showConsoleProgress", "false")
        settings.setAppName("headgate")
    if master is not None:
        settings.setMaster(master)
    for key, value in conf.items():
        settings.set(key, value)
    local = str(settings.get("spark.master", "local")).startswith("local")
    for key, value in _CONF.items():
        if local or not key.startswith("spark.driver."):
            settings.setIfMissing(key, value)
    return settings


@contextmanager
def _launch_environment() -> Iterator[None]:
    """Set the environment for the JVM that is started inside: its Java, its logging, this interpreter."""
    changes = {} if "PYSPARK_PYTHON" in os.environ else {"PYSPARK_PYTHON": sys.executable}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started one
        import pyspark  # noqa: PLC0415

        options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Dlog4j2.configurationFile={_LOG4J.as_uri()}"
        java = find_java()
        if java.major >= 24:  # which warns of Spark's libraries
            options += " --enable-native-access=ALL-UNNAMED --sun-misc-unsafe-memory-access=allow"
        changes |= {
            "JAVA_HOME": str(without_incubator(java)),
            "SPARK_HOME": os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent),
            "SPARK_SUBMIT_OPTS": options.strip(),
        }
    before = {key: os.environ.get(key) for key in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def is_connect(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect, which has no context.

    >>> from types import SimpleNamespace
    >>> spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", getConf=dict))
    >>> is_connect(spark)
    False
    """
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_loopback(spark: SparkSession) -> bool:
    """Return True if all workers run on this machine and use loopback: `local` and `local-cluster`.

    >>> from types import SimpleNamespace
    >>> spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", getConf=dict))
    >>> is_loopback(spark)
    True
    """
    return master_of(spark).startswith("local")


def master_of(spark: SparkSession) -> str:
    """Return the session's master."""
    if is_connect(spark):
        return str(spark.conf.get("spark.master", ""))
    return str(spark.sparkContext.master)


def conf_of(spark: SparkSession, key: str, default: str) -> str:
    """Return a setting of the session or of its application."""
    if is_connect(spark):
        return str(spark.conf.get(key, default))
    return str(spark.sparkContext.getConf().get(key, default))


def check_barrier(spark: SparkSession) -> None:
    """Raise if a setting does not allow stages whose tasks all run at once.

    Raises:
        ConfigError: dynamic allocation or speculation is on.

    >>> from types import SimpleNamespace
    >>> conf = {"spark.speculation": "true"}
    >>> spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", getConf=lambda: conf))
    >>> check_barrier(spark)
    Traceback (most recent call last):
    headgate.errors.ConfigError: spark.speculation = true: headgate's workers all run at once, and do not go with ...
    """
    for key, what in _UNFIT.items():
        if conf_of(spark, key, "false").lower() == "true":
            raise ConfigError(
                f"{key} = true: headgate's workers all run at once, and do not go with {what}. Set it to false"
            )


def slots(spark: SparkSession) -> int | None:
    """Return how many tasks can run at once now; None if unknown (see above).

    >>> class Scheduler:
    ...     def resourceProfileManager(self): return self
    ...     def defaultResourceProfile(self): return "default"
    ...     def maxNumConcurrentTasks(self, profile): return 4
    >>> from types import SimpleNamespace
    >>> slots(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=Scheduler))))
    4
    """
    if not is_connect(spark):
        scheduler = spark.sparkContext._jsc.sc()
        profile = scheduler.resourceProfileManager().defaultResourceProfile()
        return int(scheduler.maxNumConcurrentTasks(profile))
    return _slots_by_name(master_of(spark), conf_of(spark, "spark.task.cpus", "1"), os.cpu_count() or 1)


def _slots_by_name(master: str, task_cpus: str, cores: int) -> int | None:
    """Return the slots of a master that has them in its name; otherwise None.

    >>> _slots_by_name("local[*]", "1", 2), _slots_by_name("local[4,2]", "1", 2), _slots_by_name("local", "1", 2)
    (2, 4, 1)
    >>> _slots_by_name("local-cluster[2,3,1024]", "2", 2), _slots_by_name("spark://host:7077", "1", 2)
    (2, None)
    """
    each = float(task_cpus)
    if found := re.fullmatch(r"local(?:\[(\*|\d+)(?:\s*,\s*\S+)?\])?", master):
        count = found[1] or "1"
        return int((cores if count == "*" else int(count)) // each)
    if found := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(found[1]) * int(int(found[2]) // each)
    return None


def wait_for_slots(
    spark: SparkSession,
    needed: Callable[[], int],
    timeout_s: float,
    *,
    pause: Callable[[float], bool],
    report: Callable[[int, int], object],
) -> int | None:
    """Block until Spark has slots for `needed()` workers. Return the number of slots; None if unknown.

    Returns fewer than needed after `timeout_s`, or when `pause` returns True.

    Args:
        spark: The session.
        needed: Called in each round: other jobs of the session may end.
        timeout_s: The time limit.
        pause: Blocks for some seconds. Returns True if the slots are not needed any more.
        report: Called with the available and the needed slots, at the beginning and every 10 s.

    >>> class Scheduler:
    ...     def resourceProfileManager(self): return self
    ...     def defaultResourceProfile(self): return "default"
    ...     def maxNumConcurrentTasks(self, profile): return next(slots_there)
    >>> from types import SimpleNamespace
    >>> slots_there = iter([0, 1, 2])
    >>> spark = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=Scheduler)))
    >>> wait_for_slots(spark, lambda: 2, timeout_s=60, pause=lambda _: False, report=print)
    0 2
    2
    """
    began = reported = time.monotonic()
    there = slots(spark)
    if there is not None and there < needed():
        report(there, needed())
    while there is not None and there < needed() and time.monotonic() - began < timeout_s and not pause(_POLL_S):
        there = slots(spark)
        if there is not None and time.monotonic() - reported >= _REPORT_S:
            reported = time.monotonic()
            report(there, needed())
    return there


def require_slots(spark: SparkSession, needed: int, *, busy: int = 0) -> None:
    """Raise unless `needed` workers can run at once, beside `busy` others of this session.

    Blocks only while a cluster is still starting executors.

    Raises:
        ConfigError: there are too few; the text has the number, and how to get more.

    >>> class Scheduler:
    ...     def resourceProfileManager(self): return self
    ...     def defaultResourceProfile(self): return "default"
    ...     def maxNumConcurrentTasks(self, profile): return 2
    >>> from types import SimpleNamespace
    >>> context = SimpleNamespace(_jsc=SimpleNamespace(sc=Scheduler), master="local[2]", getConf=dict)
    >>> require_slots(SimpleNamespace(sparkContext=context), 3)
    Traceback (most recent call last):
    headgate.errors.ConfigError: the pipeline needs 3 task slots at once, and local[2] has 2: ...
    """
    began = last_change = time.monotonic()
    there = slots(spark)
    while there is not None and there < needed + busy and not master_of(spark).startswith("local["):
        now = time.monotonic()
        # Without a slot, the first executor is starting. With some, more may follow soon.
        if (
            now - last_change >= (_FIRST_EXECUTOR_S if there == 0 else _SETTLED_S)
            or now - began >= 2 * _FIRST_EXECUTOR_S
        ):
            break
        time.sleep(_POLL_S)
        before, there = there, slots(spark)
        if there != before:
            last_change = time.monotonic()
    if there is not None and there < needed + busy:
        master = master_of(spark)
        how = (
            f"start Spark with master local[{needed + busy}] (slots need not be cores)"
            if master.startswith("local") and not master.startswith("local-cluster")
            else "give the application more cores (spark.cores.max, executors) or less per task (spark.task.cpus)"
        )
        taken = f", {busy} of them taken by other pipelines of this session" if busy else ""
        raise ConfigError(
            f"the pipeline needs {needed} task slots at once, and {master} has {there}{taken}: {how}, or lower the "
            "pipeline's parallelism"
        )
