"""Samples the stacks of a worker's task threads when the coordinator requests it (B1).

`StackSampler` runs one round of samples on a thread of its own; the control thread calls `start` and `stop`.
`StackCounts` folds the samples of one task: it finds the operator by the code of its methods, and keeps the user's
functions below it with their lines.

Invariants: nothing runs and nothing is kept without a request; one round at a time: a new one ends the one before;
each round is answered once, also when it is stopped; no frame is kept after a sample, and no user code is called;
locals are read only if two operators of a chain have the same class; at most `MAX_STACKS` stacks are kept apart, and
`MAX_FRAMES` frames of each; every sample is counted once.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from enum import Enum
from types import CodeType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headgate.control.link import MAX_MESSAGE_BYTES
from headgate.control.reports import MAX_FRAMES, MAX_STACKS, Stack, StackSamples, SubtaskSamples
from headgate.meters import Activity
from headgate.task.operators.async_map import MapAsync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from headgate.control.messages import FromWorker, SampleStacks
    from headgate.task.operator import Operator
    from headgate.worker.setup import DeployedTask

__all__ = ["OTHERS", "StackCounts", "StackSampler"]

OTHERS: Final = "others"
"""The only frame of stacks above the limits."""

_MAX_TEXT: Final = 120  # characters of a function's name, and of a file's
_MAX_OPERATOR: Final = 1000  # characters of an operator's name
_STACK_OVERHEAD_BYTES: Final = 60  # of a `Stack` in a message, without its texts
_MAX_DEPTH: Final = 10_000  # frames that are searched for an operator
_LEFT_OUT: Final = "..."
_LOOPS: Final = "headgate.task.runtime.loop"
_BUILT_IN: Final = "built-in function"
# headgate's functions that call a user's function for each value of a batch.
_CALLERS: Final = frozenset(
    {
        ("headgate.task.operator", "Operator.answers"),
        ("headgate.task.operators.calls", "mapped"),
        ("headgate.task.operators.calls", "flat_mapped"),
        ("headgate.task.operators.calls", "filtered"),
        ("headgate.record.copying", "owned"),
        ("headgate.record.copying", "<listcomp>"),  # inside `owned`, before Python 3.12
    }
)
_CALLING_MODULES: Final = frozenset(module for module, _ in _CALLERS)
_WAITS: Final = {
    Activity.IDLE: "waits for input (headgate)",
    Activity.BACK_PRESSURED: "waits for a buffer (headgate)",
    Activity.WAITING: "waits for coroutines (headgate)",
}
_OPERATING: Final = frozenset({Activity.BUSY, Activity.WAITING})  # the thread is inside an operator
# Packages of headgate whose functions count as the user's: pipelines are made of them.
_LIKE_USERS: Final = frozenset({"headgate.examples", "headgate.experiments", "headgate.bench", "headgate.cli"})
# Libraries that headgate uses, beside the standard one.
_LIBRARIES: Final = frozenset({"cloudpickle", "fsspec", "msgspec", "numpy", "pandas", "pyarrow", "pyspark"})
# Modules that operators use themselves. Any other library function that they call was passed by the user.
_HELPERS: Final = frozenset(
    {"abc", "asyncio", "concurrent", "contextlib", "copy", "copyreg", "enum", "logging", "queue", "selectors"}
    | {"threading", "weakref"}
)


class _Owner(Enum):
    """Where code belongs."""

    USER = "the user's"
    LIBRARY = "its caller's"
    TASK = "headgate's, and calls user functions"
    HEADGATE = "headgate's"


_HEADGATES: Final = frozenset({_Owner.TASK, _Owner.HEADGATE})


class _Code(NamedTuple):
    """A function."""

    name: str
    file: str
    module: str
    owner: _Owner


class _Step(NamedTuple):
    """A frame: a function and a line in it."""

    code: _Code
    line: int


class StackCounts:
    """Counts the sampled stacks of one task's thread. `operators` are those of its chain, the head first.

    >>> import sys, threading
    >>> from headgate.meters import Activity
    >>> from headgate.task.operators.basic import Map
    >>> from headgate.testing.harness import OperatorHarness
    >>> def slow(word):  # samples its own stack
    ...     stacks.add(threading.get_ident(), sys._current_frames(), Activity.BUSY)
    >>> with OperatorHarness(Map(slow)) as harness:
    ...     stacks = StackCounts([harness.operator])
    ...     harness.process(["to"])
    >>> samples = stacks.samples(vertex=0, subtask=0, max_bytes=1000)
    >>> samples.taken, samples.stacks[0].operator
    (1, 'Map')
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.taken = 0
        self._head = operators[0].place.operator if operators else ""
        self._operators = _by_code(operators)
        self._codes: dict[CodeType, _Code] = {}
        self._counts: dict[tuple[str, tuple[str, ...]], list[int]] = {}  # all, idle, back-pressured

    def add(self, ident: int, frames: Mapping[int, FrameType], state: Activity) -> None:
        """Count a sample: the stack of thread `ident`, which was in this state."""
        operator, steps = self._walk(frames[ident])
        seen = self._users(steps)
        if not seen and state in _OPERATING and isinstance(operator, MapAsync):
            seen = self._of_coroutines(operator, frames)
        if not seen:
            seen = (_WAITS.get(state) or _own_name(steps),)
        name = operator if isinstance(operator, str) else operator.place.operator
        self._count((_text(name, _MAX_OPERATOR), _shortened(seen)), state)

    def samples(self, vertex: int, subtask: int, *, max_bytes: int) -> SubtaskSamples:
        """Return all samples, the most frequent stacks first; stacks above `max_bytes` are counted as others."""
        stacks, others, left = [], [0, 0, 0], max_bytes
        ranked = sorted(self._counts.items(), key=lambda item: (item[0][1] == (OTHERS,), -item[1][0]))
        for (operator, frames), counts in ranked:
            left -= _STACK_OVERHEAD_BYTES + sum(len(text.encode()) + 8 for text in (operator, *frames))
            if left < 0 or frames == (OTHERS,):
                others = [sum(pair) for pair in zip(others, counts, strict=True)]
            else:
                stacks.append(_stack(operator, frames, counts))
        if others[0]:
            stacks.append(_stack("", (OTHERS,), others))
        _, idle, back_pressured = map(sum, zip([0, 0, 0], *self._counts.values(), strict=True))
        return SubtaskSamples(vertex, subtask, self.taken, idle, back_pressured, stacks)

    def _count(self, key: tuple[str, tuple[str, ...]], state: Activity) -> None:
        if key not in self._counts and len(self._counts) >= MAX_STACKS - 1:
            key = "", (OTHERS,)
        counts = self._counts.setdefault(key, [0, 0, 0])
        self.taken += 1
        counts[0] += 1
        counts[1] += state is Activity.IDLE
        counts[2] += state is Activity.BACK_PRESSURED

    # Reading a stack.

    def _walk(self, frame: FrameType | None) -> tuple[Operator | str, list[_Step]]:
        """Return the innermost operator, or the name of the chain's head, and the steps from there inwards."""
        inwards: list[_Step] = []
        operator: Operator | str | None = None
        while frame is not None and operator is None and len(inwards) < _MAX_DEPTH:
            step = self._step(frame)
            inwards.append(step)
            operator = self._operator_of(frame)
            if operator is None and step.code.module == _LOOPS:
                operator = self._head  # the loop reads splits or input for the head
            frame = frame.f_back
        inwards.reverse()
        return "" if operator is None else operator, inwards

    def _step(self, frame: FrameType) -> _Step:
        code = frame.f_code
        known = self._codes.get(code)
        if known is None:
            known = self._codes[code] = _known(code, frame.f_globals.get("__name__"))
        return _Step(known, frame.f_lineno or code.co_firstlineno)

    def _operator_of(self, frame: FrameType) -> Operator | None:
        candidates = self._operators.get(frame.f_code, ())
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        # Before Python 3.13 this leaves a copy of all locals with the frame until its call returns, which keeps the
        # operator's current batch alive until then.
        found = frame.f_locals.get("self")
        return next((one for one in candidates if one is found), None)

    def _users(self, steps: Sequence[_Step]) -> tuple[str, ...]:
        """Return the user's functions, and library functions that these, or operators for them, have called."""
        users: list[str] = []
        caller = _Owner.HEADGATE
        for code, line in steps:
            if code.owner in _HEADGATES:
                caller = code.owner
                continue
            if code.owner is _Owner.LIBRARY:
                wanted = caller is _Owner.TASK and code.module.partition(".")[0] not in _HELPERS
                if caller is not _Owner.USER and not wanted:
                    continue  # headgate calls it for itself
            caller = _Owner.USER
            users.append(f"{code.name} ({code.file}:{line})")
        return tuple(users)

    def _of_coroutines(self, operator: MapAsync, frames: Mapping[int, FrameType]) -> tuple[str, ...]:
        """Return the stack of the coroutine that runs, or of one that is suspended."""
        loop = operator.coroutines
        if loop is None:
            return ()
        frame, inwards = frames.get(loop.ident or 0), list[_Step]()
        while frame is not None and len(inwards) < _MAX_DEPTH:
            inwards.append(self._step(frame))
            frame = frame.f_back
        inwards.reverse()
        return self._users(inwards) or self._users(self._awaited(loop.waiting()))

    def _awaited(self, waiting: Any) -> list[_Step]:
        """Return the steps of a suspended coroutine and of what it awaits."""
        steps: list[_Step] = []
        while len(steps) < MAX_FRAMES:
            if isinstance(waiting, CoroutineType):
                frame, waiting = waiting.cr_frame, waiting.cr_await
            elif isinstance(waiting, GeneratorType):
                frame, waiting = waiting.gi_frame, waiting.gi_yieldfrom
            else:
                break
            if frame is None:  # it has ended
                break
            steps.append(self._step(frame))
        return steps


