"""StreamExecutionEnvironment: where pipelines begin, and how they are run."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.api.beginnings import Beginning
from headgate.api.defaults import Page, defaults
from headgate.api.page import open_page, show_job
from headgate.api.running import await_job, remember, saying
from headgate.api.tuning import buffer_timeout_of
from headgate.config import load_settings
from headgate.errors import ConfigError
from headgate.graph.planner import make_plan
from headgate.graph.stream_graph import with_inputs
from headgate.ids import JobId
from headgate.task.basic import SinkOperator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from headgate.config import BufferTimeout, RuntimeMode, Settings
    from headgate.coordinator.job import Job
    from headgate.graph.plan import Plan
    from headgate.graph.stream_graph import Edge, Node
    from headgate.record import Serializer
    from headgate.task.source import Source

__all__ = ["StreamExecutionEnvironment", "environment"]

_JOB_NAME = "headgate job"


def environment(
    spark: Any = None,
    *,
    parallelism: int | None = None,
    local: bool | None = None,
    runtime_mode: RuntimeMode | str | None = None,
    settings: Mapping[str, object] | None = None,
    host: Any = None,
) -> StreamExecutionEnvironment:
    """An environment to build and run pipelines in.

    Args:
        spark: The Spark session to run on; without one, a session on this machine is used or started.
        parallelism: Subtasks of each operator for which nothing else is said; by default as many as there are slots.
        local: Run everything in threads of this process, without Spark: for tests and debugging. Not said: False, or
            what `headgate run` was told.
        runtime_mode: 'STREAMING', the default: all tasks run at once and push records to each other; 'BATCH': one
            after another, through disk, and a running aggregate gives only its last value of each key; 'AUTO': BATCH
            where all sources say that they end. The setting `execution.runtime_mode`.
        settings: Settings by dotted key; `headgate config` lists all.
        host: What runs plans, instead of Spark or threads.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2, settings={"network.buffers_per_channel": 4})
    >>> sorted(env.from_collection([3, 1, 2]).execute_and_collect())
    [1, 2, 3]
    """
    return StreamExecutionEnvironment(
        spark, parallelism=parallelism, local=local, runtime_mode=runtime_mode, settings=settings, host=host
    )


class StreamExecutionEnvironment(Beginning):
    """See `environment`.

    >>> import headgate as hg
    >>> env = hg.StreamExecutionEnvironment.get_execution_environment(local=True, parallelism=2)
    >>> env
    <StreamExecutionEnvironment local, parallelism 2>
    """

    def __init__(
        self,
        spark: Any = None,
        *,
        parallelism: int | None = None,
        local: bool | None = None,
        runtime_mode: RuntimeMode | str | None = None,
        settings: Mapping[str, object] | None = None,
        host: Any = None,
    ) -> None:
        if local and spark is not None:
            raise ConfigError("local=True runs without Spark: give a session, or say local=True, not both")
        super().__init__()
        given = defaults()  # `headgate run`'s, for whatever is not said here
        if local is None:
            local = given.local and spark is None and host is None
        self._spark = spark
        self._master = given.master
        self._local = local
        self._own_host = host
        self._progress = given.progress
        self._page = given.page
        self._cold = not local and spark is None and host is None
        self._parallelism: int | None = None
        self._chaining = True
        self._code: dict[str, object] = {}
        self._serializers: dict[object, Serializer[Any]] = {}
        parallelism = given.parallelism if parallelism is None else parallelism
        if parallelism is not None:
            self.set_parallelism(parallelism)
        if given.runtime_mode is not None:
            self.set_runtime_mode(given.runtime_mode)
        for key, value in {**given.settings, **(settings or {})}.items():
            self.set(key, value)
        if runtime_mode is not None:
            self.set_runtime_mode(runtime_mode)

    @classmethod
    def get_execution_environment(cls, spark: Any = None, **options: Any) -> Self:
        """PyFlink's name for `environment`."""
        return cls(spark, **options)

    def __repr__(self) -> str:
        where = "local" if self._local else "on Spark"
        return f"<{type(self).__name__} {where}, parallelism {self._parallelism or 'by slots'}>"

    @property
    def spark(self) -> Any:
        """The Spark session that jobs run on, started if there is none: for reading DataFrames, for example.

        >>> import headgate as hg
        >>> hg.environment(local=True).spark
        Traceback (most recent call last):
        headgate.errors.ConfigError: an environment with local=True has no Spark session
        """
        session = getattr(self._host, "session", None)
        if session is None:
            raise ConfigError("an environment with local=True has no Spark session")
        with self._starting():
            return session(self._parallelism or 1)

    # Settings.

    def set(self, key: str, value: object) -> Self:
        """Set a setting by its dotted key.

        >>> import headgate as hg
        >>> hg.environment(local=True).set("network.buffers_per_channel", 4).settings.network.buffers_per_channel
        4
        """
        load_settings(code={**self._code, key: value}, environ={})  # refused here, where the user can see it
        self._code[key] = value
        return self

    @property
    def settings(self) -> Settings:
        """All settings as a job would get them now."""
        conf = getattr(self._own_host, "spark_conf", None)
        return load_settings(code=self._code, spark_conf=conf() if conf is not None else None)

    @property
    def parallelism(self) -> int:
        """Subtasks of each operator for which nothing else is said."""
        if self._parallelism is None:
            slots = getattr(self._host, "default_parallelism", None)
            with self._starting():
                return int(slots()) if slots is not None else os.cpu_count() or 1
        return self._parallelism

    def set_parallelism(self, parallelism: int) -> Self:
        """Subtasks of each operator for which nothing else is said."""
        if parallelism < 1:
            raise ConfigError(f"a parallelism of {parallelism} is not possible: it is at least 1")
        self._parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """How many key groups there are: `execution.max_parallelism`."""
        return self.set("execution.max_parallelism", max_parallelism)

    def set_runtime_mode(self, mode: RuntimeMode | str) -> Self:
        """'STREAMING', 'BATCH' or 'AUTO': `execution.runtime_mode`; see `environment`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2).set_runtime_mode("BATCH")
        >>> ignored = env.rate(10).for_each(lambda n: None)
        >>> env.explain()
        Traceback (most recent call last):
        headgate.errors.ConfigError: rate: this source has no end, which BATCH would wait for: ...
        """
        return self.set("execution.runtime_mode", str(mode).upper())

    def set_buffer_timeout(self, timeout: int | str | BufferTimeout) -> Self:
        """When buffers that are not full are sent: `execution.buffer_timeout`; a number counts milliseconds."""
        return self.set("execution.buffer_timeout", buffer_timeout_of(timeout))

    def disable_operator_chaining(self) -> Self:
        """Every operator in a task of its own."""
        self._chaining = False
        return self

    def register_serializer(self, key: object, serializer: Serializer[Any]) -> Self:
        """Let a serializer carry a type, or be known by a name."""
        self._serializers[key] = serializer
        return self

    # Running.

    @property
    def _host(self) -> Any:
        if self._own_host is None:
            if self._local:
                from headgate.local import LocalHost  # noqa: PLC0415 - not before something is run

                self._own_host = LocalHost()
            else:
                from headgate.spark import SparkHost  # noqa: PLC0415 - not before something is run

                self._own_host = SparkHost(self._spark, master=self._master)
        return self._own_host

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Around whatever may start Spark, so that nobody sits before a terminal that says nothing."""
        with saying("starting Spark" if self._cold else "starting the job", self._progress):
            yield
        self._cold = False

    def execute(self, job_name: str | None = None, *, ui: bool | None = None) -> Job:
        """Run everything that was added since the last time and wait for its end; Ctrl-C cancels it.

        A terminal shows how it goes.

        Args:
            job_name: What it is called wherever it is shown.
            ui: Whether to open the web page of this process's jobs, which needs `headgate[ui]`. Its address is printed
                on stderr, and it stays until the process ends. Not said: no, or what `headgate run` was told.

        Returns:
            The job, finished.

        Raises:
            HeadgateError: Whatever the job has failed with.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> printed = env.from_collection(["to", "be"]).print()
        >>> env.execute("two words").status
        to
        be
        <JobStatus.FINISHED: 'finished'>
        """
        job = self.execute_async(job_name, ui=ui)
        await_job(job, self._progress)
        return job

    def execute_async(self, job_name: str | None = None, *, ui: bool | None = None) -> Job:
        """Run everything that was added since the last time; returns at once, with the running job.

        Args:
            job_name: What it is called wherever it is shown.
            ui: See `execute`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> ignored = env.rate(10).for_each(lambda n: None)  # without an end
        >>> job = env.execute_async("for ever")
        >>> job.cancel(), job.status
        (True, <JobStatus.CANCELLED: 'cancelled'>)
        """
        page = Page() if ui and self._page is None else self._page
        if page is not None and ui is not False:
            open_page(page)  # first: where it cannot be, no job is started
        host = self._host
        plan = self._plan(self._graph.nodes(), job_name)
        self._graph.take()
        with self._starting():
            job: Job = host.run(plan)
        remember(job)
        show_job(job)
        return job

    def explain(self, form: str = "text") -> str:
        """What `execute` would run: tasks, chains, exchanges, serializers, placement and the buffers they need.

        Args:
            form: 'text', or 'mermaid' for a diagram.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> printed = env.from_collection(["to be"]).flat_map(str.split).print()
        >>> print(env.explain("mermaid"))
        flowchart LR
            v0(["collection<br/>flat_map(split)<br/><i>x 2</i>"])
            v1["print<br/><i>driver</i>"]
            v0 -->|"global, pickle"| v1
        """
        from headgate.graph.explain import explain_mermaid, explain_text  # noqa: PLC0415 - only where it is used

        plan = self._plan(self._graph.nodes(), None, splits=False)
        if form == "mermaid":
            return explain_mermaid(plan)
        if form != "text":
            raise ValueError(f"explain: form is 'text' or 'mermaid', not {form!r}")
        return explain_text(plan, memory_bytes=_network_memory_bytes(plan))

    def _dataframe_source(self, dataframe: Any, form: str) -> Source[Any]:
        if self._local:
            raise ConfigError("from_dataframe needs Spark: make the environment without local=True")
        from headgate.spark.dataframe import DataFrameSource  # noqa: PLC0415 - only where there is Spark

        return DataFrameSource(dataframe, form)

    def _to_dataframe(self, edges: Sequence[Edge], schema: Any, *, streamed: bool) -> Any:
        if self._local:
            raise ConfigError("to_dataframe needs Spark: make the environment without local=True")
        host = self._host
        before = self._plan(with_inputs(edge.node for edge in edges), None, splits=False)
        with self._starting():
            host.session(before.workers)  # with slots for all, if it has to be started
            sink = host.dataframe_sink(schema)
        node = self._graph.add("to_dataframe", partial(SinkOperator, sink), inputs=edges)
        return host.to_dataframe(self._plan(self._graph.take_only(node), "to_dataframe"), sink, streamed=streamed)

    def _plan(self, nodes: list[Node], name: str | None, *, splits: bool = True) -> Plan:
        return make_plan(
            nodes,
            job=JobId(f"job-{secrets.token_hex(4)}"),
            name=name or _JOB_NAME,
            parallelism=self.parallelism,
            settings=self.settings,
            serializers=self._serializers,
            chaining=self._chaining,
            splits=splits,
        )


def _network_memory_bytes(plan: Plan) -> int:
    """What a worker on this machine would have."""
    from headgate.worker.run import worker_memory_bytes  # noqa: PLC0415 - only where it is used

    return plan.settings.network_memory_bytes(worker_memory_bytes(plan.settings, plan.workers + 1)).bytes
