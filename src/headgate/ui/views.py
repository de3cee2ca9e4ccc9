"""Calls of jobs for the server: they run in threads, and concurrent requests share one call.

Used by the routes, on the server's event loop. A view is shared by all requests of a fraction of a second. A round of
sampling takes seconds: a request during a round shares its answer, and a job has one round at a time.

Invariants: the event loop never blocks; after `stop` all waiting requests fail with `Closing`, and no call is started.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headgate.observe.edges import edge_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from headgate.observe.view import JobView, ObservedJob

__all__ = ["Closing", "UnknownJob", "ViewSnapshot", "Views"]

_T = TypeVar("_T")

_FRESH_S: Final = 0.25  # workers report once a second
_FRESH_OVER_S: Final = 5.0  # a job that is over does not change, except for its diagnosis
_REUSE: Final = 4.0  # a view is used for this many times the CPU time that it took: the driver has other work
_MAX_REUSE_S: Final = 2.0
_MAX_CONNECTIONS: Final = 256  # of workers, in the answer that is requested every second


class UnknownJob(LookupError):
    """There is no such job."""


class Closing(Exception):
    """The server is being closed, and does not answer."""


class ViewSnapshot:
    """A view, how long it is valid, and its short JSON form."""

    def __init__(self, view: JobView, took_s: float = 0.0) -> None:
        self.view = view
        fresh_s = _FRESH_OVER_S if view.progress.status.over else _FRESH_S
        self.until_s = time.monotonic() + max(fresh_s, min(_REUSE * took_s, _MAX_REUSE_S))

    @classmethod
    def take(cls, job: ObservedJob) -> ViewSnapshot:
        """Return a snapshot of a job."""
        began_s = time.thread_time()
        view = job.view()
        return cls(view, time.thread_time() - began_s)

    @cached_property
    def summary_json(self) -> bytes:
        """Return the view as JSON without subtasks: it is requested every second."""
        view = self.view
        progress = view.progress
        workers = progress.workers
        if sum(len(one.connections) for one in workers) > _MAX_CONNECTIONS:
            workers = tuple(replace(one, connections=()) for one in workers)
        vertices = tuple(replace(one, subtasks=()) for one in progress.vertices)
        return replace(
            view,
            edges=view.edges or edge_progress(progress, view.graph),
            graph=replace(view.graph, vertices=tuple(replace(one, workers=()) for one in view.graph.vertices)),
            progress=replace(progress, workers=workers, vertices=vertices),
            pressure=None,
            timeline=None,
        ).to_json()


class Views:
    """All jobs of a server. All methods but `join` are for the thread of the event loop.

    >>> views = Views(lambda: {})
    >>> asyncio.run(views.snapshot("1"))
    Traceback (most recent call last):
    headgate.ui.views.UnknownJob: there is no job '1' here
    """

    def __init__(self, jobs: Callable[[], Mapping[str, ObservedJob]]) -> None:
        self._jobs = jobs
        self._snapshots: dict[str, ViewSnapshot] = {}
        self._calls: dict[tuple[str, str], asyncio.Task[Any]] = {}  # in progress, by job and kind
        self._rounds: dict[str, asyncio.Lock] = {}
        self._stopped = asyncio.Event()
        self._threads: set[threading.Thread] = set()

    def ids(self) -> list[str]:
        """Return the ids of the current jobs."""
        jobs = self._jobs()
        for gone in self._snapshots.keys() - jobs.keys():
            del self._snapshots[gone]
        for gone in self._rounds.keys() - jobs.keys():
            del self._rounds[gone]
        return list(jobs)

    def job(self, job: str) -> ObservedJob:
        """Return a job.

        Raises:
            UnknownJob: there is no such job.
        """
        found = self._jobs().get(job)
        if found is None:
            raise UnknownJob(f"there is no job {job[:80]!r} here")
        return found

    async def snapshot(self, job: str) -> ViewSnapshot:
        """Return the last snapshot of a job if it is still valid, else a new one."""
        observed = self.job(job)
        last = self._snapshots.get(job)
        if last is not None and time.monotonic() < last.until_s:
            return last
        return await self._shared(job, "view", partial(self._take, job, observed))

    async def _take(self, job: str, observed: ObservedJob) -> ViewSnapshot:
        found = await self.call(partial(ViewSnapshot.take, observed))
        self._snapshots[job] = found
        return found

    async def round(self, job: str, kind: str) -> Any:
        """Return the answer of `pressure` or `why`, from a new round of sampling or from the one in progress."""
        observed = self.job(job)
        call = partial({"pressure": observed.pressure, "why": observed.why}[kind], refresh=True)
        return await self._shared(job, kind, partial(self._round, job, call))

    async def _round(self, job: str, call: Callable[[], _T]) -> _T:
        async with self._rounds.setdefault(job, asyncio.Lock()):
            try:
                return await self.call(call)
            finally:
                self._snapshots.pop(job, None)  # the next view contains the answer

    async def cancel(self, job: str) -> bool:
        """Cancel a job. Return True if it is over."""
        over = await self._shared(job, "cancel", partial(self.call, self.job(job).cancel))
        self._snapshots.pop(job, None)
        return bool(over)

    async def _shared(self, job: str, kind: str, start: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Wait for the call in progress, or start one. It continues if a request is cancelled: others may share it."""
        key = job, kind
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = asyncio.ensure_future(start())
            task.add_done_callback(lambda done: self._done(key, done))
        found: _T = await asyncio.shield(task)
        return found

    def _done(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        del self._calls[key]
        if not task.cancelled():
            task.exception()  # read once, or asyncio logs it if no request waits any more

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function that may block in a thread, and return its result.

        Raises:
            Closing: the server is being closed.
        """
        if self._stopped.is_set():
            raise Closing
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()
        # A daemon thread, not a pool: a round of sampling cannot be cancelled, and must not delay the process's end.
        thread = threading.Thread(target=self._run, args=(function, answer, loop), name="headgate-ui-call", daemon=True)
        self._threads.add(thread)
        thread.start()
        stopped = asyncio.ensure_future(self._stopped.wait())
        waiting: set[asyncio.Future[Any]] = {answer, stopped}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                raise Closing
            return answer.result()
        finally:
            stopped.cancel()

    def _run(self, function: Callable[[], _T], answer: asyncio.Future[_T], loop: asyncio.AbstractEventLoop) -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - it is raised in `call`
            deliver = partial(_fail, answer, error)
        else:
            deliver = partial(_finish, answer, result)
        try:
            loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            pass  # the server is closed
        finally:
            self._threads.discard(threading.current_thread())

    def stop(self) -> None:
        """Let all waiting requests fail."""
        self._stopped.set()

    def join(self, timeout_s: float) -> None:
        """Block until all calls have ended, or the time is over; for any thread, after the event loop has ended."""
        deadline_s = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _finish(answer: asyncio.Future[_T], result: _T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
