"""What the tests of streams share: handlers that remember, and patience."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.net import Stream
from headgate.net.loop import open_loop

PATIENCE_S = 60.0
"""Far more than anything here takes: reaching it means that something hangs."""

LOOPS = ["shared", "epoll", "asyncio", "uvloop"]


def open_files() -> set[str]:
    """The numbers of all open files of this process."""
    open_loop("uvloop").stop()  # the first one in a process opens two files for all that follow
    return set(os.listdir("/proc/self/fd"))


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.001)


class Watched:
    """Something that a test waits for while another thread changes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    @contextmanager
    def change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def wait(self, until: Callable[[], object], what: str = "it") -> None:
        with self._changed:
            assert self._changed.wait_for(until, PATIENCE_S), f"{what} did not happen"


class Taker(Watched):
    """Whoever is accepted or connected, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Stream | Exception] = []

    def __call__(self, answer: Stream | Exception) -> None:
        with self.change():
            self.answers.append(answer)

    def wait_for(self, count: int = 1) -> list[Stream | Exception]:
        self.wait(lambda: len(self.answers) >= count, f"{count} streams or errors")
        return self.answers


class Keeper(Watched):
    """A handler that keeps all it hears; `events` are in order, with what was received joined where it can be."""

    def __init__(self, stream: Stream | None = None) -> None:
        super().__init__()
        self.stream = stream
        self.data = bytearray()
        self.events: list[object] = []
        self.losses: list[Exception | None] = []

    def received(self, data: memoryview) -> None:
        with self.change():
            assert not self.losses, "nothing after `lost`"
            assert len(data) > 0
            self.data += data
            if not self.events or self.events[-1] != "received":
                self.events.append("received")

    def writable(self) -> None:
        with self.change():
            assert not self.losses, "nothing after `lost`"
            self.events.append("writable")

    def lost(self, error: Exception | None) -> None:
        with self.change():
            self.losses.append(error)
            self.events.append("lost")

    def wait_for_bytes(self, count: int) -> None:
        self.wait(lambda: len(self.data) >= count or self.losses, f"receiving {count} bytes")
        assert len(self.data) >= count, f"{len(self.data)} of {count} bytes, then {self.losses}"

    def wait_lost(self) -> Exception | None:
        self.wait(lambda: self.losses, "lost")
        return self.losses[0]


class Pusher(Keeper):
    """A handler that also sends: `content` in pieces, several at once, as fast as the stream takes them.

    What it receives is only counted and hashed.
    """

    def __init__(self, stream: Stream, content: bytes, piece_bytes: int = 32 * 1024, pieces: int = 8) -> None:
        super().__init__(stream)
        self._content = memoryview(content)
        self._piece_bytes, self._pieces = piece_bytes, pieces
        self.sent = 0
        self.received_bytes = 0
        self.short_writes = 0
        self.digest = hashlib.sha256()

    def received(self, data: memoryview) -> None:
        with self.change():
            self.digest.update(data)
            self.received_bytes += len(data)

    def push(self) -> None:
        assert self.stream is not None
        while self.sent < len(self._content):
            offered = list(self._next())
            taken = self.stream.write(offered)
            with self.change():
                self.sent += taken
            if taken < sum(map(len, offered)):
                self.short_writes += 1
                return

    def writable(self) -> None:
        self.push()

    def _next(self) -> Iterator[memoryview]:
        for i in range(self._pieces):
            start = self.sent + i * self._piece_bytes
            if piece := self._content[start : start + self._piece_bytes]:
                yield piece
