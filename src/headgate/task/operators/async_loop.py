"""The event loop of one `MapAsync`: a thread that runs coroutines and delivers their results.

The task's thread calls `submit` and `close`; this loop's thread calls `deliver`. It is a separate module so that only
pipelines with coroutines import asyncio.

Invariants: every submitted call is delivered once, also if it raised, until the loop is closed. `own` copies a result
before another coroutine runs, which might change it. The function is opened and closed on the loop, so that it can
create its clients there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from headgate import forks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.task.operators.async_map import Call

__all__ = ["CoroutineLoop"]


class CoroutineLoop:
    """Runs coroutines in a thread of its own, from `open` to `close`.

    >>> import queue
    >>> from headgate.task.operators.async_map import Call
    >>> async def double(value):
    ...     return 2 * value
    >>> done = queue.SimpleQueue()
    >>> loop = CoroutineLoop(double, deliver=done.put, timeout_s=None, name="double", own=lambda result: result)
    >>> loop.open(lambda: None); loop.submit([Call(21, None)])
    >>> done.get(timeout=10).result, loop.close(lambda: None, timeout_s=10)
    (42, True)
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        *,
        deliver: Callable[[Call], object],
        timeout_s: float | None,
        name: str,
        own: Callable[[Any], Any],
    ) -> None:
        self._call = call
        self._own = own
        self._deliver = deliver
        self._timeout_s = timeout_s
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()  # the loop has weak references only: tasks would be collected
        self._opened: Future[None] = Future()
        self._closed: Future[None] = Future()
        self._abandoned = False  # True in a child process that user code has forked
        forks.register(self)

    def abandon(self) -> None:
        """See `forks`."""
        self._abandoned = True

    def open(self, opening: Callable[[], Any]) -> None:
        """Start the thread and call `opening` on the loop; its error ends the loop and is raised here."""
        self._thread = threading.Thread(target=self._main, args=(opening,), name=self._name, daemon=True)
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def ident(self) -> int | None:
        """The identifier of the loop's thread while it runs, else None. Read by any thread."""
        return self._thread.ident if self._thread.is_alive() else None

    def waiting(self) -> Any:
        """Return one of the unfinished coroutines, or None. Called from any thread."""
        some = list(self._tasks)  # atomic: the loop's thread adds and discards
        return some[0].get_coro() if some else None

    def submit(self, calls: Sequence[Call]) -> None:
        """Start the coroutines of `calls`."""
        self._loop.call_soon_threadsafe(self._start, calls)

    def close(self, closing: Callable[[], Any], *, timeout_s: float) -> bool:
        """Cancel the coroutines, call `closing` on the loop, and end the thread. Return True if it ended in time."""
        self._loop.call_soon_threadsafe(self._stop.set_result, closing)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._closed.result(0)
        return True

    # Called on the loop's thread.

    def _main(self, opening: Callable[[], Any]) -> None:
        try:
            asyncio.run(self._serve(opening))
        except BaseException as error:  # noqa: BLE001 - raised where the task waits for it
            if self._abandoned:
                forks.end_child(error)
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                self._closed.set_exception(error)
        else:
            self._closed.set_result(None)

    async def _serve(self, opening: Callable[[], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[Callable[[], Any]] = self._loop.create_future()
        await _await_if_needed(opening())
        self._opened.set_result(None)
        closing = await self._stop
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _await_if_needed(closing())

    def _start(self, calls: Sequence[Call]) -> None:
        for call in calls:
            task = self._loop.create_task(self._run(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call) -> None:
        try:
            if self._timeout_s is None:
                call.result = self._own(await self._call(call.value))
            else:
                call.result = self._own(await self._run_in_time(call.value, self._timeout_s))
        except Exception as error:  # noqa: BLE001 - raised on the task's thread
            call.error = error
        except BaseException as error:  # noqa: BLE001 - raised there, too: the task would block forever
            call.error = RuntimeError(f"the coroutine ended by {type(error).__name__}")
            call.error.__cause__ = error
        if self._abandoned:
            forks.end_child(call.error)
        self._deliver(call)

    async def _run_in_time(self, value: Any, timeout_s: float) -> Any:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await self._call(value)
        except TimeoutError as error:
            if not limit.expired():
                raise  # raised by the user's code
            raise TimeoutError(f"no result within {timeout_s:g} s") from error


async def _await_if_needed(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