def _stack(operator: str, frames: tuple[str, ...], counts: Sequence[int]) -> Stack:
    count, idle, back_pressured = counts
    return Stack(operator=operator, frames=frames, count=count, idle=idle, back_pressured=back_pressured)


def _by_code(operators: Sequence[Operator]) -> dict[CodeType, list[Operator]]:
    """Return the operators by the code of their methods."""
    found: dict[CodeType, list[Operator]] = {}
    for operator in operators:
        for kind in type(operator).__mro__:
            for method in vars(kind).values():
                # A decorated method has its decorator's code, which is not unique.
                if isinstance(method, FunctionType) and method.__globals__.get("__name__") == kind.__module__:
                    found.setdefault(method.__code__, []).append(operator)
    return found


def _known(code: CodeType, module: object) -> _Code:
    name = module if isinstance(module, str) else ""
    root, *rest = name.split(".")
    if root == "headgate":
        package = ".".join([root, *rest[:1]])
        calls_users = package == "headgate.task" or name in _CALLING_MODULES
        owner = _Owner.TASK if calls_users else _Owner.HEADGATE
        if package in _LIKE_USERS:
            owner = _Owner.USER
    elif root in _LIBRARIES or root in sys.stdlib_module_names:
        owner = _Owner.LIBRARY
    else:
        owner = _Owner.USER
    function = code.co_qualname.rpartition("<locals>.")[2]
    return _Code(_text(function), _text(os.path.basename(code.co_filename)), name, owner)


