"""StreamExecutionEnvironment: creates the streams of sources, and runs pipelines."""

from __future__ import annotations

import inspect
import os
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headgate.api.options import buffer_timeout_of
from headgate.api.running import await_job, register_job, showing_activity, stop, unfinished_jobs
from headgate.api.stream import DataStream
from headgate.api.user_functions import result_hint
from headgate.config import load_settings
from headgate.config.defaults import Page, defaults
from headgate.errors import ConfigError
from headgate.functions.source import Source
from headgate.graph.planner import make_plan
from headgate.graph.stream_graph import Edge, StreamGraph, with_inputs
from headgate.ids import JobId
from headgate.names import printable
from headgate.record.registry import is_record_batch
from headgate.task.operators.basic import PassOn, SinkOperator
from headgate.ui.process_page import open_page, show_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from headgate.config import BufferTimeout, RuntimeMode, Settings
    from headgate.coordinator.job import Job
    from headgate.graph.plan import Plan
    from headgate.graph.stream_graph import Node
    from headgate.record import Serializer

__all__ = ["StreamExecutionEnvironment", "environment"]

_JOB_NAME = "headgate job"

T = TypeVar("T")


def environment(
    spark: Any = None,
    *,
    parallelism: int | None = None,
    local: bool | None = None,
    runtime_mode: RuntimeMode | str | None = None,
    settings: Mapping[str, object] | None = None,
    host: Any = None,
) -> StreamExecutionEnvironment:
    """Return an environment to build and run pipelines in.

    Args:
        spark: The Spark session to run on; None: the active session, or a new one on this machine.
        parallelism: The default number of subtasks of an operator; None: the number of slots.
        local: Run everything in threads of this process, without Spark: for tests and debugging. None: False, or the
            option of `headgate run`.
        runtime_mode: 'STREAMING', the default: all tasks run at the same time and push records to each other; 'BATCH':
            stages run one after another, with their results on disk, and a running aggregate emits only its last
            result of each key; 'AUTO': BATCH if all sources are bounded. The setting `execution.runtime_mode`.
        settings: Settings by dotted key; `headgate config` lists all.
        host: The host that runs plans, instead of Spark or threads.

    Raises:
        ConfigError: Both `local` and `spark` are given, or a setting is unknown or out of range.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2, settings={"network.buffers_per_channel": 4})
    >>> sorted(env.from_collection([3, 1, 2]).execute_and_collect())
    [1, 2, 3]
    """
    return StreamExecutionEnvironment(
        spark, parallelism=parallelism, local=local, runtime_mode=runtime_mode, settings=settings, host=host
    )


