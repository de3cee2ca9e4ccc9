"""Virtual time: a heap of (time, seeded tie-break, action), and independent randomness for each concern.

All code of a simulation runs in actions of an `Actor`. An action runs to its end before the next one starts; the seed
decides the order of actions at the same time. There is no thread and no other clock. It suits tests of any code that
takes its clock and its transport as arguments.

Invariants: time never decreases; the actions of a paused actor wait; two runs that schedule the same actions from the
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
"""A time that is never reached. An actor that resumes then is dead: its actions are dropped."""


def fork(seed: int, concern: str) -> random.Random:
    """Return the randomness of one concern; it is independent of the numbers that other concerns draw.

    >>> fork(7, "sizes").random() == fork(7, "sizes").random(), fork(7, "sizes").random() == fork(7, "faults").random()
    (True, False)
    """
    return random.Random(f"{seed}/{concern}")  # noqa: S311 - it must repeat


class Actor:
    """The owner of actions: a worker, or the world around the workers. While it is paused, its actions wait.

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
    """An action that is scheduled.

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
        """True while the action has neither run nor been cancelled."""
        return self.action is not None

    def cancel(self) -> None:
        """Do not run the action. May be repeated, also after it has run."""
        if self.action is not None:
            self.action = None
            self._simulator.work -= self.work


class Simulator:
    """Runs actions in virtual time.

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
        """The number of actions that have run."""
        self.work = 0
        """The number of scheduled actions that are not housekeeping. At 0, no record will move any more."""
        self.last_actor: Actor | None = None
        self._tie = fork(seed, "ties").getrandbits
        self._heap: list[tuple[int, int, int, Scheduled]] = []
        self._added = 0
        self._trace: list[tuple[int, str, str]] = []

    def fork(self, concern: str) -> random.Random:
        """Return the randomness of one concern."""
        return fork(self.seed, concern)

    # Scheduling.

    def at(
        self, when_ns: int, action: Callable[[], object], actor: Actor, label: str = "act", *, work: bool = True
    ) -> Scheduled:
        """Schedule an action at a time. `work` is False for housekeeping, which repeats for ever."""
        entry = Scheduled(self, action, actor, label, work=work)
        self.work += work
        self._push(max(when_ns, self.now_ns), self._tie(16), entry)
        return entry

    def after(
        self, delay_ns: int, action: Callable[[], object], actor: Actor, label: str = "act", *, work: bool = True
    ) -> Scheduled:
        """Schedule an action after a delay."""
        return self.at(self.now_ns + delay_ns, action, actor, label, work=work)

    def _push(self, when_ns: int, tie: int, entry: Scheduled) -> None:
        self._added += 1
        heapq.heappush(self._heap, (when_ns, tie, self._added, entry))

    # Running.

    def step(self) -> bool:
        """Run the next action. Return False if there is none."""
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
        """Run all actions, or all up to a time."""
        while (next_ns := self.next_ns()) is not None and (until_ns is None or next_ns <= until_ns):
            self.step()
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)

    def next_ns(self) -> int | None:
        """Return the time of the next action, pauses not considered; None if there is none."""
        heap = self._heap
        while heap and heap[0][3].action is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    # The trace.

    def note(self, actor: str, text: str) -> None:
        """Add a line to the trace."""
        self._trace.append((self.now_ns, actor, text))

    def lines(self) -> list[str]:
        """Return the trace: one line for each action and note, in order."""
        return [f"{when_ns} {actor}: {text}" for when_ns, actor, text in self._trace]

    def trace_hash(self) -> str:
        """Return a hash of the trace. Two runs with the same hash had the same actions, times and bytes."""
        return hashlib.blake2b("\n".join(self.lines()).encode(), digest_size=8).hexdigest()
