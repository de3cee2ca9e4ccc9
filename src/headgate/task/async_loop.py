"""The event loop of one `MapAsync`: a thread that runs coroutines and hands their results back.

`submit`, `close` are called on the task's thread; `deliver` on this loop's own. It is a module of its own so that only
pipelines with coroutines import asyncio.

Invariants: every call that was submitted is delivered once, whatever it raised, until the loop is closed; the function
is opened and closed on the loop, so that it may make its clients there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.task.async_map import Call

__all__ = ["CoroutineLoop"]


class CoroutineLoop:
    """Runs coroutines in a thread of its own, from `open` to `close`.

    >>> import queue
    >>> from headgate.task.async_map import Call
    >>> async def double(value):
    ...     return 2 * value
    >>> done = queue.SimpleQueue()
    >>> loop = CoroutineLoop(double, deliver=done.put, timeout_s=None, name="double")
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
    ) -> None:
        self._call = call
        self._deliver = deliver
        self._timeout_s = timeout_s
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()  # a loop alone would let them be collected
        self._opened: Future[None] = Future()
        self._closed: Future[None] = Future()

    def open(self, opening: Callable[[], Any]) -> None:
        """Start the thread, and do something on the loop first; what that raises ends the loop and is raised here."""
        self._thread = threading.Thread(target=self._main, args=(opening,), name=self._name, daemon=True)
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def ident(self) -> int | None:
        """The identity of its thread, while that runs; for any thread."""
        return self._thread.ident if self._thread.is_alive() else None

    def waiting(self) -> Any:
        """One of the coroutines that have not ended, or None; for any thread."""
        some = list(self._tasks)  # in one step: the loop's thread adds and discards
        return some[0].get_coro() if some else None

    def submit(self, calls: Sequence[Call]) -> None:
        """Start calls, all together."""
        self._loop.call_soon_threadsafe(self._start, calls)

    def close(self, closing: Callable[[], Any], *, timeout_s: float) -> bool:
        """Cancel what still runs, do something last, and end the thread. Whether it has ended in time."""
        self._loop.call_soon_threadsafe(self._stop.set_result, closing)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._closed.result(0)
        return True

    # On the loop's own thread.

    def _main(self, opening: Callable[[], Any]) -> None:
        try:
            asyncio.run(self._serve(opening))
        except BaseException as error:  # noqa: BLE001 - raised where the task waits for it
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                self._closed.set_exception(error)
        else:
            self._closed.set_result(None)

    async def _serve(self, opening: Callable[[], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[Callable[[], Any]] = self._loop.create_future()
        await _either(opening())
        self._opened.set_result(None)
        closing = await self._stop
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _either(closing())

    def _start(self, calls: Sequence[Call]) -> None:
        for call in calls:
            task = self._loop.create_task(self._run(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call) -> None:
        try:
            if self._timeout_s is None:
                call.result = await self._call(call.value)
            else:
                call.result = await self._run_in_time(call.value, self._timeout_s)
        except Exception as error:  # noqa: BLE001 - raised on the task's thread
            call.error = error
        except BaseException as error:  # noqa: BLE001 - as well, or the task would wait for it forever
            call.error = RuntimeError(f"the coroutine ended by {type(error).__name__}")
            call.error.__cause__ = error
        self._deliver(call)

    async def _run_in_time(self, value: Any, timeout_s: float) -> Any:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await self._call(value)
        except TimeoutError as error:
            if not limit.expired():
                raise  # the user's own
            raise TimeoutError(f"no result within {timeout_s:g} s") from error


async def _either(found: Any) -> None:
    """What a function does that may be a coroutine or not."""
    if inspect.isawaitable(found):
        await found
