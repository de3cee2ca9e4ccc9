"""The words of `why`: figures as people read them, one thing to try for each limit, and an answer as text.

Used by the rules; nothing here decides. Names of settings and methods are those that the user can type.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.observe.diagnosis import Diagnosis
    from headgate.observe.why_facts import Task, Vertex

__all__ = [
    "bytes_text",
    "named",
    "percent",
    "render",
    "tasks_text",
    "try_less_work",
    "try_spreading",
    "try_waiting_less",
    "verb",
]

_WIDTH: Final = 100
_PARTITIONING: Final = {
    "hash": "choose a key with more values, or one whose values are more alike in number",
    "hash-columns": "choose columns with more values, or whose values are more alike in number",
    "custom": "let the function given to partition_custom spread records over all channels",
    "forward": "spread them with rebalance() before it: with forward, a subtask gets what the one before it has",
    "rescale": "use rebalance() instead of rescale(), so that every subtask gets some of everything",
    "global": "leave global_() out: it sends everything to one subtask",
}


def percent(share: float) -> str:
    """A share as people read it.

    >>> percent(0.934), percent(1.0)
    ('93 %', '100 %')
    """
    return f"{share:.0%}".replace("%", " %")


def bytes_text(count: float) -> str:
    """A number of bytes, rounded.

    >>> bytes_text(512), bytes_text(40_000), bytes_text(3_250_000)
    ('512 B', '40 KB', '3.2 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            number = count / size
            return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
    return f"{count:.0f} B"


def named(vertices: list[Vertex]) -> str:
    """The names of vertices in a sentence.

    >>> named([])
    'nothing'
    """
    names = [one.view.name for one in vertices]
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def verb(word: str, vertices: list[Vertex]) -> str:
    """A verb for as many.

    >>> verb("waits", ["one"]), verb("waits", ["one", "two"])
    ('waits', 'wait')
    """
    return word if len(vertices) == 1 else word.removesuffix("s")


def tasks_text(vertex: Vertex, apart: Task | None) -> str:
    """The tasks of a vertex that are meant, in a sentence.

    >>> from headgate.observe.graph import VertexView
    >>> from headgate.observe.why_facts import Vertex
    >>> tasks_text(Vertex(VertexView(id=0, name="words", parallelism=2, operators=()), ("one", "two"), ()), None)
    'both subtasks are'
    """
    if len(vertex.tasks) == 1:
        return "it is"
    if apart is not None:
        return f"subtask {apart.subtask} is"
    return "both subtasks are" if len(vertex.tasks) == 2 else f"all {len(vertex.tasks)} subtasks are"


def try_less_work(
    vertex: Vertex,
    operator: str,
    function: str | None,
    *,
    moves: bool = False,
    crowded: bool = False,
    outnumbered: bool = False,
) -> str:
    """What to try where an operator's CPU is the limit.

    >>> from headgate.observe.graph import VertexView
    >>> from headgate.observe.why_facts import Vertex
    >>> words = Vertex(VertexView(id=0, name="words", parallelism=2, operators=()), (), ())
    >>> try_less_work(words, "map(slow)", "slow (job.py:7)")
    'make slow (job.py:7) cheaper, or let more subtasks do it: set_parallelism(4) after map(slow)'

    Args:
        vertex: Where the operator is.
        operator: Which.
        function: Of the user, which is hot.
        moves: It spends its time on moving records, not in the user's functions.
        crowded: Other threads of its process have the interpreter.
        outnumbered: Others have the machine's CPUs.
    """
    cheaper = f"make {function} cheaper" if function else f"give {operator} less to do"
    if moves:
        cheaper = "move fewer and larger things: filter or add up earlier, or Arrow batches (to_arrow, map_batches)"
    if vertex.view.in_driver:
        return f"{cheaper}, or write in the workers (sink_to, for_each) instead of in the driver"
    if outnumbered:
        return f"let it have a CPU: its machine has more to do than CPUs, so run less beside it; or {cheaper}"
    if crowded:
        return (
            f"let more processes share the work, since one runs Python on one CPU at a time: a parallelism of"
            f" {2 * vertex.view.parallelism} on Spark, where every worker has a process of its own, or"
            f" slot_sharing_group('own') after {operator}; or {cheaper}"
        )
    return f"{cheaper}, or let more subtasks do it: set_parallelism({2 * vertex.view.parallelism}) after {operator}"


def try_waiting_less(vertex: Vertex, operator: str, *, reads: bool = False, writes: bool = False) -> str:
    """What to try where an operator waits for something outside.

    >>> from headgate.observe.graph import VertexView
    >>> from headgate.observe.why_facts import Vertex
    >>> words = Vertex(VertexView(id=0, name="words", parallelism=2, operators=()), (), ())
    >>> try_waiting_less(words, "map_async(look_up)")
    'let more calls wait at the same time: a greater capacity of map_async(look_up)'
    """
    more = f"set_parallelism({2 * vertex.view.parallelism}) after {operator}"
    if operator.startswith("map_async"):
        return f"let more calls wait at the same time: a greater capacity of {operator}"
    if reads:
        return f"ask for more at a time in read(), or let more subtasks read: more splits, and {more}"
    if writes and vertex.view.in_driver:
        return "write in the workers (sink_to, for_each) instead of in the driver"
    if writes:
        return f"write a whole batch by one call (Sink.write gets a list), or let more subtasks wait: {more}"
    return (
        "wait for many at once: make the function a coroutine function and call it with"
        f" map_async(..., capacity=100); or ask for a batch of records by one call; or {more}"
    )


def try_spreading(ship: str) -> str:
    """What to try where one task gets more records than the others.

    >>> try_spreading("global")
    'leave global_() out: it sends everything to one subtask'
    """
    return _PARTITIONING.get(ship, "spread the records evenly, for example with rebalance()")


def render(diagnosis: Diagnosis) -> str:
    """A diagnosis for a terminal: several lines of plain text.

    >>> from headgate.observe.diagnosis import Cause, Diagnosis
    >>> print(render(Diagnosis(
    ...     cause=Cause.CPU, vertex=1, operator="map(slow)", subtask=3, function="slow (job.py:7)",
    ...     summary="map(slow) is busy", evidence=("97 % of the time",), advice="raise its parallelism",
    ... )))
    cause:    cpu
    where:    map(slow), subtask 3
    function: slow (job.py:7)
    <BLANKLINE>
    map(slow) is busy.
    <BLANKLINE>
      - 97 % of the time
    <BLANKLINE>
    try: raise its parallelism
    """
    head = [f"cause:    {diagnosis.cause}", f"where:    {_plain(diagnosis.location)}"]
    if diagnosis.function:
        head.append(f"function: {_plain(diagnosis.function)}")
    if diagnosis.key is not None:
        share = "" if diagnosis.share is None else f", {percent(diagnosis.share)} of the records"
        head.append(f"key:      {_plain(diagnosis.key)}{share}")
    parts = ["\n".join(head), _wrapped("", f"{diagnosis.summary}.")]
    if diagnosis.evidence:
        parts.append("\n".join(_wrapped("  - ", one) for one in diagnosis.evidence))
    if diagnosis.advice:
        parts.append(_wrapped("try: ", diagnosis.advice))
    return "\n\n".join(parts)


def _wrapped(before: str, text: str) -> str:
    lines = textwrap.wrap(
        _plain(text),
        _WIDTH,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A name may be anything: what a terminal would take for a command is shown as a question mark."""
    return "".join(one if one.isprintable() else "?" for one in text)