def _own_name(steps: Sequence[_Step]) -> str:
    """Return a name for a stack without user functions: headgate's innermost function."""
    for code, _ in reversed(steps):
        if (code.module, code.name) in _CALLERS:
            return _BUILT_IN  # a function that is not written in Python has no frame
        if code.owner in _HEADGATES:
            return f"{code.name} (headgate)"
    return "(headgate)"


def _shortened(frames: tuple[str, ...]) -> tuple[str, ...]:
    if len(frames) <= MAX_FRAMES:
        return frames
    half = MAX_FRAMES // 2
    return *frames[:half], _LEFT_OUT, *frames[1 - half :]


def _text(text: str, limit: int = _MAX_TEXT) -> str:
    """Return a name that can be sent and printed."""
    cut = text[:limit]
    return cut if cut.isprintable() else "".join(one if one.isprintable() else "?" for one in cut)


_log = logging.getLogger("headgate.worker")

_JOIN_S: Final = 5.0  # for the current sample
_LATE_S: Final = 2.0  # a round that takes so much longer than requested is ended
_STACK_BYTES: Final = MAX_MESSAGE_BYTES // 2  # of an answer; everything else in it takes less than the rest
_LEAST_BYTES: Final = 256
_frames_lock = threading.Lock()  # one thread of a process at a time: it turns the collector off and on


