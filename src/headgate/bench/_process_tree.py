"""How much memory a process holds together with all that it has started, as a Spark driver starts a JVM and workers.

Called by suites, from their own process, about a child of theirs. What is resident is added up, so pages that several
processes share count for each of them: most of what forked Python workers have imported. Linux only: it reads /proc.
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

__all__ = ["Held", "Peak", "held_by", "peak_of", "tree_of", "wait_until_gone"]

_PROC: Final = Path("/proc")
_SAMPLE_S: Final = 0.05
_GONE_S: Final = 20.0  # for a JVM to see that its driver has ended
_LOOK_S: Final = 0.05


class Held(NamedTuple):
    """Resident bytes of some processes.

    >>> Held(total=5, python=2).python
    2
    """

    total: int
    python: int  # of those that are no JVM


class Peak:
    """The most that was held at any moment at which somebody looked; each figure at a moment of its own.

    >>> peak = Peak()
    >>> peak.note(Held(total=5, python=2)); peak.note(Held(total=4, python=3))
    >>> peak.held
    Held(total=5, python=3)
    """

    def __init__(self) -> None:
        self.held = Held(0, 0)
        self.processes: set[int] = set()  # all that were seen

    def note(self, held: Held) -> None:
        """One look."""
        self.held = Held(*map(max, self.held, held))


def tree_of(root: int) -> set[int]:
    """A process and all its descendants, by their ids; empty if it is gone.

    >>> os.getpid() in tree_of(os.getpid())
    True
    """
    children: dict[int, list[int]] = {}
    there = set()
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            there.add(int(entry.name))
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, ahead = set(), [root] if root in there else []
    while ahead:
        found.add(one := ahead.pop())
        ahead += children.get(one, [])
    return found


def held_by(processes: Collection[int]) -> Held:
    """What they hold now; those that are gone hold nothing.

    >>> held = held_by([os.getpid()])
    >>> held.total == held.python > 2**20
    True
    """
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
    return Held(total, python)


@contextmanager
def peak_of(root: int) -> Iterator[Peak]:
    """Meanwhile, looks again and again at what a process and its descendants hold; at least at the two ends.

    >>> with peak_of(os.getpid()) as peak:
    ...     large = bytes(2**20)
    >>> peak.held.total > 2**20
    True
    """
    peak, over = Peak(), threading.Event()

    def look() -> None:
        processes = tree_of(root)
        peak.processes |= processes
        peak.note(held_by(processes))

    def go_on() -> None:
        while not over.wait(_SAMPLE_S):
            look()

    look()
    looking = threading.Thread(target=go_on, name="headgate-bench-memory", daemon=True)
    looking.start()
    try:
        yield peak
    finally:
        over.set()
        looking.join()
        look()


def wait_until_gone(processes: Collection[int]) -> None:
    """Wait for processes to end, so that they are not in the way of what is measured next; not for ever.

    >>> wait_until_gone([])
    """
    until_s = time.monotonic() + _GONE_S
    while any(_alive(one) for one in processes) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)


def _alive(process: int) -> bool:
    fields = _stat(process)
    return bool(fields) and fields[0] != "Z"


def _stat(process: int) -> list[str]:
    """State, parent and so on; nothing if it is gone. The name, which may hold anything, is in brackets before them."""
    try:
        return (_PROC / str(process) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []
