"""Whatever a view says, `why` has an answer."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.diagnosed_jobs import job, samples

from headgate.control.messages import TaskState
from headgate.observe import (
    ChannelProgress,
    ConnectionProgress,
    Diagnosis,
    EdgeView,
    GraphView,
    HotKey,
    JobStatus,
    JobView,
    Pressure,
    SettingView,
    SubtaskProgress,
    TaskLine,
    Timeline,
    VertexProgress,
    VertexView,
    WorkerProgress,
)
from headgate.observe.why import diagnose, render

names = st.sampled_from(["a", "b -> c", "map_async(f)", "", "\x1b"])
shares = st.floats(-0.5, 1.5) | st.sampled_from([0.0, 1.0, float("nan"), float("inf")])
few = st.integers(-1, 4)
counts = st.integers(-5, 10**12)
maybe = st.none() | shares

tasks = st.builds(
    SubtaskProgress,
    subtask=few,
    worker=few,
    state=st.sampled_from([TaskState.RUNNING, TaskState.RUNNING, TaskState.RUNNING, TaskState.FINISHED]),
    records_in=counts,
    records_in_per_s=shares,
    bytes_in_per_s=shares,
    busy=shares,
    idle=shares,
    back_pressured=shares,
    cpu=maybe,
    run_queue=maybe,
    channels=st.lists(
        st.builds(ChannelProgress, exchange=few, producer=few, local=st.booleans(), backlog=counts, credit=counts),
        max_size=3,
    ).map(tuple),
)
keys = st.lists(st.builds(HotKey, exchange=few, key=names, share=shares), max_size=2).map(tuple)
vertices = st.builds(
    VertexProgress,
    id=few,
    name=names,
    parallelism=few,
    state=st.sampled_from(TaskState),
    hot_keys=keys,
    subtasks=st.lists(tasks, max_size=3, unique_by=lambda one: one.subtask).map(tuple),
)
shown = st.builds(
    VertexView,
    id=few,
    name=names,
    parallelism=few,
    operators=st.lists(names, max_size=2).map(tuple),
    source=st.booleans(),
    sink=st.booleans(),
    ends=st.lists(names, max_size=1).map(tuple),
    in_driver=st.booleans(),
)
graphs = st.builds(
    GraphView,
    vertices=st.lists(shown, max_size=4, unique_by=lambda one: one.id).map(tuple),
    edges=st.lists(
        st.builds(EdgeView, id=few, producer=few, consumer=few, ship=st.sampled_from(["hash", "custom", "?"])),
        max_size=5,
    ).map(tuple),
)
connections = st.lists(
    st.builds(
        ConnectionProgress,
        peer=few,
        bytes_out_per_s=shares,
        waiting_bytes=counts,
        blocked=shares,
        round_trip_ms=maybe,
        unsent_bytes=st.none() | counts,
    ),
    max_size=2,
).map(tuple)
workers = st.builds(
    WorkerProgress,
    number=few,
    pid=st.integers(0, 2),
    cpu=maybe,
    segments_total=st.integers(0, 2),
    segments_free=st.integers(0, 2),
    connections=connections,
)
settings_shown = st.builds(
    SettingView,
    key=st.sampled_from(["memory.segment_size", "network.buffers_per_channel", "network.send_buffer"]),
    value=st.sampled_from(["0", "1", "4 KiB", "many", "-1"]),
    origin=st.just("code"),
)


@st.composite
def views(draw):
    base = job(status=draw(st.sampled_from([JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.FAILED])))
    progress = replace(
        base.progress,
        uptime_s=draw(st.sampled_from([0.0, 5.0, 5.0, float("nan")])),
        workers=tuple(draw(st.lists(workers, max_size=3))),
        vertices=tuple(draw(st.lists(vertices, max_size=4))),
    )
    return replace(
        base, graph=draw(graphs), progress=progress, settings=tuple(draw(st.lists(settings_shown, max_size=3)))
    )


columns = st.lists(st.integers(-1, 1100), max_size=4).map(tuple)
lines = st.builds(
    TaskLine, vertex=few, subtask=few, busy=columns, idle=columns, back_pressured=columns, records_in=columns
)
timelines_of_any = st.builds(
    Timeline,
    start_ms=st.integers(-1000, 20_000),
    step_ms=st.integers(-1, 200),
    steps=few,
    tasks=st.lists(lines, max_size=4).map(tuple),
)
pressures = st.none() | st.builds(
    samples,
    st.dictionaries(
        st.tuples(few, few),
        st.lists(st.tuples(names, st.lists(names, max_size=2), few), max_size=3),
        max_size=4,
    ),
)


@settings(max_examples=200)
@given(views(), st.lists(timelines_of_any, max_size=3), pressures)
def test_every_view_has_a_diagnosis(view: JobView, past: list[Timeline], pressure: Pressure | None):
    found = diagnose(view, past, pressure)
    assert isinstance(found, Diagnosis)
    assert found.summary
    assert found.cause.value in render(found)
    assert found.vertex is None or found.vertex in {one.id for one in view.progress.vertices}
