"""Shared by the tests of streams: handlers that record all calls."""

import hashlib
from collections.abc import Iterator

from tests.support.waiting import Watched

from headgate.net import Stream

LOOPS = ["shared", "asyncio"]


class Taker(Watched):
    """Collects accepted and connected streams in a list."""

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
    """A handler that records all calls; `events` are in order, adjacent received bytes joined."""

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
    """A handler that also sends `content`, in pieces, as fast as the stream accepts them.

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
