"""The figures of edges."""

from headgate.control.messages import TaskState
from headgate.observe import (
    ChannelProgress,
    EdgeProgress,
    EdgeView,
    GraphView,
    JobStatus,
    Progress,
    SubtaskProgress,
    VertexProgress,
    VertexView,
    edge_progress,
)


def graph(*edges):
    ends = {end for edge in edges for end in edge}
    return GraphView(
        vertices=tuple(VertexView(id=one, name=str(one), parallelism=1, operators=()) for one in sorted(ends)),
        edges=tuple(EdgeView(id=i, producer=a, consumer=b, ship="hash") for i, (a, b) in enumerate(edges)),
    )


def vertex(number, *, channels=(), backlog=0, queued=0):
    task = SubtaskProgress(subtask=0, worker=0, channels=channels, backlog=backlog, in_queued=queued)
    return VertexProgress(
        id=number,
        name=str(number),
        parallelism=1,
        state=TaskState.RUNNING,
        records_in_per_s=number * 10.0,
        records_out_per_s=number * 100.0,
        bytes_in_per_s=number * 1000.0,
        bytes_out_per_s=number * 10000.0,
        subtasks=(task,),
    )


def progress(*vertices):
    return Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=1.0, workers=(), vertices=vertices)


def test_a_consumer_with_one_input_has_all_figures():
    found = edge_progress(progress(vertex(1), vertex(2, backlog=5, queued=3)), graph((1, 2)))
    assert found == (EdgeProgress(id=0, records_per_s=20.0, bytes_per_s=2000.0, backlog=5, queued=3),)


def test_the_edges_of_a_join_have_rates_of_producers_and_queues_of_channels():
    channels = (
        ChannelProgress(exchange=0, producer=0, backlog=4, queued=1),
        ChannelProgress(exchange=1, producer=0, backlog=7, queued=2),
    )
    found = edge_progress(
        progress(vertex(1), vertex(2), vertex(3, channels=channels, backlog=11)), graph((1, 3), (2, 3))
    )
    assert [one.records_per_s for one in found] == [100.0, 200.0]
    assert [one.bytes_per_s for one in found] == [10000.0, 20000.0]
    assert [(one.backlog, one.queued) for one in found] == [(4, 1), (7, 2)]


def test_unknown_rates_are_none():
    found = edge_progress(progress(vertex(1), vertex(2), vertex(3)), graph((1, 2), (1, 3), (2, 3)))
    assert [one.records_per_s for one in found] == [20.0, None, 200.0]


def test_a_vertex_without_figures_is_no_error():
    assert edge_progress(progress(), graph((1, 2))) == (EdgeProgress(id=0),)
