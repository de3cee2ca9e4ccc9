"""What whoever waits for a job sees meanwhile, and how Ctrl-C ends it.

Used by the environment, by `Results` and by commands, on the thread that waits. Everything is shown on stderr: drawn
where that is a terminal, as a line now and then where progress was asked for and it is none, else not at all.

Invariants: nothing that is drawn stays, also when the program ends in the middle; one job at a time is shown.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TextIO
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.coordinator.job import Job
    from headgate.observe.progress import Progress

__all__ = [
    "await_job",
    "is_terminal",
    "progress_line",
    "remember",
    "saying",
    "shows_progress",
    "stop",
    "unfinished",
    "watching",
]

_STOP_S: Final = 20.0  # how long Ctrl-C waits for the end of a job; a second one does not wait
_SAY_AFTER_S: Final = 1.0  # what takes less is not worth a word
_PLAIN_S: Final = 5.0  # between two lines, where there is no terminal to draw on

_jobs: WeakSet[Job] = WeakSet()
_jobs_lock = threading.Lock()
_shown = threading.Lock()  # held by the one that is shown


def is_terminal(stream: TextIO) -> bool:
    """Whether something can be drawn there.

    >>> import io
    >>> is_terminal(io.StringIO())
    False
    """
    return stream.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}


def shows_progress(progress: bool | None) -> bool:
    """Whether anything is to be shown: as was said, or where there is a terminal.

    >>> shows_progress(True), shows_progress(False)
    (True, False)
    """
    return is_terminal(sys.stderr) if progress is None else progress


def remember(job: Job) -> None:
    """Let `unfinished` know of a job, and other processes of this user see it; what is left of it at its end is kept.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.rate(10).for_each(lambda n: None)
    >>> job = env.execute_async("for ever")  # which calls it
    >>> job in unfinished(), stop(job), job in unfinished()
    (True, True, False)
    """
    from headgate.attach.offers import offer, settle  # noqa: PLC0415 - not before something is run

    with _jobs_lock:
        _jobs.add(job)
    number, before = job.id, job.wind_up

    def wind_up() -> None:
        before()
        settle(number)

    job.wind_up = wind_up
    offer(job)


def unfinished() -> list[Job]:
    """The jobs that were started in this process and are not over.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.rate(10).for_each(lambda n: None)
    >>> job = env.execute_async("for ever")
    >>> [one.name for one in unfinished()], job.cancel(), unfinished()
    (['for ever'], True, [])
    """
    with _jobs_lock:
        jobs = list(_jobs)
    return [job for job in jobs if not job.status.over]


def stop(job: Job) -> bool:
    """Cancel a job for somebody who does not want to wait long; whether it is over.

    >>> from headgate.coordinator.job import Job, JobStatus
    >>> job = Job("1", "etl", progress=lambda: None, cancel=lambda reason: job.end(JobStatus.CANCELLED))
    >>> stop(job), job.status
    (True, <JobStatus.CANCELLED: 'cancelled'>)
    """
    return job.cancel(timeout_s=_STOP_S)


def await_job(job: Job, progress: bool | None = None) -> None:
    """Wait for the end of a job and show how it goes; Ctrl-C cancels it and is raised again.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> printed = env.from_collection(["to", "be"]).print()
    >>> await_job(env.execute_async())
    to
    be
    """
    with watching(job, progress):
        try:
            job.await_termination()
        except KeyboardInterrupt:
            stop(job)
            raise


@contextmanager
def watching(job: Job, progress: bool | None = None) -> Iterator[None]:
    """Show how a job goes, as long as the block lasts.

    Args:
        job: Which.
        progress: Whether to show it; None: in a terminal.

    >>> with watching(None, progress=False):
    ...     print("quiet")
    quiet
    """
    if not shows_progress(progress) or not _shown.acquire(blocking=False):
        yield
        return
    live = is_terminal(sys.stderr)
    stack = ExitStack()
    try:
        # A generator that is iterated halfway lives until the interpreter ends: what it has drawn must not.
        atexit.register(stack.close)
        if live:
            from headgate.coordinator.terminal import show_progress  # noqa: PLC0415 - only where it is used

            stack.enter_context(show_progress(job, enabled=True))
        else:
            stack.enter_context(_repeated(lambda: _say_line(progress_line(job.last_progress)), _PLAIN_S))
        yield
    finally:
        try:
            atexit.unregister(stack.close)
            stack.close()
        finally:
            _shown.release()


def progress_line(progress: Progress) -> str:
    """A job in one line, for a log.

    >>> from headgate.observe.progress import Progress, VertexProgress
    >>> from headgate.observe.status import JobStatus
    >>> from headgate.worker.messages import TaskState
    >>> words = VertexProgress(
    ...     id=0, name="words", parallelism=2, state=TaskState.RUNNING, records_out_per_s=1500, subtasks=()
    ... )
    >>> running = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=5, workers=(), vertices=(words,))
    >>> progress_line(running)
    'etl: running, 5 s | words: 0/s in, 1.5k/s out'
    """
    from headgate.coordinator.terminal import count_text  # noqa: PLC0415
    from headgate.observe.status import JobStatus  # noqa: PLC0415 - only where it is used

    if progress.status is JobStatus.CREATED:
        there = sum(worker.pid != 0 for worker in progress.workers)
        return f"{progress.name}: starting workers, {there} of {len(progress.workers)} are there"
    parts = [f"{progress.name}: {progress.status}, {progress.uptime_s:.0f} s"]
    for vertex in progress.vertices:
        rates = f"{count_text(vertex.records_in_per_s)}/s in, {count_text(vertex.records_out_per_s)}/s out"
        parts.append(f"{vertex.name}: {rates}")
    return " | ".join(parts)


@contextmanager
def saying(what: str, progress: bool | None = None) -> Iterator[None]:
    """Say what is going on if it takes longer than a moment, as long as the block lasts.

    >>> with saying("starting Spark"):
    ...     pass
    """
    stream = sys.stderr
    if not shows_progress(progress):
        yield
        return
    live = is_terminal(stream)
    began_s, said = time.monotonic(), False

    def say() -> None:
        nonlocal said
        if live:
            stream.write(f"\r{what} ... {time.monotonic() - began_s:.0f} s\x1b[K")
            stream.flush()
        elif not said:
            _say_line(f"{what} ...")
        said = True

    try:
        with _repeated(say, _SAY_AFTER_S):
            yield
    finally:
        if live and said:
            stream.write("\r\x1b[K")
            stream.flush()


def _say_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def _repeated(action: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call it again and again, from a thread."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            try:
                action()
            except (OSError, ValueError):  # nobody reads it any more
                return

    thread = threading.Thread(target=repeat, name="headgate-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
