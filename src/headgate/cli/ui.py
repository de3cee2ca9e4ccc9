"""`headgate ui`: the page of jobs that run in other processes, or of one that is over."""

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Self

import typer

from headgate.attach import AttachedJob, KeptJob, kept, running
from headgate.cli.looking import JobOrFile, chosen_job, plain
from headgate.errors import HeadgateError
from headgate.observe.view import Watched

__all__ = ["Looked", "ui"]

_LOOK_S = 2.0


def ui(
    job: JobOrFile = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port of the page; 0 takes a free one.")] = 0,
    allow_control: Annotated[
        bool, typer.Option("--allow-control", help="Let whoever has the address cancel jobs from the page.")
    ] = False,
) -> None:
    """Serve the page of a job that runs in another process, or of one that is over, until Ctrl-C.

    Without a name: of all that run, also those that begin later; of the newest that was kept, if none does. The page is
    on this machine only, at the address that is printed; the token in it is what lets a browser in.

    Example: headgate ui word_count --port 8080
    """
    from headgate.ui import UiServer  # noqa: PLC0415 - only who asks pays

    first = chosen_job(job)
    looked = Looked(first, others=job is None and isinstance(first, AttachedJob))
    with looked, UiServer(looked.jobs, port=port, allow_control=allow_control) as server:
        print(server.url, flush=True)
        print(f"headgate: the page of {plain(first.name)}; Ctrl-C ends it", file=sys.stderr, flush=True)
        while True:
            time.sleep(3600)


class Looked:
    """The jobs that the page shows: one, or all that run and those that did when it was opened.

    >>> from headgate.attach import KeptJob
    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="job-1", name="etl", status=JobStatus.FINISHED, uptime_s=2.5, workers=(), vertices=())
    >>> job = KeptJob(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress), "etl.json")
    >>> with Looked(job) as looked:
    ...     list(looked.jobs())
    ['job-1']
    """

    def __init__(self, first: AttachedJob | KeptJob, *, others: bool = False) -> None:
        self._jobs: dict[str, Watched] = {first.id: first}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="headgate-look", daemon=True) if others else None

    def jobs(self) -> Mapping[str, Watched]:
        """By id. Does not wait."""
        return self._jobs

    def look(self) -> None:
        """Look which jobs run now; one that has ended stays if something was kept of it."""
        live = {one.id: one for one in running()}
        files = {one.id for one in kept()}
        old = {name: job for name, job in self._jobs.items() if name in live or name in files}
        self._jobs = {**{name: job for name, job in live.items() if name not in old}, **old}

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            with suppress(HeadgateError, OSError):  # the directory is changed meanwhile, for example
                self.look()

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
