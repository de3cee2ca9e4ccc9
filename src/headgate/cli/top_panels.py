"""The panels of `headgate top` below its list of vertices: subtasks, channels, diagnosis."""

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from headgate.cli.job_argument import short_time
from headgate.coordinator.terminal import count_text
from headgate.names import printable
from headgate.observe.graph import EdgeView, GraphView
from headgate.observe.progress import ChannelProgress, SubtaskProgress, VertexProgress

__all__ = ["bar_text", "channel_lines", "operator_lines", "share_text", "subtask_lines", "why_lines"]

_CELL: Final = 8  # characters of a channel
_MORE: Final = 16  # characters of the number of further channels


def bar_text(busy: float, back_pressured: float, width: int, *, fancy: bool = True) -> str:
    """Return busy, back-pressured and idle time as characters.

    >>> bar_text(0.5, 0.3, 10), bar_text(0.5, 0.3, 10, fancy=False), bar_text(0.0, 0.0, 4)
    ('█████▒▒▒··', '#####===..', '····')
    """
    full, part, none = "█▒·" if fancy else "#=."
    first = min(width, round(busy * width))
    second = min(width - first, round(back_pressured * width))
    return full * first + part * second + none * (width - first - second)


def share_text(share: float) -> str:
    """Return a share in at most four characters.

    >>> share_text(0.125), share_text(1.0)
    ('12%', '100%')
    """
    return f"{share:.0%}"


def subtask_lines(vertex: VertexProgress, *, fancy: bool = True) -> list[Text]:
    """Return a line for each task of a vertex.

    >>> task = SubtaskProgress(subtask=0, worker=1, busy=0.5, back_pressured=0.5, records_in_per_s=1500)
    >>> vertex = VertexProgress(id=0, name="words", parallelism=1, state=task.state, subtasks=(task,))
    >>> for line in subtask_lines(vertex): print(line.plain.rstrip())
    task  on state              busy held  in/s out/s  read  wait  cpu   p99   lag
       0   1 created █████▒▒▒▒▒  50%  50%  1.5k     0     0     0
    """
    title = "task  on state              busy held  in/s out/s  read  wait  cpu   p99   lag"
    lines = [Text(title, style="bold")]
    for one in vertex.subtasks:
        late = short_time(max((latency.p99_ms for latency in one.latencies), default=None))
        figures = "".join(f" {count_text(value):>5}" for value in _figures(one))
        cpu = "" if one.cpu is None else share_text(one.cpu)
        line = Text(f"{one.subtask:>4} {one.worker:>3} {str(one.state)[:7]:<7} ")
        style = "red" if one.back_pressured >= 0.5 else "yellow" if one.busy >= 0.5 else "green"
        line.append(bar_text(one.busy, one.back_pressured, 10, fancy=fancy), style=style)
        line.append(f" {share_text(one.busy):>4} {share_text(one.back_pressured):>4}{figures} {cpu:>4} {late:>5}")
        line.append(f" {short_time(one.watermark_lag_ms):>5}")
        lines.append(line)
    return lines


def operator_lines(vertex: VertexProgress, graph: GraphView) -> list[Text]:
    """Return a line for each operator of a vertex's chain; none if it has one operator without side outputs.

    >>> from headgate.observe import OperatorProgress, VertexView
    >>> from headgate.control.messages import TaskState
    >>> operators = (OperatorProgress(records_out=9), OperatorProgress(records_in=9, side_outputs={"late": 1200}))
    >>> parts = {"id": 0, "name": "words -> sort", "parallelism": 1}
    >>> vertex = VertexProgress(**parts, state=TaskState.RUNNING, operators=operators, subtasks=())
    >>> graph = GraphView(vertices=(VertexView(**parts, operators=("words", "sort")),), edges=())
    >>> for line in operator_lines(vertex, graph): print(line.plain.rstrip())
    <BLANKLINE>
        in   out  in/s out/s operator
         0     9     0     0 words
         9     0     0     0 sort, side outputs: late 1.2k
    """
    names = next((one.operators for one in graph.vertices if one.id == vertex.id), ())
    known = list(zip(vertex.operators, names, strict=False))
    if len(known) < 2 and not any(one.side_outputs for one, _ in known):
        return []
    lines = [Text(""), Text("    in   out  in/s out/s operator", style="bold")]
    for one, name in known:
        figures = (one.records_in, one.records_out, one.records_in_per_s, one.records_out_per_s)
        sides = ", ".join(f"{printable(tag)} {count_text(count)}" for tag, count in one.side_outputs.items())
        line = " ".join([*[f"{count_text(value):>5}" for value in figures], printable(name)])
        lines.append(Text(f" {line}{f', side outputs: {sides}' if sides else ''}"))
    return lines


