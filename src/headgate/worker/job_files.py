"""The files of a BATCH job, as hosts and workers hold and remove them; where they are, `storage` knows.

Called by a worker when it begins, and by the host in the driver, which holds them from the job's beginning to its end:
so nobody sweeps them up while there are no workers between two attempts.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headgate.errors import StorageError
from headgate.ids import AttemptId

if TYPE_CHECKING:
    from headgate.graph.plan import Plan
    from headgate.worker.storage import Storage

__all__ = ["job_storage", "remove_files"]

_PAUSE_S: Final = 0.1


def job_storage(plan: Plan, attempt: AttemptId, *, driver_here: bool = True) -> Storage | None:
    """Where a BATCH job's files are; nobody sweeps them up before it is closed. None: a STREAMING job has none.

    Workers have one each, and the host has one in the driver from the job's beginning to its end.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> job_storage(Plan("1", "nothing", (), (), workers=1, settings=Settings()), attempt=1) is None
    True

    Raises:
        StorageError: there is nothing that it could be made in.
    """
    if not plan.batch:
        return None
    from headgate.worker.storage import Storage  # noqa: PLC0415 - only who runs BATCH pays for importing it

    storage = Storage(plan.settings.batch, plan.job, attempt, driver_here=driver_here)
    storage.open()
    return storage


def remove_files(plan: Plan, storage: Storage, timeout_s: float) -> None:
    """Remove all files of a job that is over, from this machine's disks; `storage` is that of the host.

    Workers that were not waited for, or are being killed, keep theirs a moment longer.

    >>> import tempfile
    >>> from headgate.config import load_settings
    >>> from headgate.graph.plan import Plan
    >>> with tempfile.TemporaryDirectory() as place:
    ...     settings = load_settings(code={"batch.directories": place})
    ...     plan = Plan("1", "nothing", (), (), workers=1, settings=settings, batch=True)
    ...     remove_files(plan, job_storage(plan, attempt=1), timeout_s=1.0)
    """
    deadline = time.monotonic() + timeout_s
    with suppress(StorageError):  # the rest goes with the next sweep
        while not storage.close(remove=True) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            again = job_storage(plan, AttemptId(1))
            assert again is not None, "it has one"
            storage = again
    storage.close(remove=True)
