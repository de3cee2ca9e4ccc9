"""One task's sampled stacks, folded: which operator its thread was in, and which of the user's functions (B1).

Used by `sampling`, on its thread. The operator is known by the code of its methods; what is kept of a stack are the
user's functions below it, with the lines that they were at.

Invariants: no frame is kept, and nothing of the user's is called; locals are looked at only where two operators of a
chain are of one class; at most `MAX_STACKS` stacks are told apart, and `MAX_FRAMES` frames of each; every sample is
counted once.
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from types import CodeType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headgate.meters import TaskState
from headgate.task.async_map import MapAsync
from headgate.worker.messages import StackCount, SubtaskSamples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.task.operator import Operator

__all__ = ["MAX_FRAMES", "MAX_STACKS", "OTHERS", "Stacks"]

MAX_STACKS: Final = 200
MAX_FRAMES: Final = 64
OTHERS: Final = "others"
"""The only frame of what could not be told apart any more."""

_MAX_TEXT: Final = 120  # characters of a function's name, and of a file's
_MAX_OPERATOR: Final = 1000  # likewise of an operator's
_MAX_DEPTH: Final = 10_000  # frames that are looked at in search of an operator
_LEFT_OUT: Final = "..."
_LOOPS: Final = "headgate.task.loop"
_BUILT_IN: Final = "built-in function"
_WAITS: Final = {
    TaskState.IDLE: "waits for input (headgate)",
    TaskState.BACK_PRESSURED: "waits for a buffer (headgate)",
}
# Packages of ours whose functions are as good as a user's: they are what pipelines are made of.
_LIKE_USERS: Final = frozenset({"headgate.examples", "headgate.experiments", "headgate.bench", "headgate.cli"})
# Libraries that ours calls for itself, beside the standard one.
_LIBRARIES: Final = frozenset({"cloudpickle", "fsspec", "msgspec", "numpy", "pandas", "pyarrow", "pyspark", "uvloop"})
# What operators call for themselves; anything else of a library that they call is what the user gave them.
_HELPERS: Final = frozenset(
    {"abc", "asyncio", "concurrent", "contextlib", "copy", "copyreg", "enum", "logging", "queue", "selectors"}
    | {"threading", "weakref"}
)


class _Whose(Enum):
    """Whose code it is."""

    USER = "the user's"
    LIBRARY = "that of whoever has called it"
    TASK = "ours, and calls what users have given it"
    OURS = "ours"


_HEADGATES: Final = frozenset({_Whose.TASK, _Whose.OURS})


class _Code(NamedTuple):
    """What is known of a function."""

    name: str
    file: str
    module: str
    whose: _Whose


class _Step(NamedTuple):
    """A frame: a function, and where in it."""

    code: _Code
    line: int


class Stacks:
    """Counts what the thread of one task was seen at. `operators` are those of its chain, the head first.

    >>> import sys, threading
    >>> from headgate.meters import TaskState
    >>> from headgate.task.basic import Map
    >>> from headgate.testing.harness import OperatorHarness
    >>> def slow(word):  # looks at its own stack, in place of another thread
    ...     stacks.see(threading.get_ident(), sys._current_frames(), TaskState.BUSY)
    >>> with OperatorHarness(Map(slow)) as harness:
    ...     stacks = Stacks([harness.operator])
    ...     harness.process(["to"])
    >>> samples = stacks.answer(vertex=0, subtask=0, max_bytes=1000)
    >>> samples.taken, samples.stacks[0].operator
    (1, 'Map')
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.taken = 0
        self._head = operators[0].place.operator if operators else ""
        self._operators = _by_code(operators)
        self._codes: dict[CodeType, _Code] = {}
        self._counts: dict[tuple[str, tuple[str, ...]], list[int]] = {}  # of all, idle ones, back-pressured ones

    def see(self, ident: int, frames: Mapping[int, FrameType], state: TaskState) -> None:
        """Take a sample: the thread `ident` of all these was in this state."""
        operator, steps = self._walk(frames[ident])
        seen = self._users(steps)
        if not seen and state is TaskState.BUSY and isinstance(operator, MapAsync):
            seen = self._of_coroutines(operator, frames)
        if not seen:
            seen = (_WAITS.get(state) or _own_name(steps),)
        name = operator if isinstance(operator, str) else operator.place.operator
        self._count((_text(name, _MAX_OPERATOR), _shortened(seen)), state)

    def answer(self, vertex: int, subtask: int, *, max_bytes: int) -> SubtaskSamples:
        """All samples, the most frequent stacks first; those that would take more than `max_bytes` are others."""
        stacks, others, left = [], [0, 0, 0], max_bytes
        ranked = sorted(self._counts.items(), key=lambda item: (item[0][1] == (OTHERS,), -item[1][0]))
        for (operator, frames), counts in ranked:
            left -= sum(len(text.encode()) + 8 for text in (operator, *frames))
            if left < 0 or frames == (OTHERS,):
                others = [sum(pair) for pair in zip(others, counts, strict=True)]
            else:
                stacks.append(StackCount(operator, list(frames), *counts))
        if others[0]:
            stacks.append(StackCount("", [OTHERS], *others))
        _, idle, back_pressured = map(sum, zip([0, 0, 0], *self._counts.values(), strict=True))
        return SubtaskSamples(vertex, subtask, self.taken, idle, back_pressured, stacks)

    def _count(self, key: tuple[str, tuple[str, ...]], state: TaskState) -> None:
        if key not in self._counts and len(self._counts) >= MAX_STACKS - 1:
            key = "", (OTHERS,)
        counts = self._counts.setdefault(key, [0, 0, 0])
        self.taken += 1
        counts[0] += 1
        counts[1] += state is TaskState.IDLE
        counts[2] += state is TaskState.BACK_PRESSURED

    # Reading a stack.

    def _walk(self, frame: FrameType | None) -> tuple[Operator | str, list[_Step]]:
        """The innermost operator, or the name of the one whose work it is, and the steps from there inwards."""
        inwards: list[_Step] = []
        operator: Operator | str | None = None
        while frame is not None and operator is None and len(inwards) < _MAX_DEPTH:
            step = self._step(frame)
            inwards.append(step)
            operator = self._operator_of(frame)
            if operator is None and step.code.module == _LOOPS:
                operator = self._head  # it reads: a source's splits, or what the head gets
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
        # Before Python 3.13 this leaves a copy of all locals with the frame until its call returns, so that what they
        # refer to lives that long: no more than the operator's own batch.
        found = frame.f_locals.get("self")
        return next((one for one in candidates if one is found), None)

    def _users(self, steps: Sequence[_Step]) -> tuple[str, ...]:
        """Of steps, the user's functions; with what of libraries these have called, or an operator for them."""
        users: list[str] = []
        caller = _Whose.OURS
        for code, line in steps:
            if code.whose in _HEADGATES:
                caller = code.whose
                continue
            if code.whose is _Whose.LIBRARY:
                wanted = caller is _Whose.TASK and code.module.partition(".")[0] not in _HELPERS
                if caller is not _Whose.USER and not wanted:
                    continue  # ours has called it for itself
            caller = _Whose.USER
            users.append(f"{code.name} ({code.file}:{line})")
        return tuple(users)

    def _of_coroutines(self, operator: MapAsync, frames: Mapping[int, FrameType]) -> tuple[str, ...]:
        """What an operator waits for: the coroutine that runs, or one of those that wait."""
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
        """Where a coroutine that is suspended stands, and what it awaits."""
        steps: list[_Step] = []
        while len(steps) < MAX_FRAMES:
            if isinstance(waiting, CoroutineType):
                frame, waiting = waiting.cr_frame, waiting.cr_await
            elif isinstance(waiting, GeneratorType):
                frame, waiting = waiting.gi_frame, waiting.gi_yieldfrom
            else:
                break
            if frame is None:  # it has ended meanwhile
                break
            steps.append(self._step(frame))
        return steps


