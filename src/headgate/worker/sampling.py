"""Samples the stacks of a worker's task threads, when the coordinator asks for it (B1).

`start` and `stop` are called by the thread that serves the control connection; a round has a thread of its own, which
ends with it. What a stack says is found out by `stacks`.

Invariants: nothing runs, and nothing is kept, while nobody asks; one round at a time: a new one ends the one before;
each that was started is answered once, with what it has, also when it is stopped; no frame outlives a sample.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from headgate.worker.link import MAX_MESSAGE_BYTES
from headgate.worker.messages import Sampled
from headgate.worker.stacks import Stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from headgate.worker.messages import FromWorker, Sample
    from headgate.worker.setup import RunningTask

__all__ = ["Sampler"]

_log = logging.getLogger("headgate.worker")

_JOIN_S: Final = 5.0  # it only takes the sample that it was at
_LATE_S: Final = 2.0  # a round that takes so much longer than it should is ended
_STACK_BYTES: Final = MAX_MESSAGE_BYTES // 2  # of an answer; the rest is more than all else in it takes
_LEAST_BYTES: Final = 256
_looking = threading.Lock()  # one at a time in a process: each turns the collector off, and on again


class Sampler:
    """Answers `Sample`.

    >>> import queue
    >>> from headgate.worker.messages import Sample
    >>> told = queue.SimpleQueue()
    >>> sampler = Sampler(lambda: [], told.put)
    >>> sampler.start(Sample(request=1, samples=100, delay_ms=50))
    >>> told.get(timeout=10)  # at once: it has no tasks
    Sampled(request=1, subtasks=[])
    >>> sampler.stop()
    """

    def __init__(self, tasks: Callable[[], Sequence[RunningTask]], tell: Callable[[FromWorker], object]) -> None:
        self._tasks = tasks
        self._tell = tell
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, request: Sample) -> None:
        """Begin a round; its answer is told from its own thread."""
        self.stop()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(request, self._stop), name="headgate-sampler", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the round that runs, if one does: it answers with what it has. May be repeated."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            self._thread = None

    # On the round's own thread.

    def _run(self, request: Sample, stop: threading.Event) -> None:
        try:
            wanted = set(request.vertices)
            tasks = [one for one in self._tasks() if not wanted or one.vertex.id in wanted]
            rows = [(one, Stacks(one.task.chain.operators)) for one in tasks]
            delay_s = request.delay_ms / 1000
            late_s = time.monotonic() + request.samples * delay_s + _LATE_S
            for number in range(request.samples):
                if number and (stop.wait(delay_s) or time.monotonic() > late_s):
                    break
                if not _look(rows):
                    break  # nobody is left
            self._tell(_answer(request.request, rows))
        except Exception:  # noqa: BLE001 - one who only looks must not end the job
            _log.exception("sampling stacks failed: a bug in headgate")


def _look(rows: Sequence[tuple[RunningTask, Stacks]]) -> bool:
    """Take a sample of each task; whether any still runs."""
    frames = _frames()
    try:
        states = [one.timer.state for one, _ in rows]
        any_runs = False
        for (one, stacks), state in zip(rows, states, strict=True):
            # Asked for after the frames were: whose thread still runs, it is not one that has got its number since.
            ident = one.task.ident
            if ident is not None and ident in frames:
                any_runs = True
                stacks.see(ident, frames, state)
        return any_runs
    finally:
        frames.clear()  # this thread's own is among them, and that of others who look


def _frames() -> dict[int, FrameType]:
    """What every thread is at; no collection meanwhile.

    The interpreter holds its lock of all threads while it makes the dict. A collection in the middle of that may run a
    finalizer, in which another thread gets the interpreter; if that one starts a thread, it waits for the lock, and all
    others for it, for ever. Seen with CPython 3.11.
    """
    with _looking:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collecting:
                gc.enable()


def _answer(request: int, rows: Sequence[tuple[RunningTask, Stacks]]) -> Sampled:
    taken = [(one, stacks) for one, stacks in rows if stacks.taken]
    each = max(_LEAST_BYTES, _STACK_BYTES // max(1, len(taken)))
    return Sampled(request, [stacks.answer(one.vertex.id, one.subtask, max_bytes=each) for one, stacks in taken])
