"""The resident memory of a process and all its descendants, as a Spark driver starts a JVM and Python workers.

Pages that several processes share count for each of them. Linux only: it reads /proc.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["MemoryPeak", "Resident", "peak_of", "resident_of", "tree_of", "wait_until_gone"]

_PROC: Final = Path("/proc")
_SAMPLE_S: Final = 0.05
_GONE_S: Final = 20.0  # for a JVM to notice the end of its driver


class Resident(NamedTuple):
    """Resident bytes of some processes."""

    total: int
    python: int  # without JVMs


class MemoryPeak:
    """The largest sample so far, of each figure; and all processes of any sample."""

    def __init__(self) -> None:
        self.resident = Resident(0, 0)
        self.processes: set[int] = set()

    def sample(self, root: int) -> None:
        """Add a sample of a process and its descendants."""
        processes = tree_of(root)
        self.processes |= processes
        self.resident = Resident(*map(max, self.resident, resident_of(processes)))


def tree_of(root: int) -> set[int]:
    """Return the ids of a process and all its descendants; empty if it has ended."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, ahead = set(), [root] if _stat(root) else []
    while ahead:
        found.add(one := ahead.pop())
        ahead += children.get(one, [])
    return found


def resident_of(processes: Collection[int]) -> Resident:
    """Return the memory of processes; those that have ended have none."""
    total = python = 0
    for process in processes:
        try:
            pages = (_PROC / str(process) / "statm").read_text("ascii").split()[1]
            name = (_PROC / str(process) / "comm").read_text("utf-8", "replace").strip()
        except OSError:
            continue
        resident = int(pages) * os.sysconf("SC_PAGE_SIZE")
        total += resident
        python += resident if name != "java" else 0
    return Resident(total, python)


@contextmanager
def peak_of(root: int) -> Iterator[MemoryPeak]:
    """Sample a process and its descendants every 50 ms during the block, and at both ends of it."""
    peak, over = MemoryPeak(), threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLE_S):
            peak.sample(root)

    peak.sample(root)
    thread = threading.Thread(target=sample, name="headgate-bench-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.sample(root)


def wait_until_gone(processes: Collection[int]) -> None:
    """Block until processes have ended, at most 20 s: they would disturb the next measurement."""
    until_s = time.monotonic() + _GONE_S
    while any(_stat(one)[:1] not in ([], ["Z"]) for one in processes) and time.monotonic() < until_s:
        time.sleep(_SAMPLE_S)


def _stat(process: int) -> list[str]:
    """Return state, parent and so on; empty if the process has ended."""
    try:
        # The name, which may contain anything, is in brackets before them.
        return (_PROC / str(process) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []
