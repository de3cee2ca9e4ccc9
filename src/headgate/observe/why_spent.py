"""Where the time of busy tasks goes: to a CPU, the line for one, other threads, or waiting; and in which function.

Used by the rules of `why`; pure. Figures of CPU time are of the last report, samples of the last round of sampling.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headgate.observe.why_facts import share_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headgate.observe.why_facts import Facts, Task

__all__ = ["FULL", "Hot", "Spent", "hot_of", "spent_of"]

FULL: Final = 0.75
"""A process whose threads use, or stand in line for, this many CPUs has its interpreter in use nearly all of the time:
whoever else wants it waits. With less, there are gaps that a thread which wants to run would fill."""

_OURS: Final = "(headgate)"  # how sampling ends the names of functions that are not the user's


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the busy time of some tasks went, as shares of it.

    >>> Spent(cpu=0.9, queue=0.05, others=0.0, waiting=0.05).waiting
    0.05
    """

    cpu: float  # on a CPU
    queue: float  # could have been, had one been free
    others: float  # neither, while other threads of the process were: they wait for the interpreter's lock
    waiting: float  # neither, and nobody else's work explains it


@dataclass(frozen=True, slots=True)
class Hot:
    """Where samples of busy tasks stand.

    >>> Hot(operator="map(slow)", function="slow (job.py:7)", count=90, taken=100).function
    'slow (job.py:7)'
    """

    operator: str  # '': in no operator's code
    function: str | None  # of the user, with the line that was seen most; None: there is no such, or it has no name
    count: int  # samples in that function, or in the operator if there is none
    taken: int  # samples of work
    ours: int = 0  # of the operator's, those in headgate's own code: records are read, written, moved

    @property
    def moves(self) -> bool:
        """Whether most of the operator's work is to move records."""
        return self.ours > self.count if self.function else 2 * self.ours > self.count


def spent_of(facts: Facts, tasks: Iterable[Task]) -> Spent | None:
    """Where the busy time of these tasks went; None: the system does not say.

    >>> spent_of(None, [])
    """
    busy = cpu = queue = others = waiting = 0.0
    for task in tasks:
        mine_busy = share_of(task.now.busy)
        if task.now.cpu is None or mine_busy <= 0:
            continue
        mine = min(mine_busy, share_of(task.now.cpu))
        mine_queue = min(mine_busy - mine, task.in_line)
        rest = mine_busy - mine - mine_queue
        # Somebody who wants the interpreter gets it unless others have it: on a CPU, or in line for one with it.
        demand = facts.demand(task.process) or 0.0
        by_others = min(rest, max(0.0, demand - mine - mine_queue)) if demand >= FULL else 0.0
        busy, cpu, queue = busy + mine_busy, cpu + mine, queue + mine_queue
        others, waiting = others + by_others, waiting + rest - by_others
    return Spent(cpu / busy, queue / busy, others / busy, waiting / busy) if busy > 0 else None


def hot_of(tasks: Iterable[Task]) -> Hot | None:
    """Where these tasks work, by their samples; None: there are none.

    >>> hot_of([])
    """
    operators: Counter[str] = Counter()
    lines: dict[str, Counter[str]] = defaultdict(Counter)  # of each operator's user
    for task in tasks:
        for stack in () if task.samples is None else task.samples.stacks:
            working = stack.count - stack.idle - stack.back_pressured
            if working > 0:
                operators[stack.operator] += working
                lines[stack.operator][_users_line(stack.frames)] += working
    if not operators:
        return None
    operator, count = operators.most_common(1)[0]
    ours = lines[operator].pop(_OURS, 0)
    functions: Counter[str] = Counter()
    for line, seen in lines[operator].items():
        functions[_function(line)] += seen
    if not functions:
        return Hot(operator, None, count, operators.total(), ours)
    function, count = functions.most_common(1)[0]
    line = max((one for one in lines[operator] if _function(one) == function), key=lines[operator].__getitem__)
    if ours > count:
        return Hot(operator, None, ours + lines[operator].total(), operators.total(), ours)
    return Hot(operator, line or None, count, operators.total(), ours)


def _users_line(frames: Sequence[str]) -> str:
    """The line to look at: the innermost in the file of the function that the operator has called.

    What lies further in is a library's, most often, and tells the user less. '': it has no name.
    """
    users = [one for one in frames if one.endswith(")") and not one.endswith(_OURS)]
    if not users:
        return _OURS if frames and frames[-1].endswith(_OURS) else ""
    file = _file(users[0])
    return next(one for one in reversed(users) if _file(one) == file)


def _file(frame: str) -> str:
    return frame.rpartition(" (")[2].rpartition(":")[0]


def _function(line: str) -> str:
    """A frame without its line."""
    return line.rpartition(":")[0]
