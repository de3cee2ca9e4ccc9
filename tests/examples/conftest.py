"""Environments that every example runs in: on the local host, with 1, 2 and 4 workers.

In STREAMING with usual and with tiny buffers; in BATCH with so little memory for keys that most examples spill.
"""

import pytest

import headgate as hg

# The buffers that the widest of the examples needs in a worker, for each parallelism: not one to spare.
FEWEST_BUFFERS = {1: 8, 2: 17, 4: 35}
SEGMENT_BYTES = 512


def tiny_buffers(parallelism: int) -> dict[str, object]:
    memory = f"{FEWEST_BUFFERS[parallelism] * SEGMENT_BYTES} B"
    return {
        "memory.segment_size": f"{SEGMENT_BYTES} B",
        "memory.network.min": memory,
        "memory.network.max": memory,
        "network.buffers_per_channel": 2,
        "network.floating_buffers_per_gate": 0,
        "network.max_overdraft_buffers": 0,
        "network.buffers_request_timeout": "20 s",
    }


BATCH = {"execution.runtime_mode": "BATCH", "batch.group_memory": "64 KiB"}


@pytest.fixture(params=["default", "tiny", "batch"])
def buffers(request):
    return request.param


@pytest.fixture(params=[1, 2, 4])
def env(request, buffers):
    settings = {"default": {}, "tiny": tiny_buffers(request.param), "batch": BATCH}[buffers]
    return hg.environment(local=True, parallelism=request.param, settings=settings)
