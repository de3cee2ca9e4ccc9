"""The figures of a job, their past, stack samples, and their diagnosis, as plain data.

The coordinator passes the workers' reports to a `Tracker`; the page, `top`, reports and files read a `JobView`.
"""

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
    OperatorProgress,
    Progress,
    SubtaskProgress,
    VertexProgress,
    WorkerProgress,
)
from headgate.observe.status import JobStatus
from headgate.observe.timeline import TaskLine, Timeline
from headgate.observe.tracker import Tracker
from headgate.observe.view import JobEvent, JobView, ObservedJob, SettingView
from headgate.observe.why.diagnosis import Cause, Diagnosis

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
    "ObservedJob",
    "OperatorProgress",
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
    "WorkerProgress",
    "edge_progress",
    "flames_of",
    "graph_view",
    "level_of",
    "pressure_of",
]