class StackSampler:
    """Answers `SampleStacks`.

    >>> import queue
    >>> from headgate.control.messages import SampleStacks
    >>> sent = queue.SimpleQueue()
    >>> sampler = StackSampler(lambda: [], sent.put)
    >>> sampler.start(SampleStacks(request=1, samples=100, delay_ms=50))
    >>> sent.get(timeout=10)  # at once: it has no tasks
    StackSamples(request=1, subtasks=[])
    >>> sampler.stop()
    """

    def __init__(self, tasks: Callable[[], Sequence[DeployedTask]], send: Callable[[FromWorker], object]) -> None:
        self._tasks = tasks
        self._send = send
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, request: SampleStacks) -> None:
        """Begin a round; its own thread sends the answer."""
        self.stop()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(request, self._stop), name="headgate-sampler", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the current round, if any: it answers with its samples so far. May be repeated."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            self._thread = None

    # On the round's thread.

    def _run(self, request: SampleStacks, stop: threading.Event) -> None:
        try:
            wanted = set(request.vertices)
            tasks = [one for one in self._tasks() if not wanted or one.vertex.id in wanted]
            rows = [(one, StackCounts(one.task.chain.operators)) for one in tasks]
            delay_s = request.delay_ms / 1000
            late_s = time.monotonic() + request.samples * delay_s + _LATE_S
            for number in range(request.samples):
                if number and (stop.wait(delay_s) or time.monotonic() > late_s):
                    break
                if not _sample(rows):
                    break  # all tasks have ended
            self._send(_answer(request.request, rows))
        except Exception:  # noqa: BLE001 - sampling must not end the job
            _log.exception("sampling stacks failed: a bug in headgate")


def _sample(rows: Sequence[tuple[DeployedTask, StackCounts]]) -> bool:
    """Sample each task. Return True if any still runs."""
    frames = _frames()
    try:
        states = [one.timer.state for one, _ in rows]
        any_runs = False
        for (one, stacks), state in zip(rows, states, strict=True):
            # Read after the frames: a thread that still runs is not a new one with a reused id.
            ident = one.task.ident
            if ident is not None and ident in frames:
                any_runs = True
                stacks.add(ident, frames, state)
        return any_runs
    finally:
        frames.clear()  # it contains this thread's own frame: a reference cycle


def _frames() -> dict[int, FrameType]:
    """Return the frame of every thread, with garbage collection off.

    CPython holds its lock on the list of threads while it makes the dict. A collection at that time may run a
    finalizer that switches to another thread; if that thread starts a thread, it waits for the same lock while it holds
    the interpreter: a deadlock. Seen with CPython 3.11.
    """
    with _frames_lock:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collecting:
                gc.enable()


def _answer(request: int, rows: Sequence[tuple[DeployedTask, StackCounts]]) -> StackSamples:
    taken = [(one, stacks) for one, stacks in rows if stacks.taken]
    each = max(_LEAST_BYTES, _STACK_BYTES // max(1, len(taken)))
    return StackSamples(request, [stacks.samples(one.vertex.id, one.subtask, max_bytes=each) for one, stacks in taken])
