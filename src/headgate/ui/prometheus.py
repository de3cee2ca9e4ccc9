"""Metrics of jobs for Prometheus, made from their views at each scrape; no state is kept between scrapes.

Called by the route /metrics, in a thread. The number of series does not depend on the users' data: subtasks have series
of their own only in jobs of up to 1,000, connections likewise, channels never, and no key is a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from headgate.observe.status import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from headgate.observe.progress import SubtaskProgress, VertexProgress
    from headgate.observe.view import JobView

__all__ = ["exposition", "families"]

_MAX_SUBTASKS: Final = 1000
_MAX_CONNECTIONS: Final = 1000
_MAX_COUNTERS: Final = 50  # of a vertex: users choose their names
_MAX_LABEL: Final = 200  # characters

_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Metrics of tasks and of vertices: name, meaning, attribute.
_TOTALS: Final = (
    ("records_in", "Records read", "records_in"),
    ("records_out", "Records written", "records_out"),
    ("bytes_in", "Bytes read", "bytes_in"),
    ("bytes_out", "Bytes written", "bytes_out"),
)
_SHARES: Final = (
    ("busy_ratio", "Share of the time spent working", "busy"),
    ("idle_ratio", "Share of the time spent waiting for input", "idle"),
    ("back_pressured_ratio", "Share of the time spent waiting for an output buffer", "back_pressured"),
    ("waiting_ratio", "Share of the time spent waiting for coroutines of map_async", "waiting"),
)
_VERTEX: Final = (
    ("parallelism", "Subtasks", "parallelism"),
    ("busy_max_ratio", "Busy share of the busiest subtask", "max_busy"),
    (
        "back_pressured_max_ratio",
        "Back-pressured share of the subtask that is back-pressured most",
        "max_back_pressured",
    ),
)
_SUBTASK: Final = (
    ("in_pool_usage_ratio", "Share of input buffers in use", "in_pool_usage"),
    ("out_pool_usage_ratio", "Share of output buffers in use", "out_pool_usage"),
    ("in_queued_buffers", "Buffers that wait to be read", "in_queued"),
    ("backlog_buffers", "Buffers that wait at the producers", "backlog"),
    ("cpu_ratio", "Share of the time that its thread was on a CPU", "cpu"),
)
_CHANNELS: Final = ("channels", "backlog", "queued", "exclusive", "floating", "credit")


def exposition(views: Mapping[str, JobView]) -> tuple[bytes, str]:
    r"""Return the answer to a scrape, and its media type.

    >>> exposition({})
    (b'', 'text/plain; version=0.0.4; charset=utf-8')
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FixedCollector(families(views)))
    return generate_latest(registry), _MEDIA_TYPE


