"""What a job looks like from outside: figures, their past, samples of stacks, and what they mean.

The coordinator feeds it with the workers' reports; the page, the terminal, reports and files read a `JobView`, which is
plain data. Nothing here talks to a worker.
"""

from headgate.observe.diagnosis import Cause, Diagnosis
from headgate.observe.edges import EdgeProgress, edge_progress
from headgate.observe.flame import Flame, Flames, flames_of
from headgate.observe.graph import EdgeView, GraphView, VertexView, graph_view
from headgate.observe.pressure import (
    Pressure,
    PressureLevel,
    Stack,
    SubtaskPressure,
    VertexPressure,
    level_of,
    pressure_of,
)
from headgate.observe.progress import (
    ChannelProgress,
    ConnectionProgress,
    HotKey,
    LatencyProgress,
    Progress,
    SubtaskProgress,
    VertexProgress,
    WorkerProgress,
)
from headgate.observe.status import JobStatus
from headgate.observe.timeline import TaskLine, Timeline
from headgate.observe.tracker import Tracker
from headgate.observe.view import JobEvent, JobView, SettingView, Watched

__all__ = [
    "Cause",
    "ChannelProgress",
    "ConnectionProgress",
    "Diagnosis",
    "EdgeProgress",
    "EdgeView",
    "Flame",
    "Flames",
    "GraphView",
    "HotKey",
    "JobEvent",
    "JobStatus",
    "JobView",
    "LatencyProgress",
    "Pressure",
    "PressureLevel",
    "Progress",
    "SettingView",
    "Stack",
    "SubtaskPressure",
    "SubtaskProgress",
    "TaskLine",
    "Timeline",
    "Tracker",
    "VertexPressure",
    "VertexProgress",
    "VertexView",
    "Watched",
    "WorkerProgress",
    "edge_progress",
    "flames_of",
    "graph_view",
    "level_of",
    "pressure_of",
]
