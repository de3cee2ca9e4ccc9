"""The driver's side of a job: gathers its workers, lets records flow, and tells its user how it goes.

`coordinator` talks to the workers through its `port`; `job` is what the user holds, and `terminal` shows how it goes.
The figures are `headgate.observe`'s.
"""

from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.job import Job, JobStatus
from headgate.observe.progress import Progress, SubtaskProgress, VertexProgress, WorkerProgress

__all__ = ["Coordinator", "Job", "JobStatus", "Progress", "SubtaskProgress", "VertexProgress", "WorkerProgress"]
