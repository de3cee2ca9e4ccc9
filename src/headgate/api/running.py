"""Waiting for a job: its progress on stderr, and its cancellation by Ctrl-C.

Used by the environment, by `Results` and by commands, on the waiting thread. Progress is drawn if stderr is a terminal;
otherwise it is a line every 5 s if progress was requested, and nothing if not.

Invariants: everything drawn is removed, also when the program ends meanwhile. One job at a time is shown.
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
    "register_job",
    "showing_activity",
    "showing_progress",
    "shows_progress",
    "stop",
    "unfinished_jobs",
]

_STOP_S: Final = 20.0  # how long Ctrl-C waits for the end of a job; a second Ctrl-C does not wait
_ACTIVITY_S: Final = 1.0  # shorter activities are not shown
_LINE_S: Final = 5.0  # between two lines, if stderr is not a terminal

_jobs: WeakSet[Job] = WeakSet()
_jobs_lock = threading.Lock()
_display = threading.Lock()  # held while a job is shown


def is_terminal(stream: TextIO) -> bool:
    """Return True if the stream is a terminal that can be drawn on.

    >>> import io
    >>> is_terminal(io.StringIO())
    False
    """
    return stream.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}


def shows_progress(progress: bool | None) -> bool:
    """Return `progress`, or if it is None, True if stderr is a terminal.

    >>> shows_progress(True), shows_progress(False)
    (True, False)
    """
    return is_terminal(sys.stderr) if progress is None else progress


def register_job(job: Job) -> None:
    """Add a job to `unfinished_jobs`, and publish it to other processes of this user; its final state is kept."""
    from headgate.attach.publishing import publish, wait_kept  # noqa: PLC0415 - imported when used

    with _jobs_lock:
        _jobs.add(job)
    number, before = job.id, job.wind_up

    def wind_up() -> None:
        before()
        wait_kept(number)

    job.wind_up = wind_up
    publish(job)


def unfinished_jobs() -> list[Job]:
    """Return the jobs of this process that are not over."""
    with _jobs_lock:
        jobs = list(_jobs)
    return [job for job in jobs if not job.status.over]


def stop(job: Job) -> bool:
    """Cancel a job and wait up to 20 s. Return True if it is over."""
    return job.cancel(timeout_s=_STOP_S)


def await_job(job: Job, progress: bool | None = None) -> None:
    """Block until the end of a job, and show its progress; Ctrl-C cancels the job and is raised again."""
    with showing_progress(job, progress):
        try:
            job.await_termination()
        except KeyboardInterrupt:
            stop(job)
            raise


@contextmanager
def showing_progress(job: Job, progress: bool | None = None) -> Iterator[None]:
    """Show the progress of a job until the end of the block, if `shows_progress(progress)`."""
    if not shows_progress(progress) or not _display.acquire(blocking=False):
        yield
        return
    live = is_terminal(sys.stderr)
    stack = ExitStack()
    try:
        # A generator that is iterated halfway lives until the interpreter ends, and so would its drawing.
        atexit.register(stack.close)
        if live:
            from headgate.coordinator.terminal import show_progress  # noqa: PLC0415 - only where it is used

            stack.enter_context(show_progress(job, enabled=True))
        else:
            stack.enter_context(_repeated(lambda: _write_line(progress_line(job.last_progress)), _LINE_S))
        yield
    finally:
        try:
            atexit.unregister(stack.close)
            stack.close()
        finally:
            _display.release()


def progress_line(progress: Progress) -> str:
    """Return the progress of a job in one line.

    >>> from headgate.observe.progress import Progress, VertexProgress
    >>> from headgate.observe.status import JobStatus
    >>> from headgate.control.messages import TaskState
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
def showing_activity(what: str, progress: bool | None = None) -> Iterator[None]:
    """Show an activity and its seconds until the end of the block, if it takes longer than 1 s."""
    stream = sys.stderr
    if not shows_progress(progress):
        yield
        return
    live = is_terminal(stream)
    began_s, shown = time.monotonic(), False

    def show() -> None:
        nonlocal shown
        if live:
            stream.write(f"\r{what} ... {time.monotonic() - began_s:.0f} s\x1b[K")
            stream.flush()
        elif not shown:
            _write_line(f"{what} ...")
        shown = True

    try:
        with _repeated(show, _ACTIVITY_S):
            yield
    finally:
        if live and shown:
            stream.write("\r\x1b[K")
            stream.flush()


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def _repeated(action: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call `action` every `every_s` seconds in a thread, until the end of the block."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            try:
                action()
            except (OSError, ValueError):  # stderr is closed
                return

    thread = threading.Thread(target=repeat, name="headgate-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
