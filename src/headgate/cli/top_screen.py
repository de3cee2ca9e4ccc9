"""The screen of `headgate top`: lines of text for a width and a height.

Pure: it makes lines from a view and the state of the command. Colours only repeat the information of characters and
figures. Names are printed without control characters.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from headgate.cli.job_argument import short_time
from headgate.cli.top_panels import bar_text, channel_lines, operator_lines, share_text, subtask_lines, why_lines
from headgate.config.units import format_size
from headgate.control.messages import TaskState
from headgate.coordinator.terminal import count_text
from headgate.names import printable
from headgate.observe.graph import GraphView
from headgate.observe.progress import VertexProgress
from headgate.observe.view import JobView

__all__ = ["TopPanel", "TopState", "ordered", "screen"]

_HELP: Final = "up/down select   Enter subtasks   e channels   w why   PgUp/PgDn scroll   q quit"
_LEAST: Final = 14  # characters of a name
_WIDE: Final = 110  # from this width on, the hottest key has a column
_KEY: Final = 24


class TopPanel(Enum):
    """The panel below the vertices."""

    NONE = "nothing"
    SUBTASKS = "the tasks of the selected vertex"
    CHANNELS = "the channels of its inputs"
    WHY = "the diagnosis of the job"


@dataclass
class TopState:
    """The selection of the user, and messages."""

    vertex: int = 0  # its position in the list
    panel: TopPanel = TopPanel.NONE
    scroll: int = 0  # lines of the panel above the visible part
    why: str = ""  # the diagnosis, or a message while it is requested
    note: str = ""  # an error, such as a process that has ended
    keys: bool = True  # there is a keyboard
    fancy: bool = True  # the terminal shows more than ASCII
    height: int = field(default=10, compare=False)  # of the visible part of the panel


def ordered(graph: GraphView) -> list[int]:
    """Return the vertices' ids, each after its producers.

    >>> from headgate.observe import EdgeView, VertexView
    >>> names = [VertexView(id=n, name=str(n), parallelism=1, operators=()) for n in range(3)]
    >>> edges = [EdgeView(id=n, producer=n + 1, consumer=n, ship="hash") for n in range(2)]
    >>> ordered(GraphView(vertices=tuple(names), edges=tuple(edges)))
    [2, 1, 0]
    """
    left = {one.id: {edge.producer for edge in graph.edges if edge.consumer == one.id} for one in graph.vertices}
    found: list[int] = []
    while left:
        # A plan has no cycle, but a view that was read from a file may: its vertices keep their order.
        ready = [number for number, before in left.items() if not before & left.keys()] or list(left)
        for number in ready:
            del left[number]
        found += ready
    return found


def screen(view: JobView, shown: TopState, width: int, height: int | None = None) -> list[Text]:
    """Return at most `height` lines; None: all lines, without a selection."""
    vertices = {one.id: one for one in view.progress.vertices}
    order = [vertices[number] for number in ordered(view.graph) if number in vertices]
    shown.vertex = max(0, min(shown.vertex, len(order) - 1))
    head = [_heading(view, width), *_message(view, shown, width), _titles(view, width)]
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
        (printable(progress.name), "bold"),
        f"  {printable(progress.job)}  ",
        (str(progress.status), style),
        f" {short_time(progress.uptime_s * 1000)}  {', '.join(parts)}",
    )
    return _fit(line, width)


def _message(view: JobView, shown: TopState, width: int) -> list[Text]:
    """Return one line: an error, the job's error, or the diagnosis; none if there is nothing of these."""
    if shown.note:
        return [_fit(Text(printable(shown.note), style="yellow"), width)]
    if view.error:
        return [_fit(Text(printable(view.error.splitlines()[0]), style="red"), width)]
    if view.diagnosis is not None and view.diagnosis.summary:
        return [_fit(Text(f"why: {printable(view.diagnosis.summary)}"), width)]
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


def _row(one: VertexProgress, view: JobView, shown: TopState, width: int, *, chosen: bool) -> Text:
    over = view.progress.status.over
    busy, idle, back_pressured, waiting = _shares(one, view)
    figures = (one.records_in, one.records_out) if over else (one.records_in_per_s, one.records_out_per_s)
    queued = sum(task.in_queued + task.backlog for task in one.subtasks)
    running = one.state is TaskState.RUNNING or over
    if running and busy + idle + back_pressured + waiting > 0:
        style = (
            "red"
            if max(back_pressured, one.max_back_pressured) >= 0.5
            else "yellow"
            if one.max_busy >= 0.5
            else "green"
        )
        bar, shares = (
            Text(bar_text(busy, back_pressured, 10, fancy=shown.fancy), style=style),
            [share_text(busy), share_text(back_pressured)],
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
        count_text(queued),
        short_time(max((late.p99_ms for late in one.latencies), default=None)),
        short_time(one.watermark_lag_ms) if not over else "",
    ]
    mark = "> " if chosen else "  "
    return _columns(mark, printable(one.name), cells, _hottest(one, view), width, style="reverse" if chosen else "")


def _shares(one: VertexProgress, view: JobView) -> tuple[float, float, float, float]:
    """Return the shares busy, idle, back-pressured and waiting: now, or of the whole history of a job that is over."""
    if not view.progress.status.over or view.timeline is None:
        return one.busy, one.idle, one.back_pressured, one.waiting
    lines = [line for line in view.timeline.tasks if line.vertex == one.id]
    lines = [line for line in lines if line.subtask < 0] or lines
    found = []
    for name in ("busy", "idle", "back_pressured", "waiting"):
        known = [value for line in lines for value in getattr(line, name) if value >= 0]
        found.append(sum(known) / len(known) / 1000 if known else 0.0)
    return found[0], found[1], found[2], found[3]


def _hottest(one: VertexProgress, view: JobView) -> str:
    """Return the most frequent key of its inputs, as its producers count it."""
    inputs = {edge.id for edge in view.graph.edges if edge.consumer == one.id}
    keys = [key for vertex in view.progress.vertices for key in vertex.hot_keys if key.exchange in inputs]
    if not keys:
        return ""
    hottest = max(keys, key=lambda key: key.share)
    return f"{share_text(hottest.share)} {printable(hottest.key)}"


def _detail(one: VertexProgress, view: JobView, width: int) -> list[Text]:
    """Return details of the selected vertex that its row does not have."""
    graph = next((vertex for vertex in view.graph.vertices if vertex.id == one.id), None)
    names = {vertex.id: vertex.name for vertex in view.graph.vertices}
    parts = [f"hottest key {hottest}"] if (hottest := _hottest(one, view)) else []
    if graph is not None and len(graph.operators) > 1:
        parts.append(" -> ".join(graph.operators))
    inputs = [edge for edge in view.graph.edges if edge.consumer == one.id]
    if inputs:
        parts.append("reads " + ", ".join(f"{names.get(edge.producer, '?')} ({edge.ship})" for edge in inputs))
    parts += [f"{name} {count_text(value)}" for name, value in one.counters.items()]
    lines = textwrap.wrap(printable("; ".join(parts)), width, initial_indent="  ", subsequent_indent="  ", max_lines=2)
    return [_fit(Text(line, style="dim"), width) for line in lines]


def _panel(one: VertexProgress, view: JobView, shown: TopState, width: int) -> list[Text]:
    if shown.panel is TopPanel.SUBTASKS:
        lines = [*subtask_lines(one, fancy=shown.fancy), *operator_lines(one, view.graph)]
    elif shown.panel is TopPanel.CHANNELS:
        lines = channel_lines(one, view.graph, width)
    elif shown.panel is TopPanel.WHY:
        lines = why_lines(shown.why)
    else:
        return []
    return [_fit(line, width) for line in lines]


def _around(rows: Sequence[Text], chosen: int, count: int) -> list[Text]:
    """Return `count` rows, with the selected one among them."""
    begin = max(0, min(chosen - count // 2, len(rows) - count))
    return list(rows[begin : begin + count])


def _columns(mark: str, name: str, cells: Sequence[str | Text], key: str, width: int, *, style: str) -> Text:
    """Return a line of the table; cells after the name are right-aligned, except the bar."""
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
    """Return the text in exactly `width` columns."""
    return set_cell_size(text if cell_len(text) <= width else f"{set_cell_size(text, width - 2)}..", width)


def _fit(line: Text, width: int) -> Text:
    """Return the line, cut to the width of the terminal."""
    if cell_len(line.plain) > width:
        line.truncate(width)
    line.no_wrap = True
    return line