def _figures(one: SubtaskProgress) -> tuple[float, ...]:
    return one.records_in_per_s, one.records_out_per_s, one.in_queued, one.backlog


def channel_lines(vertex: VertexProgress, graph: GraphView, width: int) -> list[Text]:
    """Return the channels of each input of a vertex: a row for each of its tasks, a column for each producer.

    >>> channel = ChannelProgress(exchange=0, producer=1, backlog=3, credit=2)
    >>> task = SubtaskProgress(subtask=0, worker=1, channels=(channel,))
    >>> vertex = VertexProgress(id=1, name="count", parallelism=1, state=task.state, subtasks=(task,))
    >>> graph = GraphView(vertices=(), edges=(EdgeView(id=0, producer=0, consumer=1, ship="hash"),))
    >>> for line in channel_lines(vertex, graph, 80): print(line.plain.rstrip())
    credit/backlog of each channel; within a worker there is no credit (-)
    0 -> count, hash
    task    p1
       0   2/3
    """
    edges = [edge for edge in graph.edges if edge.consumer == vertex.id]
    if not edges:
        return [Text("it has no input")]
    lines = [Text("credit/backlog of each channel; within a worker there is no credit (-)", style="dim")]
    for edge in edges:
        lines += _edge_lines(edge, vertex, graph, width)
    return lines


def _edge_lines(edge: EdgeView, vertex: VertexProgress, graph: GraphView, width: int) -> Iterator[Text]:
    names = {one.id: one.name for one in graph.vertices}
    producer = printable(names.get(edge.producer, str(edge.producer)))
    yield Text(f"{producer} -> {printable(vertex.name)}, {edge.ship}", style="bold")
    rows = {
        one.subtask: {channel.producer: channel for channel in one.channels if channel.exchange == edge.id}
        for one in vertex.subtasks
    }
    producers = sorted({number for row in rows.values() for number in row})
    if not producers:
        yield Text("no channel is reported", style="dim")
        return
    room = (width - 4) // _CELL
    seen = producers if len(producers) <= room else producers[: max(1, (width - 4 - _MORE) // _CELL)]
    more = f"  and {len(producers) - len(seen)} more" if len(seen) < len(producers) else ""
    yield Text("task" + "".join(f"{f'p{number}':>{_CELL - 2}}  " for number in seen).rstrip() + more, style="dim")
    for subtask, row in rows.items():
        line = Text(f"{subtask:>4}")
        for number in seen:
            line.append_text(_cell(row.get(number)))
        yield line


def _cell(channel: ChannelProgress | None) -> Text:
    if channel is None:
        return Text(" " * _CELL)
    credit = "-" if channel.local else count_text(channel.credit)
    waiting = max(channel.backlog, channel.queued) if channel.local else channel.backlog
    style = "red" if waiting and not channel.local and not channel.credit else "yellow" if waiting else ""
    return Text(f"{f'{credit}/{count_text(waiting)}':>{_CELL - 2}}  ", style=style)


def why_lines(text: str) -> list[Text]:
    """Return the lines of a diagnosis."""
    return [Text(printable(line)) for line in text.splitlines()] or [Text("")]