def _by_code(operators: Sequence[Operator]) -> dict[CodeType, list[Operator]]:
    """The operators that have a method of this code."""
    found: dict[CodeType, list[Operator]] = {}
    for operator in operators:
        for kind in type(operator).__mro__:
            for method in vars(kind).values():
                # A decorated one has its decorator's code, which others have as well.
                if isinstance(method, FunctionType) and method.__globals__.get("__name__") == kind.__module__:
                    found.setdefault(method.__code__, []).append(operator)
    return found


def _known(code: CodeType, module: object) -> _Code:
    name = module if isinstance(module, str) else ""
    root, *rest = name.split(".")
    if root == "headgate":
        package = ".".join([root, *rest[:1]])
        whose = _Whose.TASK if package == "headgate.task" else _Whose.OURS
        if package in _LIKE_USERS:
            whose = _Whose.USER
    elif root in _LIBRARIES or root in sys.stdlib_module_names:
        whose = _Whose.LIBRARY
    else:
        whose = _Whose.USER
    function = code.co_qualname.rpartition("<locals>.")[2]
    return _Code(_text(function), _text(os.path.basename(code.co_filename)), name, whose)


def _own_name(steps: Sequence[_Step]) -> str:
    """What to call a stack without anything of the user's: by the last function of ours."""
    for code, _ in reversed(steps):
        if code.name == "Operator.answers":
            return _BUILT_IN  # a function that is not written in Python has no frame
        if code.whose in _HEADGATES:
            return f"{code.name} (headgate)"
    return "(headgate)"


def _shortened(frames: tuple[str, ...]) -> tuple[str, ...]:
    if len(frames) <= MAX_FRAMES:
        return frames
    half = MAX_FRAMES // 2
    return *frames[:half], _LEFT_OUT, *frames[1 - half :]


def _text(text: str, limit: int = _MAX_TEXT) -> str:
    """A name that can be sent and shown, whatever was in it."""
    cut = text[:limit]
    return cut if cut.isprintable() else "".join(one if one.isprintable() else "?" for one in cut)
