"""The ends of a stream: sinks in the workers, in the driver, and DataFrames."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.api.core import Stream, checked, operator_name
from headgate.api.results import Inbox, Results
from headgate.api.tuning import DataStreamSink
from headgate.task.basic import SinkOperator
from headgate.task.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Ending"]

T = TypeVar("T")


class Ending(Stream[T]):
    """How a stream can end; see `DataStream`.

    >>> from headgate.api import DataStream
    >>> issubclass(DataStream, Ending)
    True
    """

    def sink_to(self, sink: Sink[T]) -> DataStreamSink:
        """Let a sink write the records, in the workers, or in the driver if it has the attribute `in_driver`.

        >>> import headgate as hg
        >>> class Shout(hg.Sink):
        ...     def write(self, values):
        ...         for value in values:
        ...             print(value.upper())
        >>> env = hg.environment(local=True, parallelism=1)
        >>> shouted = env.from_collection(["to", "be"]).sink_to(Shout())
        >>> job = env.execute()
        TO
        BE
        """
        if not isinstance(sink, Sink):
            raise TypeError(f"sink_to wants a Sink, not {sink!r}")
        return self._sink(type(sink).__name__, sink)

    def for_each(self, function: Callable[[T], object]) -> DataStreamSink:
        """Call a function for each record, in the workers.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> printed = env.from_collection(["to", "be"]).for_each(print)
        >>> job = env.execute()
        to
        be
        """
        from headgate.api.sinks import ForEachSink  # noqa: PLC0415 - only where it is used

        checked("for_each", function)
        return self._sink(operator_name("for_each", function), ForEachSink(function))

    def print(self, prefix: str = "", limit: int | None = None) -> DataStreamSink:
        """Print the records, in the driver.

        Args:
            prefix: Stands before each line.
            limit: How many are printed; None: all.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> printed = env.from_collection(["to", "be"]).print()
        >>> job = env.execute()
        to
        be
        """
        from headgate.api.sinks import PrintSink  # noqa: PLC0415 - only where it is used

        return self._sink("print", PrintSink(prefix, limit))

    def execute_and_collect(self, job_name: str | None = None, limit: int | None = None) -> Results[T]:
        """Execute everything that was added, and iterate over this stream's records in the driver.

        Args:
            job_name: What people call the job.
            limit: How many records are wanted: the job is cancelled when they are there. None: all.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection("to be or not to be".split()).execute_and_collect())
        ['be', 'be', 'not', 'or', 'to', 'to']
        """
        from headgate.api.sinks import CollectSink  # noqa: PLC0415 - only where it is used

        inbox = Inbox()
        self._sink("collect", CollectSink(inbox))
        return Results(inbox, self._env.execute_async(job_name), limit, progress=self._env._progress)

    def to_dataframe(self, schema: Any, *, streamed: bool = False) -> Any:
        """A Spark DataFrame of this stream's records; the pipeline runs whenever Spark computes the DataFrame.

        Args:
            schema: DDL such as "word string, n long", or a Spark schema. Records are tuples in its order, dicts,
                objects with its names, or Arrow batches.
            streamed: Rows go on to the next step while the pipeline runs. Spark can then compute the DataFrame only as
                a whole: write, count or collect it. Otherwise Spark keeps the rows on its disks first, and everything
                works.
        """
        return self._env._to_dataframe(self._edges, schema, streamed=streamed)

    def _sink(self, name: str, sink: Sink[Any]) -> DataStreamSink:
        graph = self._env._graph
        in_driver = bool(getattr(sink, "in_driver", False))
        return DataStreamSink(graph.add(name, partial(SinkOperator, sink), inputs=self._edges, in_driver=in_driver))