class _FixedCollector(Collector):
    """The metrics of one scrape."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._found


def families(views: Mapping[str, JobView]) -> Iterator[Metric]:
    """Return all metrics of these jobs; those without a value are left out.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> view = JobView(at_ms=1000, graph=GraphView(vertices=(), edges=()), progress=progress)
    >>> [one.name for one in families({"1": view})]
    ['headgate_job', 'headgate_job_status', 'headgate_job_uptime_seconds']
    """
    metrics = _Families()
    for job, view in views.items():
        progress = view.progress
        metrics.gauge("job", "A job", {"job": job, "name": progress.name, "version": view.headgate}, 1)
        for status in JobStatus:
            labels = {"job": job, "status": str(status)}
            metrics.gauge("job_status", "1 for its status, 0 for the others", labels, progress.status is status)
        metrics.gauge("job_uptime_seconds", "Time since all workers have registered", {"job": job}, progress.uptime_s)
        each = sum(len(one.subtasks) for one in progress.vertices) <= _MAX_SUBTASKS
        operators = {one.id: one.operators for one in view.graph.vertices}
        for vertex in progress.vertices:
            _add_vertex(metrics, job, vertex, operators.get(vertex.id, ()), each=each)
        _add_edges(metrics, job, view)
        _add_workers(metrics, job, view)
    return metrics.found()


class _Families:
    """Metric families by name, in the order of their first use."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}

    def gauge(self, name: str, text: str, labels: Mapping[str, object], value: float | None) -> None:
        if value is not None:
            self._add(GaugeMetricFamily, name, text, labels, value)

    def counter(self, name: str, text: str, labels: Mapping[str, object], value: float) -> None:
        self._add(CounterMetricFamily, name, text, labels, value)

    def _add(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        labels: Mapping[str, object],
        value: float,
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(f"headgate_{name}", f"{text}.", labels=list(labels))
        family.add_metric([_label(one) for one in labels.values()], float(value))

    def found(self) -> Iterator[Metric]:
        return iter(self._families.values())


def _label(value: object) -> str:
    return str(value)[:_MAX_LABEL].encode("utf-8", "backslashreplace").decode()


def _add_vertex(metrics: _Families, job: str, vertex: VertexProgress, names: Sequence[str], *, each: bool) -> None:
    labels = {"job": job, "vertex": vertex.id, "operator": vertex.name}
    _add_figures(metrics, "vertex", labels, vertex)
    for name, text, attribute in _VERTEX:
        metrics.gauge(f"vertex_{name}", text, labels, getattr(vertex, attribute))
    if vertex.watermark_lag_ms is not None:
        metrics.gauge("vertex_watermark_lag_seconds", "Lag of its watermark", labels, vertex.watermark_lag_ms / 1000)
    for one in vertex.latencies:
        for quantile, value_ms in (("0.5", one.p50_ms), ("0.99", one.p99_ms), ("1", one.max_ms)):
            source = {**labels, "source": one.source, "quantile": quantile}
            metrics.gauge("vertex_latency_seconds", "Time of markers from a source", source, value_ms / 1000)
    shares: dict[int, float] = {}
    for key in vertex.hot_keys:
        shares[key.exchange] = max(key.share, shares.get(key.exchange, 0.0))
    for exchange, share in shares.items():
        text = "Share of the most frequent key of an exchange that it feeds"
        metrics.gauge("vertex_hot_key_ratio", text, {**labels, "exchange": exchange}, share)
    _add_operators(metrics, job, vertex, names)
    for name, count in sorted(vertex.counters.items())[:_MAX_COUNTERS]:
        metrics.counter("vertex_counter", "Counters of operators", {**labels, "counter": name}, count)
    if each:
        for task in vertex.subtasks:
            own = {"job": job, "vertex": vertex.id, "subtask": task.subtask, "worker": task.worker}
            _add_figures(metrics, "subtask", own, task)
            for name, text, attribute in _SUBTASK:
                metrics.gauge(f"subtask_{name}", text, own, getattr(task, attribute))


def _add_operators(metrics: _Families, job: str, vertex: VertexProgress, names: Sequence[str]) -> None:
    """Add sums over subtasks, by operator of the chain; `position` distinguishes operators of the same name."""
    for position, (one, name) in enumerate(zip(vertex.operators, names, strict=False)):
        labels = {"job": job, "vertex": vertex.id, "position": position, "operator": name}
        metrics.counter("operator_records_in", "Records that an operator has received", labels, one.records_in)
        metrics.counter("operator_records_out", "Records of its main output", labels, one.records_out)
        for tag, count in sorted(one.side_outputs.items())[:_MAX_COUNTERS]:
            side = {**labels, "output": tag}
            metrics.counter("operator_side_output_records", "Records of a side output", side, count)


def _add_figures(
    metrics: _Families, kind: str, labels: Mapping[str, object], figures: VertexProgress | SubtaskProgress
) -> None:
    for name, text, attribute in _TOTALS:
        metrics.counter(f"{kind}_{name}", text, labels, getattr(figures, attribute))
    for name, text, attribute in _SHARES:
        metrics.gauge(f"{kind}_{name}", text, labels, getattr(figures, attribute))


def _add_edges(metrics: _Families, job: str, view: JobView) -> None:
    """Add sums over the reported channels, and their number."""
    sums = {one.id: [0] * len(_CHANNELS) for one in view.graph.edges}
    for vertex in view.progress.vertices:
        for task in vertex.subtasks:
            for one in task.channels:  # there may be a hundred thousand
                found = sums.get(one.exchange)
                if found is not None:
                    found[0] += 1
                    found[1] += one.backlog
                    found[2] += one.queued
                    found[3] += one.exclusive
                    found[4] += one.floating
                    found[5] += one.credit
    for edge in view.graph.edges:
        labels = {"job": job, "exchange": edge.id, "producer": edge.producer, "consumer": edge.consumer}
        for name, value in zip(_CHANNELS, sums[edge.id], strict=True):
            text = "Channels that were reported" if name == "channels" else f"Sum of {name} over these channels"
            metrics.gauge(f"exchange_{name}", text, labels, value)


def _add_workers(metrics: _Families, job: str, view: JobView) -> None:
    workers = view.progress.workers
    each = sum(len(one.connections) for one in workers) <= _MAX_CONNECTIONS
    for worker in workers:
        labels = {"job": job, "worker": worker.number}
        metrics.gauge("worker_memory_bytes", "Memory of its process", labels, worker.memory_bytes)
        metrics.gauge("worker_cpu_cores", "CPUs that its process uses", labels, worker.cpu)
        metrics.gauge("worker_segments", "Network buffers", labels, worker.segments_total)
        metrics.gauge("worker_segments_free", "Network buffers that no pool has", labels, worker.segments_free)
        for one in worker.connections if each else ():
            peer = {**labels, "peer": one.peer}
            metrics.counter("connection_bytes_out", "Bytes sent to another worker", peer, one.bytes_out)
            metrics.gauge(
                "connection_blocked_ratio", "Share of the time in which its socket accepted no bytes", peer, one.blocked
            )
            if one.round_trip_ms is not None:
                metrics.gauge("connection_round_trip_seconds", "Round trip", peer, one.round_trip_ms / 1000)
