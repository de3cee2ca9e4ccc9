"""How much memory a worker takes for its buffers: computed by each worker, and by the host for those beside it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.config import NetworkMemory, Settings
    from headgate.graph.plan import Plan

__all__ = ["expected_segments", "network_memory", "worker_memory_bytes"]

_log = logging.getLogger("headgate.worker")

_ENOUGH_BYTES: Final = 2**30


def network_memory(plan: Plan) -> NetworkMemory:
    """Return the network memory of one worker of a job on this machine, and the warning if a setting caps it.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> memory = network_memory(Plan("1", "nothing", (), (), workers=2, settings=Settings()))
    >>> 64 * 2**20 <= memory.bytes <= 2**30 // 10, memory.warning
    (True, None)
    """
    return plan.settings.network_memory_bytes(worker_memory_bytes(plan.settings, plan.workers + 1))


def expected_segments(plan: Plan) -> list[int]:
    """Return how many buffers each worker of a job has if all run on this machine; the driver's worker is the last.

    Called by the host, once per job: it logs the warning if `memory.network.max` caps what the fraction asks for.

    >>> from headgate.config import load_settings
    >>> from headgate.graph.plan import Plan
    >>> code = {"memory.network.min": "1 MiB", "memory.network.max": "1 MiB", "memory.network.fraction": 0.0}
    >>> plan = Plan("1", "nothing", (), (), workers=2, settings=load_settings(code=code, environ={}))
    >>> expected_segments(plan)
    [32, 32]
    """
    memory = network_memory(plan)
    if memory.warning is not None:
        _log.warning("%s", memory.warning)
    return [memory.bytes // plan.settings.memory.segment_size] * (plan.workers + plan.uses_driver)


def worker_memory_bytes(settings: Settings, workers: int) -> int:
    """Return the memory of one of so many workers, of which `memory.network.fraction` is for buffers.

    It is an equal share of the memory of this machine, or of its container. Unless `memory.network.fraction` or
    `memory.network.max` is set, it is at most 1 GiB, which gives a worker 102.4 MiB of buffers: more buffers than keep
    tasks apart make a job start more slowly, and let more records wait before its slowest task.
    """
    share = machine_memory_bytes() // workers
    is_set = any(settings.origin(f"memory.network.{one}") != "default" for one in ("fraction", "max"))
    return share if is_set else min(share, _ENOUGH_BYTES)


def machine_memory_bytes() -> int:
    """Return the memory of this machine, or of its container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit:
            return min(total, int(limit.read()))
    except (OSError, ValueError):  # not limited
        return total
