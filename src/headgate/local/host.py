"""Runs a job's workers as threads of this process: the same workers, the same exchange, no JVM.

For tests, for a debugger, and for trying things out. Workers talk over loopback sockets as they do on Spark; every
subtask has its own copy of the user's function objects.
"""

from __future__ import annotations

import copy
import logging
import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.coordinator import Coordinator
from headgate.errors import ConfigError, HeadgateError, InvariantViolated
from headgate.ids import AttemptId
from headgate.wire.handshake import SECRET_BYTES
from headgate.worker.run import run_worker

if TYPE_CHECKING:
    from headgate.coordinator import Job
    from headgate.graph.plan import Plan, Vertex

__all__ = ["LocalHost"]

_log = logging.getLogger(__name__)

_WIND_UP_S = 10.0  # a task that is stuck in user code is not waited for any longer


class LocalHost:
    """Runs plans in this process.

    >>> import headgate as hg
    >>> env = hg.environment(host=LocalHost(), parallelism=2)
    >>> sorted(env.from_collection([1, 2, 3]).map(lambda n: n * n).execute_and_collect())
    [1, 4, 9]
    """

    name = "local"

    def run(self, plan: Plan) -> Job:
        """Start a job; returns at once."""
        secret, attempt = secrets.token_bytes(SECRET_BYTES), AttemptId(1)
        plans = [_own_copy(plan) for _ in range(plan.workers + plan.uses_driver)]
        coordinator = Coordinator(plan, secret, attempt)
        coordinator.start()
        threads = [
            threading.Thread(
                target=self._work,
                args=(own, index, attempt, secret, coordinator),
                name=f"headgate-worker-{index}",
                daemon=True,
            )
            for index, own in enumerate(plans)
        ]
        for thread in threads:
            thread.start()
        end = threading.Thread(target=self._end, args=(coordinator, threads), name="headgate-end", daemon=True)
        end.start()
        coordinator.job.wind_up = lambda: end.join(_WIND_UP_S)
        return coordinator.job

    @staticmethod
    def _work(plan: Plan, index: int, attempt: AttemptId, secret: bytes, coordinator: Coordinator) -> None:
        try:
            run_worker(plan, index, attempt, secret, coordinator.address)
        except HeadgateError as error:
            coordinator.fail(error)  # which it knows already, unless the worker did not come so far
        except Exception as error:  # noqa: BLE001 - a thread's end
            _log.exception("worker %d: a bug in headgate", index)
            coordinator.fail(InvariantViolated(f"worker {index}: {type(error).__name__}: {error}"))

    @staticmethod
    def _end(coordinator: Coordinator, threads: list[threading.Thread]) -> None:
        coordinator.job.wait()
        coordinator.close()
        for thread in threads:
            thread.join()


def _own_copy(plan: Plan) -> Plan:
    """The plan with this worker's own function objects; what happens in the driver is the driver's."""
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
                f"{one.name}: its function cannot be copied for each subtask ({error}): what cannot be copied, such as"
                " locks and connections, is made in open()"
            ) from error
    return replace(vertex, operators=tuple(operators))
