"""Jobs as metrics that Prometheus scrapes: made of their views at each scrape, nothing is kept between two.

Called by the route /metrics, in a thread. How many series there are does not depend on what users' data holds: subtasks
have series of their own only in jobs of up to 1,000, connections likewise, channels never, and no key is a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from headgate.observe.status import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from headgate.observe.progress import SubtaskProgress, VertexProgress
    from headgate.observe.view import JobView

__all__ = ["exposition", "families"]

_MAX_SUBTASKS: Final = 1000
_MAX_CONNECTIONS: Final = 1000
_MAX_COUNTERS: Final = 50  # of a vertex: users choose their names
_MAX_LABEL: Final = 200  # characters

_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# What tasks and vertices have in common: name, meaning, attribute.
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
)
_VERTEX: Final = (
    ("parallelism", "Subtasks", "parallelism"),
    ("busy_max_ratio", "Likewise of the busiest subtask", "max_busy"),
    ("back_pressured_max_ratio", "Likewise of the subtask that waits most", "max_back_pressured"),
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
    r"""What a scrape gets, and its media type.

    >>> exposition({})
    (b'', 'text/plain; version=0.0.4; charset=utf-8')
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families(views)))
    return generate_latest(registry), _MEDIA_TYPE


class _Once(Collector):
    """What is there at this scrape."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._found


def families(views: Mapping[str, JobView]) -> Iterator[Metric]:
    """All metrics of some jobs, those without a value left out.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> view = JobView(at_ms=1000, graph=GraphView(vertices=(), edges=()), progress=progress)
    >>> [one.name for one in families({"1": view})]
    ['headgate_job', 'headgate_job_status', 'headgate_job_uptime_seconds']
    """
    book = _Book()
    for job, view in views.items():
        progress = view.progress
        book.gauge("job", "A job", {"job": job, "name": progress.name, "version": view.headgate}, 1)
        for status in JobStatus:
            labels = {"job": job, "status": str(status)}
            book.gauge("job_status", "1 for the status that it has", labels, progress.status is status)
        book.gauge("job_uptime_seconds", "Time since all workers were there", {"job": job}, progress.uptime_s)
        each = sum(len(one.subtasks) for one in progress.vertices) <= _MAX_SUBTASKS
        for vertex in progress.vertices:
            _add_vertex(book, job, vertex, each=each)
        _add_edges(book, job, view)
        _add_workers(book, job, view)
    return book.found()


class _Book:
    """Metric families, by name, in the order in which they were first met."""

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


def _add_vertex(book: _Book, job: str, vertex: VertexProgress, *, each: bool) -> None:
    labels = {"job": job, "vertex": vertex.id, "operator": vertex.name}
    _add_figures(book, "vertex", labels, vertex)
    for name, text, attribute in _VERTEX:
        book.gauge(f"vertex_{name}", text, labels, getattr(vertex, attribute))
    if vertex.watermark_lag_ms is not None:
        book.gauge("vertex_watermark_lag_seconds", "How far it is behind", labels, vertex.watermark_lag_ms / 1000)
    for one in vertex.latencies:
        for quantile, value_ms in (("0.5", one.p50_ms), ("0.99", one.p99_ms), ("1", one.max_ms)):
            whence = {**labels, "source": one.source, "quantile": quantile}
            book.gauge("vertex_latency_seconds", "Time of markers from a source", whence, value_ms / 1000)
    shares: dict[int, float] = {}
    for key in vertex.hot_keys:
        shares[key.exchange] = max(key.share, shares.get(key.exchange, 0.0))
    for exchange, share in shares.items():
        text = "Share of the most frequent key of an exchange that it feeds"
        book.gauge("vertex_hot_key_ratio", text, {**labels, "exchange": exchange}, share)
    for name, count in sorted(vertex.counters.items())[:_MAX_COUNTERS]:
        book.counter("vertex_counter", "What operators count themselves", {**labels, "counter": name}, count)
    if each:
        for task in vertex.subtasks:
            own = {"job": job, "vertex": vertex.id, "subtask": task.subtask, "worker": task.worker}
            _add_figures(book, "subtask", own, task)
            for name, text, attribute in _SUBTASK:
                book.gauge(f"subtask_{name}", text, own, getattr(task, attribute))


def _add_figures(
    book: _Book, kind: str, labels: Mapping[str, object], figures: VertexProgress | SubtaskProgress
) -> None:
    for name, text, attribute in _TOTALS:
        book.counter(f"{kind}_{name}", text, labels, getattr(figures, attribute))
    for name, text, attribute in _SHARES:
        book.gauge(f"{kind}_{name}", text, labels, getattr(figures, attribute))


def _add_edges(book: _Book, job: str, view: JobView) -> None:
    """Sums over the channels that are reported, and how many these are."""
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
            text = "Channels that were looked at" if name == "channels" else f"Sum of {name} over these channels"
            book.gauge(f"exchange_{name}", text, labels, value)


def _add_workers(book: _Book, job: str, view: JobView) -> None:
    workers = view.progress.workers
    each = sum(len(one.connections) for one in workers) <= _MAX_CONNECTIONS
    for worker in workers:
        labels = {"job": job, "worker": worker.number}
        book.gauge("worker_memory_bytes", "Memory of its process", labels, worker.memory_bytes)
        book.gauge("worker_cpu_cores", "CPUs that its process uses", labels, worker.cpu)
        book.gauge("worker_segments", "Network buffers", labels, worker.segments_total)
        book.gauge("worker_segments_free", "Network buffers that nobody has", labels, worker.segments_free)
        for one in worker.connections if each else ():
            peer = {**labels, "peer": one.peer}
            book.counter("connection_bytes_out", "Bytes sent to another worker", peer, one.bytes_out)
            book.gauge("connection_blocked_ratio", "Share of the time that its socket took nothing", peer, one.blocked)
            if one.round_trip_ms is not None:
                book.gauge("connection_round_trip_seconds", "Round trip", peer, one.round_trip_ms / 1000)
