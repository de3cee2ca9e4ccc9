"""Virtual time: a heap of (time, seeded tie-break, action), and one seed forked per concern.

Everything that happens in a simulation is an action of an `Actor` and runs to its end before the next; what happens at
the same moment happens in an order that the seed decides. There is no thread, no event loop and no clock but this one.
Used by everything else in this package, and by whoever wants to test code of their own in virtual time.

Invariants: time never goes back; an actor that is paused does nothing; two runs that schedule the same actions from the
same seed have the same trace.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NEVER_NS", "Actor", "Scheduled", "Simulator", "fork"]

NEVER_NS: Final = 1 << 62
"""A time that does not come: who resumes then is dead."""


def fork(seed: int, concern: str) -> random.Random:
    """Randomness for one concern: what others draw does not change what it draws.

    >>> fork(7, "sizes").random() == fork(7, "sizes").random(), fork(7, "sizes").random() == fork(7, "faults").random()
    (True, False)
    """
    return random.Random(f"{seed}/{concern}")  # noqa: S311 - it must repeat


class Actor:
    """Who acts: a worker, or the world around them. A paused one acts later.

    >>> simulator, worker = Simulator(seed=1), Actor("worker 0")
    >>> worker.resumes_ns = 50
    >>> _ = simulator.at(10, lambda: print("at", simulator.now_ns), worker)
    >>> simulator.run()
    at 50
    """

    __slots__ = ("name", "resumes_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.resumes_ns = 0

    def __repr__(self) -> str:
        return f"<Actor {self.name}>"


class Scheduled:
    """An action that waits for its time.

    >>> simulator = Simulator(seed=1)
    >>> later = simulator.after(10, lambda: print("never"), Actor("worker 0"))
    >>> later.cancel(); later.waiting, simulator.run()
    (False, None)
    """

    __slots__ = ("_simulator", "action", "actor", "label", "work")

    def __init__(
        self, simulator: Simulator, action: Callable[[], object], actor: Actor, label: str, *, work: bool
    ) -> None:
        self._simulator = simulator
        self.action: Callable[[], object] | None = action
        self.actor = actor
        self.label = label
        self.work = work

    @property
    def waiting(self) -> bool:
        """Whether it has neither happened nor been cancelled."""
        return self.action is not None

    def cancel(self) -> None:
        """Let it not happen. May be repeated, also when it has happened."""
        if self.action is not None:
            self.action = None
            self._simulator.work -= self.work


class Simulator:
    """Actions in virtual time.

    >>> simulator, worker = Simulator(seed=1), Actor("worker 0")
    >>> _ = simulator.after(2_000, lambda: print("second"), worker)
    >>> _ = simulator.after(1_000, lambda: print("first"), worker, label="think")
    >>> simulator.run()
    first
    second
    >>> simulator.now_ns, simulator.steps, simulator.lines()[0]
    (2000, 2, '1000 worker 0: think')
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ns = 0
        self.steps = 0
        """How many actions have happened."""
        self.work = 0
        """How many actions wait that are not mere housekeeping: with none left, nothing will move any more."""
        self.last_actor: Actor | None = None
        self._tie = fork(seed, "ties").getrandbits
        self._heap: list[tuple[int, int, int, Scheduled]] = []
        self._added = 0
        self._trace: list[tuple[int, str, str]] = []

    def fork(self, concern: str) -> random.Random:
        """Randomness for one concern."""
        return fork(self.seed, concern)

    # Scheduling.

    def at(
        self, when_ns: int, action: Callable[[], object], actor: Actor, label: str = "act", *, work: bool = True
    ) -> Scheduled:
        """Let an actor do something at a time; `work` is off for housekeeping that repeats for ever."""
        entry = Scheduled(self, action, actor, label, work=work)
        self.work += work
        self._push(max(when_ns, self.now_ns), self._tie(16), entry)
        return entry

    def after(
        self, delay_ns: int, action: Callable[[], object], actor: Actor, label: str = "act", *, work: bool = True
    ) -> Scheduled:
        """Let an actor do something after a while."""
        return self.at(self.now_ns + delay_ns, action, actor, label, work=work)

    def _push(self, when_ns: int, tie: int, entry: Scheduled) -> None:
        self._added += 1
        heapq.heappush(self._heap, (when_ns, tie, self._added, entry))

    # Running.

    def step(self) -> bool:
        """Let the next action happen; False if there is none."""
        heap = self._heap
        while heap:
            when_ns, tie, _, entry = heapq.heappop(heap)
            action, actor = entry.action, entry.actor
            if action is None:
                continue
            if actor.resumes_ns > when_ns:
                if actor.resumes_ns >= NEVER_NS:
                    entry.cancel()
                else:
                    self._push(actor.resumes_ns, tie, entry)
                continue
            entry.action = None
            self.work -= entry.work
            self.now_ns = when_ns
            self.steps += 1
            self.last_actor = actor
            self._trace.append((when_ns, actor.name, entry.label))
            action()
            return True
        return False

    def run(self, until_ns: int | None = None) -> None:
        """Let everything happen, or everything up to a time."""
        while (next_ns := self.next_ns()) is not None and (until_ns is None or next_ns <= until_ns):
            self.step()
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)

    def next_ns(self) -> int | None:
        """When the next action is due, if nobody is paused; None if there is none."""
        heap = self._heap
        while heap and heap[0][3].action is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    # Remembering.

    def note(self, who: str, text: str) -> None:
        """Add a line to the trace."""
        self._trace.append((self.now_ns, who, text))

    def lines(self) -> list[str]:
        """What has happened, in order."""
        return [f"{when_ns} {who}: {text}" for when_ns, who, text in self._trace]

    def trace_hash(self) -> str:
        """A number for everything that has happened, times and bytes included."""
        return hashlib.blake2b("\n".join(self.lines()).encode(), digest_size=8).hexdigest()
