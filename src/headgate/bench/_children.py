"""Child processes for measurements that need two of them: started with a function, spoken to, always ended.

Bench suites call it from their one thread. A child is a fresh interpreter (not a fork, which would copy
threads and locks) that runs one importable function, told over a pipe that only the two of them hold.

Invariants: when the `with` block is left, however it is left, the process is dead and reaped, and its pipe
and its output are closed; every wait ends, and sooner than its limit where the child is dead; what a child
raised, or printed before it died, is in the error that its parent sees.

Not `multiprocessing.Process`, though the pipe is from there: that one imports the parent's main script
again, leaves a tracker process behind, and lets a child's last words go to the terminal.
"""

import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from headgate.errors import HeadgateError

__all__ = ["START_S", "Child", "ChildFailed", "Parent", "child", "first_of", "results_of"]

P = ParamSpec("P")
R = TypeVar("R")

START_S: Final = 60.0
"""How long to wait for the first word of a child: an interpreter starts and imports, maybe on a busy machine."""

_REAP_S = 10.0  # for a process that was killed, or has closed its pipe, to be gone
_AFTERMATH_S = 0.5  # for the others to say what they know, once one of several children has failed
_LAST_WORDS_BYTES = 4096

# The parent's path comes first, so that the child finds the very headgate that started it.
_MAIN = "import sys; sys.path[:] = {path!r}; from headgate.bench._children import _run; _run({fd})"


class ChildFailed(HeadgateError):
    """A child process raised, died, or did not answer in time; the message has its traceback or last output.

    >>> with child(Parent.receive, timeout_s=0.01) as process:
    ...     process.result(START_S)
    Traceback (most recent call last):
    headgate.bench._children.ChildFailed: child Parent.receive raised: Traceback ...
    """


class _Kind(Enum):
    """What a message from a child is."""

    SAID = "said"  # it sent this, and goes on
    RETURNED = "returned"  # its function has ended with this
    RAISED = "raised"  # its function has ended with an exception: the traceback, as text


class Parent:
    """The child's end of the pipe: the first argument of its function.

    >>> with child(Parent.send, "hello") as process:
    ...     process.receive(START_S)
    'hello'
    """

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def send(self, value: object) -> None:
        """Tell the parent something that can be pickled."""
        self._pipe.send((_Kind.SAID, value))

    def receive(self, timeout_s: float) -> Any:
        """What the parent sends next; TimeoutError if it does not, EOFError if it is gone."""
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"the parent process sent nothing within {timeout_s:g} s")
        return self._pipe.recv()


class Child(Generic[R]):
    """The parent's view of a child; `child` makes them.

    >>> with child(Parent.receive, timeout_s=START_S) as process:
    ...     process.send({"port": 7077})
    ...     process.result(START_S)
    {'port': 7077}
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], pipe: "Connection[Any, Any]", output: IO[bytes]
    ) -> None:
        self.name = name
        self._process = process
        self._pipe = pipe
        self._output = output

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, value: object) -> None:
        """Tell the child something small that can be pickled: what exceeds the pipe's buffer waits for its reader."""
        try:
            self._pipe.send(value)
        except OSError:
            raise self._failure() from None

    def receive(self, timeout_s: float) -> Any:
        """What the child sends next; `ChildFailed` if it raises, dies, ends or is silent instead."""
        kind, value = self._next(timeout_s)
        if kind is not _Kind.SAID:
            raise ChildFailed(f"child {self.name} returned {value!r:.200}, while a message was awaited")
        return value

    def result(self, timeout_s: float) -> R:
        """What the child's function returned; `ChildFailed` if it raises, dies, sends or is silent instead."""
        kind, value = self._next(timeout_s)
        if kind is not _Kind.RETURNED:
            raise ChildFailed(f"child {self.name} sent {value!r:.200}, while its result was awaited")
        returned: R = value
        return returned

    def _next(self, timeout_s: float) -> tuple[_Kind, Any]:
        """The child's next message, if it is not that it raised. Its death ends the pipe, and so the wait."""
        try:
            if not self._pipe.poll(timeout_s):
                raise self._silence(timeout_s)
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._failure() from None
        if kind is _Kind.RAISED:
            raise ChildFailed(f"child {self.name} raised: {value}")
        return kind, value

    def _silence(self, timeout_s: float) -> ChildFailed:
        return ChildFailed(f"child {self.name} said nothing within {timeout_s:g} s{self._last_words()}")

    def _failure(self) -> ChildFailed:
        """Why a child no longer listens or speaks: what it raised, if it could still say so, else how it died."""
        try:
            while self._pipe.poll(0):
                kind, value = self._pipe.recv()
                if kind is _Kind.RAISED:
                    return ChildFailed(f"child {self.name} raised: {value}")
        except (EOFError, OSError):
            pass  # it has said all it had to say
        try:
            status = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return ChildFailed(f"child {self.name} closed its pipe and lives on{self._last_words()}")
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        return ChildFailed(f"child {self.name} {how} before it was done{self._last_words()}")

    def _last_words(self) -> str:
        """The end of what it printed."""
        fd = self._output.fileno()
        # Not seek and read: the child shares the file's offset, and may be writing there.
        end = os.pread(fd, _LAST_WORDS_BYTES, max(0, os.fstat(fd).st_size - _LAST_WORDS_BYTES))
        text = end.decode(errors="replace").strip()
        return f"; it printed: {text}" if text else "; it printed nothing"


