"""The driver's side of a job: gathers its workers, lets records flow, and tells its user how it goes.

`coordinator` talks to the workers through its `port`; `job` is what the user holds; `progress` makes figures of the
workers' reports, and `terminal` shows them.
"""

from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.job import Job, JobStatus
from headgate.coordinator.progress import Progress, SubtaskProgress, VertexProgress, WorkerProgress

__all__ = ["Coordinator", "Job", "JobStatus", "Progress", "SubtaskProgress", "VertexProgress", "WorkerProgress"]
