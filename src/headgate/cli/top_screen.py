"""What `headgate top` shows of a job: lines of text, as wide and as many as there is room for.

Pure: a view and what was chosen give lines; nothing here asks a job or a terminal. Colours only repeat what characters
and figures say. Names come from users and are shown without anything that a terminal would obey.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from headgate.cli.looking import plain, short_time
from headgate.cli.top_panels import bar_text, channel_lines, share_text, subtask_lines, why_lines
from headgate.config.units import format_size
from headgate.coordinator.terminal import count_text
from headgate.observe.graph import GraphView
from headgate.observe.progress import VertexProgress
from headgate.observe.view import JobView
from headgate.worker.messages import TaskState

__all__ = ["Panel", "Shown", "ordered", "screen"]

_HELP: Final = "up/down select   Enter subtasks   e channels   w why   PgUp/PgDn scroll   q quit"
_LEAST: Final = 14  # characters of a name
_WIDE: Final = 110  # from so many columns on, the hottest key has its own
_KEY: Final = 24


class Panel(Enum):
    """What is shown below the vertices.

    >>> Panel.NONE.value
    'nothing'
    """

    NONE = "nothing"
    SUBTASKS = "the tasks of the chosen vertex"
    CHANNELS = "the channels that it reads from"
    WHY = "what holds the job back"


@dataclass
class Shown:
    """What was chosen.

    >>> Shown().panel
    <Panel.NONE: 'nothing'>
    """

    vertex: int = 0  # its place in the list
    panel: Panel = Panel.NONE
    scroll: int = 0  # lines of the panel that are above what is seen
    why: str = ""  # the answer, or what is done to get it
    note: str = ""  # what is wrong, such as a process that is gone
    keys: bool = True  # whether there are any
    fancy: bool = True  # whether the terminal knows more than ASCII
    height: int = field(default=10, compare=False)  # of the panel, as it was last seen


def ordered(graph: GraphView) -> list[int]:
    """The vertices' ids, each after those that it reads from.

    >>> from headgate.observe import EdgeView, VertexView
    >>> names = [VertexView(id=n, name=str(n), parallelism=1, operators=()) for n in range(3)]
    >>> edges = [EdgeView(id=n, producer=n + 1, consumer=n, ship="hash") for n in range(2)]
    >>> ordered(GraphView(vertices=tuple(names), edges=tuple(edges)))
    [2, 1, 0]
    """
    left = {one.id: {edge.producer for edge in graph.edges if edge.consumer == one.id} for one in graph.vertices}
    found: list[int] = []
    while left:
        # A graph has no circle; whatever calls itself one is taken as it comes.
        ready = [number for number, before in left.items() if not before & left.keys()] or list(left)
        for number in ready:
            del left[number]
        found += ready
    return found


def screen(view: JobView, shown: Shown, width: int, height: int | None = None) -> list[Text]:
    """The whole of it, at most `height` lines; None: as many as it takes, and nothing is marked as chosen."""
    vertices = {one.id: one for one in view.progress.vertices}
    order = [vertices[number] for number in ordered(view.graph) if number in vertices]
    shown.vertex = max(0, min(shown.vertex, len(order) - 1))
    head = [_heading(view, width), *_remark(view, shown, width), _titles(view, width)]
    rows = [
        _row(one, view, shown, width, chosen=height is not None and i == shown.vertex) for i, one in enumerate(order)
    ]
    if height is None:
        return [*head, *rows]
    chosen = order[shown.vertex] if order else None
    detail = [] if chosen is None else _detail(chosen, view, width)
    footer = _fit(Text(_HELP if shown.keys else "Ctrl-C quits", style="dim"), width)
    panel = [] if chosen is None else _panel(chosen, view, shown, width)
    room = max(1, height - len(head) - len(detail) - 1)  # for vertices and panel
    for_rows = min(len(rows), max(3, room // 2) if panel else room)
    rows = _around(rows, shown.vertex, for_rows)
    shown.height = max(1, room - len(rows) - 1)
    if panel:
        shown.scroll = max(0, min(shown.scroll, len(panel) - shown.height))
        panel = [Text(""), *panel[shown.scroll : shown.scroll + shown.height]]
    body = [*head, *rows, *detail, *panel][: height - 1]
    return [*body, *[Text("")] * (height - 1 - len(body)), footer]


def _heading(view: JobView, width: int) -> Text:
    progress = view.progress
    style = {"running": "green", "failed": "red", "cancelled": "yellow"}.get(str(progress.status), "")
    parts = [f"{len(progress.workers)} worker{'s' if len(progress.workers) != 1 else ''}"]
    if memory := sum({one.pid: one.memory_bytes for one in progress.workers}.values()):
        parts.append(format_size(memory // 2**20 * 2**20))
    cpus = {one.pid: one.cpu for one in progress.workers if one.cpu is not None}
    if cpus and not progress.status.over:
        parts.append(f"{sum(cpus.values()):.1f} CPU")
    line = Text.assemble(
        (plain(progress.name), "bold"),
        f"  {plain(progress.job)}  ",
        (str(progress.status), style),
        f" {short_time(progress.uptime_s * 1000)}  {', '.join(parts)}",
    )
    return _fit(line, width)


def _remark(view: JobView, shown: Shown, width: int) -> list[Text]:
    """One line of what is most worth knowing, if there is something."""
    if shown.note:
        return [_fit(Text(plain(shown.note), style="yellow"), width)]
    if view.error:
        return [_fit(Text(plain(view.error.splitlines()[0]), style="red"), width)]
    if view.diagnosis is not None and view.diagnosis.summary:
        return [_fit(Text(f"why: {plain(view.diagnosis.summary)}"), width)]
    return []


_COLUMNS: Final = (
    ("", 4),
    ("", 10),
    ("busy", 4),
    ("held", 4),
    ("in/s", 5),
    ("out/s", 5),
    ("queue", 5),
    ("p99", 5),
    ("lag", 5),
)


def _names_width(width: int) -> int:
    rest = sum(size + 1 for _, size in _COLUMNS) + (1 + _KEY if width >= _WIDE else 0)
    return max(_LEAST, width - 2 - rest)


def _titles(view: JobView, width: int) -> Text:
    titles = [title for title, _ in _COLUMNS]
    if view.progress.status.over:
        titles[4:6] = ["in", "out"]
    return _columns("  ", "vertex", titles, "hottest key", width, style="bold")


def _row(one: VertexProgress, view: JobView, shown: Shown, width: int, *, chosen: bool) -> Text:
    over = view.progress.status.over
    busy, idle, held = _shares(one, view)
    figures = (one.records_in, one.records_out) if over else (one.records_in_per_s, one.records_out_per_s)
    waiting = sum(task.in_queued + task.backlog for task in one.subtasks)
    running = one.state is TaskState.RUNNING or over
    if running and busy + idle + held > 0:
        style = "red" if max(held, one.max_back_pressured) >= 0.5 else "yellow" if one.max_busy >= 0.5 else "green"
        bar, shares = (
            Text(bar_text(busy, held, 10, fancy=shown.fancy), style=style),
            [share_text(busy), share_text(held)],
        )
    else:
        bar, shares = (
            Text(str(one.state).ljust(10)[:10], style="red" if one.state is TaskState.FAILED else "dim"),
            ["", ""],
        )
    cells: list[str | Text] = [
        f"x{one.parallelism}",
        bar,
        *shares,
        *map(count_text, figures),
        count_text(waiting),
        short_time(max((late.p99_ms for late in one.latencies), default=None)),
        short_time(one.watermark_lag_ms) if not over else "",
    ]
    mark = "> " if chosen else "  "
    return _columns(mark, plain(one.name), cells, _hottest(one, view), width, style="reverse" if chosen else "")


def _shares(one: VertexProgress, view: JobView) -> tuple[float, float, float]:
    """Busy, idle, back-pressured: now, or of all its life where it is over."""
    if not view.progress.status.over or view.timeline is None:
        return one.busy, one.idle, one.back_pressured
    lines = [line for line in view.timeline.tasks if line.vertex == one.id]
    lines = [line for line in lines if line.subtask < 0] or lines
    found = []
    for name in ("busy", "idle", "back_pressured"):
        known = [value for line in lines for value in getattr(line, name) if value >= 0]
        found.append(sum(known) / len(known) / 1000 if known else 0.0)
    return found[0], found[1], found[2]


def _hottest(one: VertexProgress, view: JobView) -> str:
    """Of the keys of records that it gets, as those who write to it have seen them."""
    inputs = {edge.id for edge in view.graph.edges if edge.consumer == one.id}
    keys = [key for vertex in view.progress.vertices for key in vertex.hot_keys if key.exchange in inputs]
    if not keys:
        return ""
    hottest = max(keys, key=lambda key: key.share)
    return f"{share_text(hottest.share)} {plain(hottest.key)}"


def _detail(one: VertexProgress, view: JobView, width: int) -> list[Text]:
    """More of the chosen vertex than its row has room for."""
    graph = next((vertex for vertex in view.graph.vertices if vertex.id == one.id), None)
    names = {vertex.id: vertex.name for vertex in view.graph.vertices}
    parts = [f"hottest key {hottest}"] if (hottest := _hottest(one, view)) else []
    if graph is not None and len(graph.operators) > 1:
        parts.append(" -> ".join(graph.operators))
    inputs = [edge for edge in view.graph.edges if edge.consumer == one.id]
    if inputs:
        parts.append("reads " + ", ".join(f"{names.get(edge.producer, '?')} ({edge.ship})" for edge in inputs))
    parts += [f"{name} {count_text(value)}" for name, value in one.counters.items()]
    lines = textwrap.wrap(plain("; ".join(parts)), width, initial_indent="  ", subsequent_indent="  ", max_lines=2)
    return [_fit(Text(line, style="dim"), width) for line in lines]


def _panel(one: VertexProgress, view: JobView, shown: Shown, width: int) -> list[Text]:
    if shown.panel is Panel.SUBTASKS:
        lines = subtask_lines(one, fancy=shown.fancy)
    elif shown.panel is Panel.CHANNELS:
        lines = channel_lines(one, view.graph, width)
    elif shown.panel is Panel.WHY:
        lines = why_lines(shown.why)
    else:
        return []
    return [_fit(line, width) for line in lines]


def _around(rows: Sequence[Text], chosen: int, count: int) -> list[Text]:
    """So many rows, with the chosen one among them."""
    begin = max(0, min(chosen - count // 2, len(rows) - count))
    return list(rows[begin : begin + count])


def _columns(mark: str, name: str, cells: Sequence[str | Text], key: str, width: int, *, style: str) -> Text:
    """A line of the table: everything after the name is right-aligned, but for the bar."""
    line = Text(mark, style=style)
    line.append(_cut(name, _names_width(width)))
    for (_, size), cell in zip(_COLUMNS, cells, strict=True):
        line.append(" ")
        if isinstance(cell, Text):
            line.append_text(cell)
        else:
            line.append(cell.rjust(size)[:size])
    if width >= _WIDE:
        line.append(" " + _cut(key, _KEY))
    return _fit(line, width)


def _cut(text: str, width: int) -> str:
    """In exactly so many columns."""
    return set_cell_size(text if cell_len(text) <= width else f"{set_cell_size(text, width - 2)}..", width)


def _fit(line: Text, width: int) -> Text:
    """No wider than the terminal."""
    if cell_len(line.plain) > width:
        line.truncate(width)
    line.no_wrap = True
    return line
