"""Child processes for measurements, and pairs of them that exchange messages.

A child is a fresh interpreter (a fork would copy threads and locks) that runs one importable function and is connected
to its parent by a pipe. When the `with` block of a child ends, its process is dead and reaped. Every wait has a limit,
and ends early if the child dies. The error in the parent contains what the child raised, or the end of its output.

Not `multiprocessing.Process`: it imports the parent's main script again, leaves a tracker process behind, and prints a
child's last output to the terminal.
"""

import gc
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from headgate.errors import HeadgateError

__all__ = ["START_S", "Child", "ChildFailed", "Parent", "ProcessPair", "child"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

START_S: Final = 60.0
"""The limit for a child's first message: an interpreter starts and imports, perhaps on a busy machine."""

_REAP_S: Final = 10.0  # for a process that was killed, or has closed its pipe, to end
_OTHER_FAILURE_S: Final = 0.5  # for the other child of a pair to report its failure too
_IDLE_S: Final = 3600.0  # a process of a pair waits this long for its next function
_OUTPUT_BYTES: Final = 4096  # of a child's output in an error

# The parent's path comes first, so that the child imports the same headgate.
_MAIN: Final = "import sys; sys.path[:] = {path!r}; from headgate.bench.processes import _run; _run({fd})"


class ChildFailed(HeadgateError):
    """A child process raised, died, or sent nothing in time; the message has its traceback or the end of its output."""


class _Kind(Enum):
    """The kinds of messages from a child."""

    SENT = "sent"
    RETURNED = "returned"
    RAISED = "raised"  # the traceback, as text


class Parent:
    """The child's end of the pipe: the first argument of its function."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def send(self, value: object) -> None:
        """Send a picklable value to the parent."""
        self._pipe.send((_Kind.SENT, value))

    def receive(self, timeout_s: float) -> Any:
        """Return the parent's next message.

        Raises:
            TimeoutError: The parent sent nothing in time.
            EOFError: The parent has closed the pipe.
        """
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"the parent process sent nothing within {timeout_s:g} s")
        return self._pipe.recv()


class Child(Generic[R]):
    """The parent's end of the pipe, made by `child`. All its methods raise `ChildFailed`."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], pipe: "Connection[Any, Any]", output: IO[bytes]
    ) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._pipe = pipe
        self._output = output

    def send(self, value: object) -> None:
        """Send a small picklable value: a value larger than the pipe's buffer blocks until the child reads it."""
        try:
            self._pipe.send(value)
        except OSError:
            raise self._failure() from None

    def receive(self, timeout_s: float) -> Any:
        """Return the child's next message."""
        kind, value = self._next(timeout_s)
        if kind is not _Kind.SENT:
            raise ChildFailed(f"child {self.name} returned {value!r:.200}, while a message was awaited")
        return value

    def result(self, timeout_s: float) -> R:
        """Return what the child's function returned."""
        kind, value = self._next(timeout_s)
        if kind is not _Kind.RETURNED:
            raise ChildFailed(f"child {self.name} sent {value!r:.200}, while its result was awaited")
        returned: R = value
        return returned

    def _next(self, timeout_s: float) -> tuple[_Kind, Any]:
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
        return ChildFailed(f"child {self.name} sent nothing within {timeout_s:g} s{self._last_output()}")

    def _failure(self) -> ChildFailed:
        """Return the error for a closed pipe: what the child raised, otherwise how its process ended."""
        try:
            while self._pipe.poll(0):
                kind, value = self._pipe.recv()
                if kind is _Kind.RAISED:
                    return ChildFailed(f"child {self.name} raised: {value}")
        except (EOFError, OSError):
            pass  # all its messages are read
        try:
            status = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return ChildFailed(f"child {self.name} closed its pipe and still runs{self._last_output()}")
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        return ChildFailed(f"child {self.name} {how} before it was done{self._last_output()}")

    def _last_output(self) -> str:
        fd = self._output.fileno()
        # Not seek and read: the child shares the file's offset, and may be writing.
        end = os.pread(fd, _OUTPUT_BYTES, max(0, os.fstat(fd).st_size - _OUTPUT_BYTES))
        text = end.decode(errors="replace").strip()
        return f"; it printed: {text}" if text else "; it printed nothing"


@contextmanager
def child(function: Callable[Concatenate[Parent, P], R], *args: P.args, **kwargs: P.kwargs) -> Iterator[Child[R]]:
    """Run `function(parent, *args, **kwargs)` in a process, which is killed at the end of the block.

    The function must be importable by its name; its arguments must be small and picklable.

    >>> with child(Parent.send, "hello") as process:
    ...     process.receive(START_S), process.result(START_S)
    ('hello', None)
    """
    ours, theirs = Pipe()
    with tempfile.TemporaryFile() as output, ours:
        with theirs:  # closed here once the child has it: otherwise its death does not end the pipe
            main = _MAIN.format(path=[str(one) for one in sys.path], fd=theirs.fileno())
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", main],
                stdin=subprocess.DEVNULL,
                stdout=output,  # only figures go to a suite's stdout
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


def _run(fd: int) -> None:
    """Run a child's function, in its process."""
    pipe: Connection[Any, Any] = Connection(fd)  # a local's annotation is never evaluated: 3.11 has no Connection[...]
    with pipe:
        try:
            function, args, kwargs = pipe.recv()
            message = _Kind.RETURNED, function(Parent(pipe), *args, **kwargs)
        except BaseException:  # noqa: BLE001 - the parent raises it
            message = _Kind.RAISED, traceback.format_exc()
        pipe.send(message)


class _Result:
    """Wraps the result of a function of a pair: all other messages are for the other process."""

    def __init__(self, value: Any) -> None:
        self.value = value


class ProcessPair:
    """Two processes that run one function each, again and again; a message from one is forwarded to the other.

    They start with the first `run` and end with the block or with `close`. Reuse saves the start of two interpreters.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._children: tuple[Child[None], Child[None]] | None = None

    def run(self, first: Callable[[Parent], R], second: Callable[[Parent], S], *, limit_s: float = 0.0) -> tuple[R, S]:
        """Call importable functions, or partials of them, one in each process, and return their results.

        Raises:
            ChildFailed: One raised or died, or both sent nothing within `limit_s` and the time to start.
        """
        if self._children is None:
            self._children = self._stack.enter_context(child(_serve)), self._stack.enter_context(child(_serve))
        one, other = self._children
        one.send(first)
        other.send(second)
        results: dict[Child[None], Any] = {}
        while len(results) < 2:
            sender, message = _receive_from_any(
                [end for end in self._children if end not in results], START_S + limit_s
            )
            if isinstance(message, _Result):
                results[sender] = message.value
            else:
                (other if sender is one else one).send(message)
        return results[one], results[other]

    def close(self) -> None:
        """End both processes; the next `run` starts two new ones."""
        self._children = None
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _serve(parent: Parent) -> None:
    while True:
        function = parent.receive(_IDLE_S)
        gc.collect()  # a run must not pay for the garbage of the run before it
        parent.send(_Result(function(parent)))


def _receive_from_any(children: list[Child[None]], timeout_s: float) -> tuple[Child[None], Any]:
    """Return the child that sends first, and its message.

    If it has failed, the error also contains the failure of the other: when one end of a connection dies, the other
    end's error alone does not show why.
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
            if other is not first and other._pipe.poll(_OTHER_FAILURE_S):
                other.receive(0)
        except ChildFailed as error:
            failures.append(str(error))
    raise ChildFailed("\n".join(failures))
