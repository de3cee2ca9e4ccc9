"""A description of a plan: as text, and as a Mermaid diagram.

It contains the decisions before the run: the mode, the operators of each task, the workers of its subtasks, the
shipping and serializer of each exchange, and the network buffers that each worker needs and has (M5). In BATCH also the
blocking exchanges, and the order of the stages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headgate.buffer import Limits
from headgate.config import RuntimeMode, format_size
from headgate.errors import ConfigError
from headgate.graph.plan import ShipKind
from headgate.graph.regions import Regions, stages_of
from headgate.record import AuthenticatedPeer, SerializerRegistry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headgate.graph.plan import Exchange, Plan, Vertex
    from headgate.graph.regions import Stage

__all__ = ["explain_mermaid", "explain_text"]


def explain_text(plan: Plan, *, memory_bytes: int) -> str:
    """Return the plan as lines of text.

    Args:
        plan: The plan.
        memory_bytes: The network memory of each worker.

    >>> from headgate.config import Settings
    >>> from headgate.graph import Edge, Ship, StreamGraph, make_plan
    >>> graph = StreamGraph()
    >>> words = graph.add("words", object, source=object(), hint=str)
    >>> count = graph.add("count", object, inputs=[Edge(words, Ship(ShipKind.HASH, key=len))])
    >>> plan = make_plan(graph.take(), job="1", name="job", parallelism=2, settings=Settings(), splits=False)
    >>> print(explain_text(plan, memory_bytes=2**20))
    job: STREAMING, 2 vertices on 2 workers
    <BLANKLINE>
    [0] words
        parallelism 2, workers 0 to 1
    <BLANKLINE>
    [1] count
        parallelism 2, workers 0 to 1
        <- [0] hash, str
    <BLANKLINE>
    network buffers of 32 KiB that each worker needs, of 32 that it has:
        workers 0, 1: 5 = 3 (words) + 2 (count)
    """
    regions = Regions(plan) if plan.batch else None
    stages = "" if regions is None else f" in {_count(len(regions.stages), 'stage')}"
    where = f"on {_count(plan.workers, 'worker')}{' and in the driver' if plan.uses_driver else ''}"
    lines = [f"{plan.name}: {_mode(plan)}, {_count(len(plan.vertices), 'vertex', 'vertices')}{stages} {where}", ""]
    serializers = _Serializers(plan)
    for vertex in plan.vertices:
        lines += _vertex_lines(plan, vertex, serializers)
    if regions is not None:
        lines += _stage_lines(regions)
    lines += _budget_lines(plan, memory_bytes)
    return "\n".join(lines)


def _mode(plan: Plan) -> str:
    mode = "BATCH" if plan.batch else "STREAMING"
    return f"{mode} (chosen by AUTO)" if plan.settings.execution.runtime_mode is RuntimeMode.AUTO else mode


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _where(plan: Plan, vertex: Vertex) -> str:
    if vertex.in_driver:
        return "in the driver"
    workers = vertex.workers(plan)
    if len(workers) == 1:
        return f"worker {workers[0]}"
    return f"workers {workers[0]} to {workers[-1]}"


def _vertex_lines(plan: Plan, vertex: Vertex, serializers: _Serializers) -> Iterator[str]:
    group = "" if vertex.in_driver or vertex.slot_group == "default" else f", slot group {vertex.slot_group}"
    yield f"[{vertex.id}] {vertex.name}"
    yield f"    parallelism {vertex.parallelism}, {_where(plan, vertex)}{group}"
    yield from _chain_lines(vertex)
    for exchange in plan.inputs(vertex.id):
        second = ", second input" if exchange.input else ""
        how = f"{_shipped(exchange)}, {serializers.of(exchange)}{second}{_timeout(exchange)}"
        yield f"    <- [{exchange.producer}] {how}"
    yield ""


def _stage_lines(regions: Regions) -> Iterator[str]:
    """Yield the stages, and the stages that each one waits for."""
    yield "stages, of which a worker runs one at a time:"
    for stage in regions.stages:
        vertices = ", ".join(f"[{vertex}]" for vertex in stage.vertices)
        yield f"    {stage.id}: {vertices}{_waits_for(regions, stage)}"
    yield ""


def _waits_for(regions: Regions, stage: Stage) -> str:
    if stage.sink_in_driver:
        return ", at the end"
    before = sorted({regions.stage_of(one.producer) for one in regions.plan.inputs(stage.vertices[0])})
    return f", after {', '.join(map(str, before))}" if before else ""


def _chain_lines(vertex: Vertex) -> Iterator[str]:
    """Yield the operators of a vertex, unless each reads the one before it."""
    operators = vertex.operators
    if all(one.tag is None and one.reads in (None, number - 1) for number, one in enumerate(operators)):
        return
    for number, one in enumerate(operators):
        read = "" if one.reads is None else f" reads {one.reads + 1}"
        yield f"    {number + 1}. {one.name}{read}{'' if one.tag is None else f', side output {one.tag}'}"


def _timeout(exchange: Exchange) -> str:
    return "" if exchange.buffer_timeout is None else f", buffer timeout {exchange.buffer_timeout}"


def _shipped(exchange: Exchange) -> str:
    ship = exchange.ship
    text = str(ship.kind)
    if ship.kind is ShipKind.HASH_COLUMNS:
        text = f"hash of {', '.join(ship.columns)}"
    if exchange.blocking:
        text += ", blocking"
    return text if exchange.tag is None else f"side output {exchange.tag}, {text}"


class _Serializers:
    """The serializers that the workers will select."""

    def __init__(self, plan: Plan) -> None:
        self._registry = SerializerRegistry()
        for key, serializer in plan.serializers.items():
            self._registry.register(key, serializer, replace=True)

    def of(self, exchange: Exchange) -> str:
        try:
            return self._registry.serializer_for(exchange.hint, peer=AuthenticatedPeer.this_process()).name
        except ConfigError as error:
            return f"no serializer: {error}"


def _budget_lines(plan: Plan, memory_bytes: int) -> Iterator[str]:
    """Yield the buffers that each worker needs and has; workers with the same needs share a line."""
    limits, segment_size = Limits.of(plan.settings.network), plan.settings.memory.segment_size
    available = memory_bytes // segment_size
    needs = "needs for the largest of its stages" if plan.batch else "needs"
    yield f"network buffers of {format_size(segment_size)} that each worker {needs}, of {available} that it has:"
    alike: dict[tuple[int, str], list[int]] = {}
    for worker in range(plan.workers + plan.uses_driver):
        needed = [(one.required(limits), _task(one.name)) for one in plan.demands_of(worker)]
        if plan.batch:
            needed.append((limits.read_ahead_pool().required, "reading ahead"))
        parts = " + ".join(f"{buffers} ({what})" for buffers, what in needed)
        alike.setdefault((sum(buffers for buffers, _ in needed), parts), []).append(worker)
    for (required, parts), workers in alike.items():
        lacking = f": {required - available} too few" if required > available else ""
        yield f"    {_named(workers, plan.workers)}: {required} = {parts or 'nothing'}{lacking}"


def _task(name: str) -> str:
    return re.sub(r" \(\d+\)$", "", name)


def _named(workers: list[int], driver: int) -> str:
    if workers == [driver]:
        return "driver"
    numbers = [str(worker) for worker in workers if worker != driver] + ["driver"] * (driver in workers)
    if len(numbers) > 2 and workers == list(range(workers[0], workers[-1] + 1)) and driver not in workers:
        return f"workers {numbers[0]} to {numbers[-1]}"
    return f"{'worker' if len(numbers) == 1 else 'workers'} {', '.join(numbers)}"


def explain_mermaid(plan: Plan) -> str:
    """Return the plan as a Mermaid flowchart; in BATCH with a title, stages as boxes, and thick blocking exchanges.

    >>> from headgate.config import Settings
    >>> from headgate.graph import Edge, Ship, StreamGraph, make_plan
    >>> graph = StreamGraph()
    >>> words = graph.add("words", object, source=object(), hint=str)
    >>> count = graph.add("count", object, inputs=[Edge(words, Ship(ShipKind.HASH, key=len))])
    >>> plan = make_plan(graph.take(), job="1", name="job", parallelism=2, settings=Settings(), splits=False)
    >>> print(explain_mermaid(plan))
    flowchart LR
        v0(["words<br/><i>x 2</i>"])
        v1["count<br/><i>x 2</i>"]
        v0 -->|"hash, str"| v1
    """
    serializers = _Serializers(plan)
    lines = ["---", f"title: {_mode(plan)}", "---"] if plan.batch else []
    lines.append("flowchart LR")
    for vertex in plan.vertices:
        operators = "<br/>".join(_quoted(operator.name) for operator in vertex.operators)
        where = "driver" if vertex.in_driver else f"x {vertex.parallelism}"
        opening, closing = ('(["', '"])') if not vertex.inputs else ('["', '"]')
        lines.append(f"    v{vertex.id}{opening}{operators}<br/><i>{where}</i>{closing}")
    for exchange in plan.exchanges:
        label = _quoted(f"{_shipped(exchange)}, {serializers.of(exchange)}")
        arrow = "==>" if exchange.blocking else "-->"
        lines.append(f'    v{exchange.producer} {arrow}|"{label}"| v{exchange.consumer}')
    return "\n".join(lines + list(_subgraphs(plan)))


def _subgraphs(plan: Plan) -> Iterable[str]:
    """Yield boxes: stages in BATCH; otherwise slot groups, if there are several."""
    boxes: list[tuple[str, str, list[int]]] = []
    if plan.batch:
        boxes = [(f"s{stage.id}", f"stage {stage.id}", list(stage.vertices)) for stage in stages_of(plan)]
    elif len(plan.slot_groups) > 1:
        for number, (group, _) in enumerate(plan.slot_groups):
            members = [vertex.id for vertex in plan.vertices if vertex.slot_group == group and not vertex.in_driver]
            boxes.append((f"g{number}", group, members))
    for name, title, vertices in boxes:
        yield f'    subgraph {name} ["{_quoted(title)}"]'
        yield from (f"        v{vertex}" for vertex in vertices)
        yield "    end"


def _quoted(text: str) -> str:
    """Return text with Mermaid's special characters escaped."""
    for character, name in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, name)
    return text
