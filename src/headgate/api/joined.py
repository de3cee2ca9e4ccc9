"""JoinedStreams: pairs of records of two streams with the same key and window."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.connected import with_two_inputs
from headgate.api.keyed import KeyedStream
from headgate.api.user_functions import checked, operator_name, result_hint
from headgate.functions.windows import WindowAssigner

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.api.stream import DataStream

__all__ = ["JoinedStreams"]

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class JoinedStreams(Generic[A, B]):
    """A join of two streams: returned by `DataStream.join`. Streams without keys need `where` and `equal_to`.

    >>> import headgate as hg
    >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
    >>> env = hg.environment(local=True, parallelism=2)
    >>> shown = env.from_collection([("ad1", 100), ("ad2", 200)]).assign_timestamps_and_watermarks(strategy)
    >>> clicked = env.from_collection([("ad1", 700), ("ad2", 1700)]).assign_timestamps_and_watermarks(strategy)
    >>> joined = shown.join(clicked).where(lambda pair: pair[0]).equal_to(lambda pair: pair[0])
    >>> seconds = joined.window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
    >>> list(seconds.apply(lambda show, click: (show[0], click[1] - show[1])).execute_and_collect())
    [('ad1', 600)]
    """

    def __init__(self, first: DataStream[A], second: DataStream[B], assigner: WindowAssigner | None = None) -> None:
        self._first = first
        self._second = second
        self._assigner = assigner

    def where(self, key: Callable[[A], Any]) -> JoinedStreams[A, B]:
        """Return the join with the key function of the first stream."""
        return JoinedStreams(self._first.key_by(key), self._second, self._assigner)

    def equal_to(self, key: Callable[[B], Any]) -> JoinedStreams[A, B]:
        """Return the join with the key function of the second stream."""
        return JoinedStreams(self._first, self._second.key_by(key), self._assigner)

    def window(self, window_assigner: WindowAssigner) -> JoinedStreams[A, B]:
        """Return the join with windows: only records of the same window are paired."""
        if not isinstance(window_assigner, WindowAssigner):
            raise TypeError(
                f"window wants an assigner, such as TumblingEventTimeWindows.of(size), not {window_assigner!r}"
            )
        return JoinedStreams(self._first, self._second, window_assigner)

    def apply(self, function: Callable[[A, B], R], output_type: object = None) -> DataStream[R]:
        """Return one record for each pair with equal keys in the same window: see the class.

        Raises:
            TypeError: A stream has no key, or there is no window.
        """
        from headgate.task.windows.join import WindowJoin  # noqa: PLC0415 - imported when used

        checked("join", function, "join")
        keys = []
        for stream, method in ((self._first, "where"), (self._second, "equal_to")):
            if not isinstance(stream, KeyedStream):
                raise TypeError(f"join: {stream!r} has no key: use {method}(key), or key_by before join")
            keys.append(stream._by_key("join"))
        if self._assigner is None:
            raise TypeError("join needs a window: use window(assigner) before apply")
        make = partial(WindowJoin, keys[0], keys[1], self._assigner, function)
        hint = result_hint(function, "join", given=output_type)
        return with_two_inputs(self._first, self._second, operator_name("join", function), make, hint)
