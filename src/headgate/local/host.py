"""Runs a job's workers as threads of this process: the same workers and the same exchange, without a JVM.

For tests, for debugging, and for first steps. Workers communicate over loopback sockets as they do on Spark; every
subtask has its own copy of the user's function objects.

One more thread per job waits for its end. In BATCH it starts the workers of another attempt if one is lost, which
happens to a thread only if its control link breaks; at last it removes the job's files.
"""

from __future__ import annotations

import copy
import logging
import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.coordinator.batch import coordinator_for
from headgate.errors import ConfigError, HeadgateError, InvariantViolated
from headgate.graph.fitting import check_memory
from headgate.ids import AttemptId
from headgate.wire.handshake import SECRET_BYTES
from headgate.worker.memory import expected_segments
from headgate.worker.run import run_worker
from headgate.worker.storage import open_job_storage

if TYPE_CHECKING:
    from headgate.coordinator import Job
    from headgate.graph.plan import Plan, Vertex
    from headgate.worker.storage import Storage

__all__ = ["LocalHost"]

_log = logging.getLogger(__name__)

_FIRST = AttemptId(1)
_WIND_UP_S = 10.0  # time limit for the job's threads: a task may be blocked in user code


class LocalHost:
    """Runs plans in this process.

    >>> import headgate as hg
    >>> env = hg.environment(host=LocalHost(), parallelism=2)
    >>> sorted(env.from_collection([1, 2, 3]).map(lambda n: n * n).execute_and_collect())
    [1, 4, 9]
    """

    name = "local"

    def check(self, plan: Plan) -> None:
        """Raise if the workers have too little memory for a plan; nothing is started.

        Raises:
            InsufficientBuffers: The text has the sum and the smallest sufficient changes.
        """
        check_memory(plan, expected_segments(plan))

    def run(self, plan: Plan) -> Job:
        """Start a job and return at once.

        Raises:
            ConfigError: a function cannot be copied for each subtask.
            StorageError: the directory of a BATCH job cannot be made.
        """
        return _Run(plan).start()


class _Run:
    """One job in this process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._storage: Storage | None = None

    def start(self) -> Job:
        plans = self._copies()
        self._storage = open_job_storage(self._plan, _FIRST)  # keeps the files until the job's end
        self._coordinator = coordinator_for(self._plan, self._secret, _FIRST, renews=True)
        try:
            self._coordinator.start()
        except BaseException:
            self._remove_files()
            raise
        threads = self._workers(_FIRST, plans)
        end = threading.Thread(target=self._run_attempts, args=(threads,), name="headgate-end", daemon=True)
        end.start()
        job = self._coordinator.job
        job.wind_up = lambda: end.join(_WIND_UP_S)
        return job

    def _copies(self) -> list[Plan]:
        return [_own_copy(self._plan) for _ in range(self._plan.workers + self._plan.uses_driver)]

    def _workers(self, attempt: AttemptId, plans: list[Plan]) -> list[threading.Thread]:
        threads = [
            threading.Thread(
                target=self._work, args=(own, index, attempt), name=f"headgate-worker-{index}", daemon=True
            )
            for index, own in enumerate(plans)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _work(self, plan: Plan, index: int, attempt: AttemptId) -> None:
        coordinator = self._coordinator
        try:
            run_worker(plan, index, attempt, self._secret, coordinator.address, fresh=lambda: _own_copy(self._plan))
        except HeadgateError as error:
            # Reported by the worker as well, unless it failed before its link was open.
            coordinator.fail(error, attempt=attempt, workers=[index])
        except Exception as error:  # noqa: BLE001 - the end of a thread
            _log.exception("worker %d: a bug in headgate", index)
            coordinator.fail(InvariantViolated(f"worker {index}: {type(error).__name__}: {error}"))

    def _run_attempts(self, threads: list[threading.Thread]) -> None:
        coordinator, attempt = self._coordinator, _FIRST
        while (following := coordinator.next_attempt(attempt)) is not None:
            attempt = following
            threads += self._workers(attempt, self._copies())
        coordinator.close()
        for thread in threads:
            thread.join()
        self._remove_files()

    def _remove_files(self) -> None:
        if self._storage is not None:
            self._storage.close(remove=True)


def _own_copy(plan: Plan) -> Plan:
    """Return the plan with copies of all function objects, except those of vertices in the driver."""
    return replace(
        plan,
        vertices=tuple(vertex if vertex.in_driver else _with_own_functions(vertex) for vertex in plan.vertices),
    )


def _with_own_functions(vertex: Vertex) -> Vertex:
    operators = []
    for one in vertex.operators:
        try:
            operators.append(replace(one, make=copy.deepcopy(one.make), source=copy.deepcopy(one.source)))
        except Exception as error:
            raise ConfigError(
                f"{one.name}: its function cannot be copied for each subtask ({error}): make what cannot be copied,"
                " such as locks and connections, in open()"
            ) from error
    return replace(vertex, operators=tuple(operators))
