"""Runs an operator in BATCH mode and in STREAMING mode, and gives it disk to spill to."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import Any

from headgate.config import Compression
from headgate.errors import StorageFull
from headgate.record import AuthenticatedPeer, SerializerRegistry
from headgate.task.batch.spill import SpillSpace
from headgate.testing.harness import OperatorHarness

PICKLE = SerializerRegistry().serializer_for("pickle", peer=AuthenticatedPeer.this_process())


class CountedQuota:
    """A quota of `most` bytes that records the largest use, and if all bytes were given back."""

    def __init__(self, most: int = 2**60) -> None:
        self.most = most
        self.taken = self.peak = 0

    def take(self, size_bytes: int, path: str | None = None) -> None:
        if self.taken + size_bytes > self.most:
            raise StorageFull(f"more than the {self.most} bytes of batch.disk_quota", path=path or "somewhere")
        self.taken += size_bytes
        self.peak = max(self.peak, self.taken)

    def give_back(self, size_bytes: int) -> None:
        self.taken -= size_bytes
        assert self.taken >= 0


def space(memory_bytes: int, serializer: Any = PICKLE, quota: Any = None, **more: Any) -> SpillSpace:
    """Return disk space for an operator with so much memory."""
    more.setdefault("directory", tempfile.gettempdir)
    more.setdefault("compression", Compression.NONE)
    return SpillSpace(memory_bytes=memory_bytes, quota=quota, serializers=(serializer, serializer), **more)


Steps = list[tuple[Any, ...]]
"""One step of an operator's input: ("first" | "second", values, times or None), or ("watermark", ms)."""


def outcome(operator: Any, steps: Steps, *, batch: bool, spill: SpillSpace | None = None) -> OperatorHarness:
    """Return what an operator emits for some steps and the end of all input."""
    with OperatorHarness(operator, batch=batch, spill=spill) as harness:
        for what, *arguments in steps:
            if what == "watermark":
                harness.watermark(*arguments)
            elif what == "first":
                harness.process(*arguments)
            else:
                harness.process_second(*arguments)
        harness.end()
    return harness


def by_key(harness: OperatorHarness, key: Any) -> dict[Any, list[Any]]:
    """Return what was emitted for each key, in order, with times; without a key function, by key and time."""
    found = defaultdict(list)
    for value, time in harness.timed:
        found[(value[0], time) if key is None else key(value)].append((value, time))
    return dict(found)