class StreamExecutionEnvironment:
    """See `environment`, which creates one."""

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
        self._graph = StreamGraph()
        given = defaults()  # the options of `headgate run`; arguments take precedence
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
        """Return `environment(spark, **options)`, by PyFlink's name.

        >>> import headgate as hg
        >>> hg.StreamExecutionEnvironment.get_execution_environment(local=True, parallelism=2)
        <StreamExecutionEnvironment local, parallelism 2>
        """
        return cls(spark, **options)

    def __repr__(self) -> str:
        where = "local" if self._local else "on Spark"
        return f"<{type(self).__name__} {where}, parallelism {self._parallelism or 'by slots'}>"

    @property
    def spark(self) -> Any:
        """The Spark session that jobs run on, started if there is none; for example to read DataFrames.

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
        """Set a setting by its dotted key. Raises ConfigError if the key is unknown or the value out of range.

        >>> import headgate as hg
        >>> hg.environment(local=True).set("network.buffers_per_channel", 4).settings.network.buffers_per_channel
        4
        """
        load_settings(code={**self._code, key: value}, environ={})  # raises here, at the user's line
        self._code[key] = value
        return self

    @property
    def settings(self) -> Settings:
        """All settings of a job that would start now."""
        conf = getattr(self._own_host, "spark_conf", None)
        return load_settings(code=self._code, spark_conf=conf() if conf is not None else None)

    @property
    def parallelism(self) -> int:
        """The default number of subtasks of an operator."""
        if self._parallelism is None:
            slots = getattr(self._host, "default_parallelism", None)
            with self._starting():
                return int(slots()) if slots is not None else os.cpu_count() or 1
        return self._parallelism

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the default number of subtasks of an operator."""
        if parallelism < 1:
            raise ConfigError(f"a parallelism of {parallelism} is not possible: it is at least 1")
        self._parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups: `execution.max_parallelism`."""
        return self.set("execution.max_parallelism", max_parallelism)

    def set_runtime_mode(self, mode: RuntimeMode | str) -> Self:
        """Set the mode 'STREAMING', 'BATCH' or 'AUTO': `execution.runtime_mode`; see `environment`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2).set_runtime_mode("BATCH")
        >>> ignored = env.rate(10).for_each(lambda n: None)
        >>> env.explain()
        Traceback (most recent call last):
        headgate.errors.ConfigError: rate: this source has no end, which BATCH would wait for: ...
        """
        return self.set("execution.runtime_mode", str(mode).upper())

    def set_buffer_timeout(self, timeout: int | str | BufferTimeout) -> Self:
        """Set when buffers that are not full are sent: `execution.buffer_timeout`; a number is in milliseconds."""
        return self.set("execution.buffer_timeout", buffer_timeout_of(timeout))

    def disable_operator_chaining(self) -> Self:
        """Run every operator in a task of its own."""
        self._chaining = False
        return self

    def register_serializer(self, key: object, serializer: Serializer[Any]) -> Self:
        """Use a serializer for a type, or register it by a name."""
        self._serializers[key] = serializer
        return self

    # Sources.

    def from_source(
        self, source: Source[T], watermark_strategy: Any = None, source_name: str | None = None
    ) -> DataStream[T]:
        """Return the stream of a source's records; see `Source` for how to write one.

        `Source.default_parallelism` subtasks read it, unless `set_parallelism` after this call changes that.

        >>> import headgate as hg
        >>> class Countdown(hg.Source):
        ...     def splits(self, parallelism):
        ...         return [3]
        ...     def read(self, split, offset, place):
        ...         yield list(range(split - offset, 0, -1))
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_source(Countdown()).execute_and_collect())
        [3, 2, 1]
        """
        if not isinstance(source, Source):
            raise TypeError(f"from_source wants a Source, not {source!r}")
        name = source_name or type(source).__name__
        node = self._graph.add(
            name, PassOn, source=source, hint="arrow" if is_record_batch(source.hint) else source.hint
        )
        node.parallelism = source.default_parallelism
        stream: DataStream[T] = DataStream(self, [Edge(node)], node)
        return stream if watermark_strategy is None else stream.assign_timestamps_and_watermarks(watermark_strategy)

    def from_collection(
        self, collection: Iterable[T], type_info: object = None, *, parallel: bool = False
    ) -> DataStream[T]:
        """Return the stream of a collection's values, in order.

        One subtask reads the values; a downstream operator with more subtasks receives them in turn (`rebalance`). So
        after `key_by` each key's values are in the order of the collection, unless an operator with several subtasks is
        before `key_by`.

        Args:
            collection: The values; they are sent to the workers with the plan.
            type_info: The type of the values; it selects the serializer.
            parallel: Divide the collection among the subtasks: faster, but without an order between the parts.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> list(env.from_collection(["to", "be", "or"]).execute_and_collect())
        ['to', 'be', 'or']
        """
        from headgate.connectors.generators import CollectionSource  # noqa: PLC0415 - imported when used

        source: Source[T] = CollectionSource(collection, parallel=parallel)
        if type_info is not None:
            source.hint = type_info
        return self.from_source(source, source_name="collection")

    def generate(
        self, function: Callable[..., Any], count: int | None = None, *, output_type: object = None, **options: Any
    ) -> DataStream[Any]:
        """Return the stream of a function's results for 0, 1, 2 ..., or of a generator function in each subtask.

        With a count, one subtask calls a plain function, so the records keep their order as with `from_collection`;
        `parallel=True` divides the numbers among all subtasks. Without a count they are always divided.

        Args:
            function: Called with each number; a generator function is called with the subtask's index, and the
                parallelism if it takes two arguments.
            count: The number of records; None: all that a generator function yields, or without end.
            output_type: The type of the records, if the function has no type hints; it selects the serializer.
            options: Options of `GeneratorSource`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> list(env.generate(lambda n: n * n, count=4).execute_and_collect())
        [0, 1, 4, 9]
        """
        from headgate.connectors.generators import GeneratorSource  # noqa: PLC0415 - imported when used

        element = inspect.isgeneratorfunction(function) or bool(options.get("per_subtask"))
        hint = result_hint(function, element=element, given=output_type)
        return self.from_source(GeneratorSource(function, count, hint=hint, **options), source_name="generate")

    def rate(
        self,
        records_per_second: float,
        count: int | None = None,
        function: Callable[[int], T] | None = None,
        output_type: object = None,
        *,
        parallel: bool = False,
    ) -> DataStream[Any]:
        """Return a stream of records at a rate, over all subtasks: 0, 1, 2 ... or a function's results for them.

        With a count, one subtask emits the records, in order, unless `parallel=True`; without a count all subtasks do.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> list(env.rate(1_000, count=3).execute_and_collect())
        [0, 1, 2]
        """
        from headgate.connectors.generators import RateSource  # noqa: PLC0415 - imported when used

        hint = output_type if function is None else result_hint(function, given=output_type)
        source: Source[Any] = RateSource(records_per_second, count, function, hint=hint, parallel=parallel)
        return self.from_source(source, source_name="rate")

    def socket_text(self, host: str, port: int, **options: Any) -> DataStream[str]:
        """Return the stream of lines that a server sends; one subtask connects.

        Args:
            host: The server's host.
            port: The server's port.
            options: Options of `SocketTextSource`.
        """
        from headgate.connectors.socket_text import SocketTextSource  # noqa: PLC0415 - imported when used

        return self.from_source(SocketTextSource(host, port, **options), source_name="socket_text")

    def read_files(self, path: Any, format: str = "text", **options: Any) -> DataStream[Any]:  # noqa: A002 - Spark's word
        r"""Return the stream of the records of files, read in parallel: 'text', 'csv', 'json' or 'parquet'.

        Lines keep their order within a split; a file of up to 1 MiB is one split. With `set_parallelism(1)` one subtask
        reads all files, one after the other.

        Args:
            path: A file, a directory, a pattern, or a list of these.
            format: The format of the files.
            options: Options of `FileSource`.

        >>> import pathlib, tempfile
        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = pathlib.Path(directory, "words.txt").write_text("to be\nor not\n")
        ...     sorted(env.read_files(directory).execute_and_collect())
        ['or not', 'to be']
        """
        from headgate.connectors.files.source import FileSource  # noqa: PLC0415 - imported when used

        return self.from_source(FileSource(path, format, **options), source_name=f"read_files({format})")

    def from_dataframe(
        self, dataframe: Any, form: Literal["tuple", "dict", "row", "arrow"] = "tuple"
    ) -> DataStream[Any]:
        """Return the stream of the rows of a Spark DataFrame; the workers read them while Spark computes them.

        Args:
            dataframe: The DataFrame.
            form: The form of a row: 'tuple', 'dict', or Spark's 'row'; with 'arrow' the stream is an Arrow stream.
        """
        return self.from_source(self._dataframe_source(dataframe, form), source_name="dataframe")

    # Running.

    @property
    def _host(self) -> Any:
        if self._own_host is None:
            if self._local:
                from headgate.local import LocalHost  # noqa: PLC0415 - imported when used

                self._own_host = LocalHost()
            else:
                from headgate.spark import SparkHost  # noqa: PLC0415 - imported when used

                self._own_host = SparkHost(self._spark, master=self._master)
        return self._own_host

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Show on the terminal that Spark or the job is starting, until the end of the block."""
        with showing_activity("starting Spark" if self._cold else "starting the job", self._progress):
            yield
        self._cold = False

    def execute(self, job_name: str | None = None, *, ui: bool | None = None) -> Job:
        """Run the pipelines that were added since the last call, and block until the end; Ctrl-C cancels the job.

        The progress is shown on stderr if that is a terminal.

        Args:
            job_name: The job's name on the page, in progress and in logs.
            ui: Open the web page of this process's jobs, which needs `headgate[ui]`. Its address is printed on stderr,
                and it stays open until the process ends. None: no page, or the option of `headgate run`.

        Returns:
            The finished job.

        Raises:
            HeadgateError: The first cause of the job's failure.

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
        """Start the pipelines that were added since the last call. Return the running job.

        Args:
            job_name: The job's name on the page, in progress and in logs.
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
            open_page(page, unfinished_jobs)  # before the job starts: without the page there is no job
        host = self._host
        with self._starting():
            plan = self._plan(self._graph.nodes(), job_name, check=host.check)
            self._graph.take()
            job: Job = host.run(plan)
        try:
            register_job(job)
            show_job(job)
        except BaseException:  # for example Ctrl-C: the caller has no job to cancel
            stop(job)
            raise
        return job

    def explain(self, form: str = "text") -> str:
        """Return a description of the plan: tasks, chains, exchanges, serializers, placement and buffers.

        Args:
            form: 'text', or 'mermaid' for a diagram.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> printed = env.from_collection(["to be"]).flat_map(str.split).print()
        >>> print(env.explain("mermaid"))
        flowchart LR
            v0(["collection<br/><i>x 1</i>"])
            v1["flat_map(split)<br/><i>x 2</i>"]
            v2["print<br/><i>driver</i>"]
            v0 -->|"rebalance, str"| v1
            v1 -->|"global, pickle"| v2
        """
        from headgate.graph.explain import explain_mermaid, explain_text  # noqa: PLC0415 - imported when used
        from headgate.worker.memory import network_memory  # noqa: PLC0415

        plan = self._plan(self._graph.nodes(), None, splits=False)
        if form == "mermaid":
            return explain_mermaid(plan)
        if form != "text":
            raise ValueError(f"explain: form is 'text' or 'mermaid', not {form!r}")
        return explain_text(plan, memory_bytes=network_memory(plan).bytes)

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
            host.session(before.workers)  # a new session gets a slot for each worker
            sink = host.dataframe_sink(schema)
        node = self._graph.add("to_dataframe", partial(SinkOperator, sink), inputs=edges)
        plan = self._plan(self._graph.take_only(node), "to_dataframe", check=host.check)
        return host.to_dataframe(plan, sink, streamed=streamed)

    def _plan(
        self,
        nodes: list[Node],
        name: str | None,
        *,
        splits: bool = True,
        check: Callable[[Plan], object] | None = None,
    ) -> Plan:
        return make_plan(
            nodes,
            job=JobId(f"job-{secrets.token_hex(4)}"),
            name=printable(name or _JOB_NAME),
            parallelism=self.parallelism,
            settings=self.settings,
            serializers=self._serializers,
            chaining=self._chaining,
            splits=splits,
            check=check,
        )
