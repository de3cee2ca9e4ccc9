"""Views of jobs that never ran, for `why`: a test names what is special, the rest is as in a healthy job."""

from headgate.control.messages import TaskState
from headgate.observe import (
    ChannelProgress,
    ConnectionProgress,
    EdgeView,
    GraphView,
    HotKey,
    JobStatus,
    JobView,
    Pressure,
    Progress,
    SettingView,
    Stack,
    SubtaskPressure,
    SubtaskProgress,
    TaskLine,
    Timeline,
    VertexPressure,
    VertexProgress,
    VertexView,
    WorkerProgress,
    level_of,
)

STEP_MS = 100


def task(busy=0.0, held=0.0, *, idle=None, cpu=0.0, run_queue=0.0, worker=None, **more):
    """Return a task: its shares, and its share of time on a CPU. `worker` is its subtask's number by default."""
    idle = 1 - busy - held if idle is None else idle
    return dict(busy=busy, back_pressured=held, idle=idle, cpu=cpu, run_queue=run_queue, worker=worker, **more)


def vertex(name, *tasks, hot_keys=(), source=False, sink=False, ends=(), state=TaskState.RUNNING, **more):
    """Return a vertex: its operators, separated by ' -> ', and its tasks."""
    return {
        "name": name,
        "tasks": tasks,
        "hot_keys": tuple(HotKey(exchange=exchange, key=key, share=share) for exchange, key, share in hot_keys),
        "view": dict(source=source, sink=sink, ends=ends, **more),
        "state": state,
    }


def job(*vertices, edges=None, status=JobStatus.RUNNING, uptime_s=10.0, workers=None, settings=()):
    """Return a view of a job; edges are (producer, consumer, ship), by default a chain of hash exchanges."""
    if edges is None:
        edges = [(number, number + 1, "hash") for number in range(len(vertices) - 1)]
    figures, views, numbers = [], [], set()
    for number, one in enumerate(vertices):
        subtasks = []
        for subtask, told in enumerate(one["tasks"]):
            worker = subtask if told["worker"] is None else told["worker"]
            numbers.add(worker)
            state = told.get("state", one["state"])
            subtasks.append(SubtaskProgress(subtask=subtask, **{**told, "worker": worker, "state": state}))
        parallelism = len(subtasks)
        figures.append(
            VertexProgress(
                id=number,
                name=one["name"],
                parallelism=parallelism,
                state=one["state"],
                hot_keys=one["hot_keys"],
                subtasks=tuple(subtasks),
            )
        )
        operators = tuple(one["name"].split(" -> "))
        views.append(
            VertexView(id=number, name=one["name"], parallelism=parallelism, operators=operators, **one["view"])
        )
    if workers is None:
        workers = [{"number": number, "cpu": used_in(figures, number)} for number in sorted(numbers)]
    made = tuple(
        WorkerProgress(**{"host": "h", "pid": 100 + one["number"], "segments_total": 100, "segments_free": 50, **one})
        for one in workers
    )
    graph = GraphView(
        vertices=tuple(views),
        edges=tuple(
            EdgeView(id=number, producer=producer, consumer=consumer, ship=ship)
            for number, (producer, consumer, ship) in enumerate(edges)
        ),
    )
    progress = Progress(job="1", name="etl", status=status, uptime_s=uptime_s, workers=made, vertices=tuple(figures))
    shown = tuple(SettingView(key=key, value=value, origin="code") for key, value in settings)
    return JobView(at_ms=1_000_000, graph=graph, progress=progress, settings=shown)


def used_in(figures, worker):
    """Return the CPUs of a worker's process: the sum of its tasks."""
    return sum(one.cpu or 0.0 for vertex in figures for one in vertex.subtasks if one.worker == worker)


def connection(peer, **more):
    return ConnectionProgress(peer=peer, **more)


def channel(producer=0, exchange=0, **more):
    return ChannelProgress(exchange=exchange, producer=producer, **more)


def samples(stacks):
    """Return a round of sampling: by (vertex, subtask), a list of (operator, frames, count)."""
    found = {}
    for (number, subtask), seen in stacks.items():
        made = tuple(Stack(operator=operator, frames=tuple(frames), count=count) for operator, frames, count in seen)
        one = SubtaskPressure(
            subtask=subtask,
            taken=sum(stack.count for stack in made),
            ratio=0.0,
            idle=0.0,
            level=level_of(0.0),
            stacks=made,
        )
        found.setdefault(number, []).append(one)
    return Pressure(
        at_ms=1_000_000,
        samples=100,
        delay_ms=50,
        vertices=tuple(
            VertexPressure(vertex=number, ratio=0.0, level=level_of(0.0), subtasks=tuple(subtasks))
            for number, subtasks in found.items()
        ),
    )


def past(number, *subtasks, start_ms=0):
    """Return the history of a vertex: per subtask a list of (busy, held) or (busy, held, waiting); the rest is idle.

    None: nothing is known.
    """
    lines = []
    for subtask, steps in enumerate(subtasks):
        columns = [(-1, -1, -1, -1) if one is None else thousandths(*one) for one in steps]
        busy, idle, held, waiting = zip(*columns, strict=True)
        lines.append(
            TaskLine(
                vertex=number,
                subtask=subtask,
                busy=busy,
                idle=idle,
                back_pressured=held,
                waiting=waiting,
                records_in=(1,) * len(busy),
            )
        )
    return Timeline(start_ms=start_ms, step_ms=STEP_MS, steps=len(subtasks[0]), tasks=tuple(lines))


def thousandths(busy, held, waiting=0.0):
    idle = 1 - busy - held - waiting
    return round(1000 * busy), round(1000 * idle), round(1000 * held), round(1000 * waiting)