@contextmanager
def child(function: Callable[Concatenate[Parent, P], R], *args: P.args, **kwargs: P.kwargs) -> Iterator[Child[R]]:
    """Run `function(parent, *args, **kwargs)` in a process of its own, which ends with the block at the latest.

    The function must be importable by its name, its arguments small and picklable. The process is killed,
    not asked: it is for measurements, and has nothing to lose.

    >>> with child(Parent.send, "hello") as process:
    ...     process.receive(START_S), process.result(START_S)
    ('hello', None)
    """
    ours, theirs = Pipe()
    with tempfile.TemporaryFile() as output, ours:
        with theirs:  # closed here once the child has it, or its death would not end the pipe
            main = _MAIN.format(path=[str(one) for one in sys.path], fd=theirs.fileno())
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", main],
                stdin=subprocess.DEVNULL,
                stdout=output,  # a suite's figures are alone on stdout
                stderr=output,
                pass_fds=[theirs.fileno()],
            )
        try:
            made: Child[R] = Child(getattr(function, "__qualname__", repr(function)), process, ours, output)
            made.send((function, args, kwargs))
            yield made
        finally:
            process.kill()
            process.wait(_REAP_S)


def results_of(*children: Child[Any], timeout_s: float) -> list[Any]:
    """The results of several children, in their order; if one fails, an error with all that they have to say.

    Waits for all of them at once: when one end of a connection dies, the other's complaint is only half the story.

    >>> with child(Parent.receive, START_S) as one, child(Parent.receive, START_S) as other:
    ...     other.send("b")
    ...     one.send("a")
    ...     results_of(one, other, timeout_s=START_S)
    ['a', 'b']
    """
    pending = {one._pipe: one for one in children}
    found: dict[Child[Any], Any] = {}
    failures: list[ChildFailed] = []
    deadline_s = time.monotonic() + timeout_s
    while pending and (ready := wait(list(pending), max(0.0, deadline_s - time.monotonic()))):
        for pipe in [one for one in pending if one in ready]:
            one = pending.pop(pipe)
            try:
                found[one] = one.result(0)
            except ChildFailed as error:
                failures.append(error)
                deadline_s = min(deadline_s, time.monotonic() + _AFTERMATH_S)
    failures = failures or [one._silence(timeout_s) for one in pending.values()]
    if failures:
        raise ChildFailed("\n".join(map(str, failures)))
    return [found[one] for one in children]


def first_of(*children: Child[Any], timeout_s: float) -> tuple[Child[Any], Any]:
    """Which of several children speaks first, and what it says; if one fails, an error with all that they have to say.

    >>> with child(Parent.receive, START_S) as silent, child(Parent.send, "hello") as other:
    ...     one, said = first_of(silent, other, timeout_s=START_S)
    ...     one is other, said
    (True, 'hello')
    """
    ready = wait([one._pipe for one in children], timeout_s)
    if not ready:
        raise ChildFailed("\n".join(str(one._silence(timeout_s)) for one in children))
    first = next(one for one in children if one._pipe in ready)
    try:
        return first, first.receive(0)
    except ChildFailed as error:
        failures = [str(error)]
    for other in children:
        try:
            if other is not first and other._pipe.poll(_AFTERMATH_S):
                other.receive(0)
        except ChildFailed as error:
            failures.append(str(error))
    raise ChildFailed("\n".join(failures))


def _run(fd: int) -> None:
    """A child's whole life, in its process."""
    pipe: Connection[Any, Any] = Connection(fd)  # a local's annotation is never evaluated: 3.11 has no Connection[...]
    with pipe:
        try:
            function, args, kwargs = pipe.recv()
            message = _Kind.RETURNED, function(Parent(pipe), *args, **kwargs)
        except BaseException:  # noqa: BLE001 - the parent raises it
            message = _Kind.RAISED, traceback.format_exc()
        pipe.send(message)
