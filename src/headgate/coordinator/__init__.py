"""The driver's side of a job: it registers the workers, deploys and connects their tasks, and reports to the user.

| module | content |
| --- | --- |
| `coordinator`, `batch` | the coordinators of STREAMING and BATCH jobs |
| `membership` | the workers of a job, as the coordinator sees them |
| `schedule` | which region of a BATCH job runs next, without threads or messages |
| `job`, `terminal` | the user's handle of a job, and its progress in the terminal |
| `monitor`, `events`, `sampling` | what can be observed of a job; the figures are `headgate.observe`'s |
"""

from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.job import Job, JobStatus
from headgate.observe.progress import Progress, SubtaskProgress, VertexProgress, WorkerProgress

__all__ = ["Coordinator", "Job", "JobStatus", "Progress", "SubtaskProgress", "VertexProgress", "WorkerProgress"]
