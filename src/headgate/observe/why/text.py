"""Figures and names as text, and a diagnosis as lines for a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from headgate.names import printable

if TYPE_CHECKING:
    from headgate.observe.why.diagnosis import Diagnosis
    from headgate.observe.why.facts import TaskFacts, VertexFacts

__all__ = ["bytes_text", "inflect", "names_text", "percent", "render", "subtasks_text"]

_WIDTH: Final = 100


def percent(share: float) -> str:
    """Return a share as text.

    >>> percent(0.934), percent(1.0)
    ('93 %', '100 %')
    """
    return f"{share:.0%}".replace("%", " %")


def bytes_text(count: float) -> str:
    """Return a number of bytes as text, rounded.

    >>> bytes_text(512), bytes_text(40_000), bytes_text(3_250_000)
    ('512 B', '40 KB', '3.2 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            number = count / size
            return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
    return f"{count:.0f} B"


def names_text(vertices: list[VertexFacts]) -> str:
    """Return the names of vertices for a sentence."""
    names = [one.view.name for one in vertices]
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def inflect(verb: str, vertices: list[VertexFacts]) -> str:
    """Return a verb of the third person in the form for this number of subjects.

    >>> inflect("waits", ["one"]), inflect("waits", ["one", "two"])
    ('waits', 'wait')
    """
    return verb if len(vertices) == 1 else verb.removesuffix("s")


def subtasks_text(vertex: VertexFacts, outlier: TaskFacts | None) -> str:
    """Return the beginning of a sentence about one subtask of a vertex, or about all."""
    if len(vertex.tasks) == 1:
        return "it is"
    if outlier is not None:
        return f"subtask {outlier.subtask} is"
    return "both subtasks are" if len(vertex.tasks) == 2 else f"all {len(vertex.tasks)} subtasks are"


def render(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as lines of plain text.

    >>> from headgate.observe import Cause, Diagnosis
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
    head = [f"cause:    {diagnosis.cause}", f"where:    {printable(diagnosis.location)}"]
    if diagnosis.function:
        head.append(f"function: {printable(diagnosis.function)}")
    if diagnosis.key is not None:
        share = "" if diagnosis.share is None else f", {percent(diagnosis.share)} of the records"
        head.append(f"key:      {printable(diagnosis.key)}{share}")
    parts = ["\n".join(head), _wrapped("", f"{diagnosis.summary}.")]
    if diagnosis.evidence:
        parts.append("\n".join(_wrapped("  - ", one) for one in diagnosis.evidence))
    if diagnosis.advice:
        parts.append(_wrapped("try: ", diagnosis.advice))
    return "\n\n".join(parts)


def _wrapped(before: str, text: str) -> str:
    lines = textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)
