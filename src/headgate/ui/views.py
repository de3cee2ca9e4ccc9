"""How the server looks at jobs without waiting for them: their calls run in threads, and nothing is asked for twice.

Used by the routes, on the server's event loop. A view is asked for once however many ask at the same time, and given
again for a moment, so that a page's requests of one second cost one. Rounds of sampling take seconds: who asks while
one is under way gets that one's answer, and a job has one at a time.

Invariants: the event loop never waits; after `stop` nobody waits for an answer any more, and no new call is begun.
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

    from headgate.observe.view import JobView, Watched

__all__ = ["Closing", "Looked", "UnknownJob", "Views"]

_T = TypeVar("_T")

_FRESH_S: Final = 0.25  # workers report once a second
_FRESH_OVER_S: Final = 5.0  # what is over does not change, but for what is found out about it
_REST: Final = 4.0  # a view that took long to make is given again for so many times as long: drivers have other work
_MAX_REST_S: Final = 2.0
_MAX_CONNECTIONS: Final = 256  # of workers, in what is asked for every second


class UnknownJob(LookupError):
    """There is no such job.

    >>> raise UnknownJob("no job 'x'")
    Traceback (most recent call last):
    headgate.ui.views.UnknownJob: no job 'x'
    """


class Closing(Exception):
    """The server is being closed: there will be no answer.

    >>> raise Closing
    Traceback (most recent call last):
    headgate.ui.views.Closing
    """


class Looked:
    """A view, and what is made of it when somebody asks.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> Looked(JobView(at_ms=1000, graph=GraphView(vertices=(), edges=()), progress=progress)).small[:14]
    b'{"at_ms":1000,'
    """

    def __init__(self, view: JobView, took_s: float = 0.0) -> None:
        self.view = view
        fresh_s = _FRESH_OVER_S if view.progress.status.over else _FRESH_S
        self.until_s = time.monotonic() + max(fresh_s, min(_REST * took_s, _MAX_REST_S))

    @classmethod
    def at(cls, watched: Watched) -> Looked:
        """Look at a job."""
        began_s = time.thread_time()
        view = watched.view()
        return cls(view, time.thread_time() - began_s)

    @cached_property
    def small(self) -> bytes:
        """The view as JSON without anything that there is one of per subtask: it is fetched every second."""
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
    """All jobs of a server. Everything but `join` is for the event loop's thread.

    >>> views = Views(lambda: {})
    >>> asyncio.run(views.look("1"))
    Traceback (most recent call last):
    headgate.ui.views.UnknownJob: there is no job '1' here
    """

    def __init__(self, jobs: Callable[[], Mapping[str, Watched]]) -> None:
        self._jobs = jobs
        self._seen: dict[str, Looked] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[Any]] = {}  # what is under way, by job and kind
        self._rounds: dict[str, asyncio.Lock] = {}
        self._stopped = asyncio.Event()
        self._threads: set[threading.Thread] = set()

    def ids(self) -> list[str]:
        """The jobs that there are now."""
        jobs = self._jobs()
        for gone in self._seen.keys() - jobs.keys():
            del self._seen[gone]
        for gone in self._rounds.keys() - jobs.keys():
            del self._rounds[gone]
        return list(jobs)

    def job(self, job: str) -> Watched:
        """One of them.

        Raises:
            UnknownJob: there is no such.
        """
        found = self._jobs().get(job)
        if found is None:
            raise UnknownJob(f"there is no job {job[:80]!r} here")
        return found

    async def look(self, job: str) -> Looked:
        """What it looks like now, or did a moment ago."""
        watched = self.job(job)
        seen = self._seen.get(job)
        if seen is not None and time.monotonic() < seen.until_s:
            return seen
        return await self._shared(job, "view", partial(self._look, job, watched))

    async def _look(self, job: str, watched: Watched) -> Looked:
        seen = await self.call(partial(Looked.at, watched))
        self._seen[job] = seen
        return seen

    async def round(self, job: str, kind: str) -> Any:
        """A new round of sampling, or the one that is under way: what `pressure` or `why` finds."""
        watched = self.job(job)
        call = partial({"pressure": watched.pressure, "why": watched.why}[kind], refresh=True)
        return await self._shared(job, kind, partial(self._round, job, call))

    async def _round(self, job: str, call: Callable[[], _T]) -> _T:
        async with self._rounds.setdefault(job, asyncio.Lock()):
            try:
                return await self.call(call)
            finally:
                self._seen.pop(job, None)  # the next view has it

    async def cancel(self, job: str) -> bool:
        """Stop a job; whether it is over."""
        over = await self._shared(job, "cancel", partial(self.call, self.job(job).cancel))
        self._seen.pop(job, None)
        return bool(over)

    async def _shared(self, job: str, kind: str, start: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Wait for what is under way, or begin it. It goes on if whoever waits goes away: others may wait too."""
        key = job, kind
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.ensure_future(start())
            task.add_done_callback(lambda done: self._done(key, done))
        found: _T = await asyncio.shield(task)
        return found

    def _done(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # if nobody waits any more, it is nobody's

    async def call(self, function: Callable[[], _T]) -> _T:
        """What a function that may wait returns, or raises."""
        if self._stopped.is_set():
            raise Closing
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()
        # A thread of its own that does not keep the interpreter alive: a round of sampling cannot be broken off.
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
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            tell = partial(_fail, answer, error)
        else:
            tell = partial(_finish, answer, result)
        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:
            pass  # the server is closed
        finally:
            self._threads.discard(threading.current_thread())

    def stop(self) -> None:
        """Let nobody wait any more."""
        self._stopped.set()

    def join(self, timeout_s: float) -> None:
        """Wait for threads that are still in a call; for any thread, after the event loop has ended."""
        deadline_s = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _finish(answer: asyncio.Future[_T], result: _T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
