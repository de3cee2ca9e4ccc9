"""`headgate ui`: the page of jobs of other processes, or of one that is over."""

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Self

import typer

from headgate.attach import AttachedJob, KeptJob, kept, running
from headgate.cli.job_argument import JobOrFile, chosen_job
from headgate.errors import HeadgateError
from headgate.names import printable
from headgate.observe.view import ObservedJob

__all__ = ["PageJobs", "ui"]

_RENEW_S = 2.0


def ui(
    job: JobOrFile = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port of the page; 0: a free one.")] = 0,
    allow_control: Annotated[bool, typer.Option("--allow-control", help="Let the page cancel jobs.")] = False,
) -> None:
    """Serve the page of a job that runs in another process, or of one that is over, until Ctrl-C.

    Without a name: of all running jobs, also those that start later; if none runs, of the newest finished one. The page
    listens on this machine only, at the printed address, whose token admits a browser.

    Example: headgate ui word_count --port 8080
    """
    from headgate.ui import UiServer  # noqa: PLC0415 - rarely needed

    first = chosen_job(job)
    page_jobs = PageJobs(first, others=job is None and isinstance(first, AttachedJob))
    with page_jobs, UiServer(page_jobs.jobs, port=port, allow_control=allow_control) as server:
        print(server.url, flush=True)
        print(f"headgate: the page of {printable(first.name)}; Ctrl-C ends it", file=sys.stderr, flush=True)
        while True:
            time.sleep(3600)


class PageJobs:
    """The jobs of the page: one, or all that run or have run since it was opened.

    >>> from headgate.attach import KeptJob
    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="job-1", name="etl", status=JobStatus.FINISHED, uptime_s=2.5, workers=(), vertices=())
    >>> job = KeptJob(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress), "etl.json")
    >>> with PageJobs(job) as shown:
    ...     list(shown.jobs())
    ['job-1']
    """

    def __init__(self, first: AttachedJob | KeptJob, *, others: bool = False) -> None:
        self._jobs: dict[str, ObservedJob] = {first.id: first}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew_all, name="headgate-jobs", daemon=True) if others else None

    def jobs(self) -> Mapping[str, ObservedJob]:
        """Return the jobs by id. Does not block."""
        return self._jobs

    def renew(self) -> None:
        """Add jobs that run now, and remove those that have ended without a file."""
        live = {one.id: one for one in running()}
        files = {one.id for one in kept()}
        old = {name: job for name, job in self._jobs.items() if name in live or name in files}
        self._jobs = {**{name: job for name, job in live.items() if name not in old}, **old}

    def _renew_all(self) -> None:
        while not self._over.wait(_RENEW_S):
            with suppress(
                HeadgateError, OSError
            ):  # the directory is changed meanwhile, for example: the next round may succeed
                self.renew()

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
