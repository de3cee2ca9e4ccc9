"""How large pools are, and the sum that is done before a job starts."""

import math
import re
from dataclasses import replace

import pytest

from headgate.buffer import GateDemand, Limits, PartitionDemand, PoolBounds, TaskDemand, WorkerDemand, preflight
from headgate.config import load_settings
from headgate.config.units import parse_size
from headgate.errors import InsufficientBuffers

CREDIT, TCP = Limits(), Limits(credit_based=False)
KIB = 1024


@pytest.mark.spec("M4")
@pytest.mark.parametrize(
    ("limits", "subpartitions", "bounds"),
    [
        (CREDIT, 1, PoolBounds(2, 10)),
        (CREDIT, 4, PoolBounds(5, 16)),
        (CREDIT, 100, PoolBounds(101, 208)),
        (TCP, 4, PoolBounds(5, 16)),
        (Limits(buffers_per_channel=3, floating_buffers_per_gate=5), 4, PoolBounds(5, 17)),
        # a maximum below what is required would be no maximum
        (Limits(buffers_per_channel=1, floating_buffers_per_gate=0), 4, PoolBounds(5, 5)),
    ],
)
def test_the_pool_of_a_partition(limits: Limits, subpartitions: int, bounds: PoolBounds) -> None:
    assert limits.partition_pool(subpartitions, bounded=True) == bounds
    assert limits.partition_pool(subpartitions, bounded=False) == PoolBounds(bounds.required, None)


@pytest.mark.spec("M4")
@pytest.mark.parametrize("channels", [0, 1, 50])
def test_with_credits_a_gates_pool_holds_the_floating_buffers_only(channels: int) -> None:
    assert CREDIT.gate_pool(channels) == PoolBounds(0, 8)
    assert CREDIT.exclusive(channels) == 2 * channels
    assert Limits(buffers_per_channel=5, floating_buffers_per_gate=3).gate_pool(channels) == PoolBounds(0, 3)
    assert Limits(buffers_per_channel=5).exclusive(channels) == 5 * channels


@pytest.mark.spec("M4")
@pytest.mark.parametrize("channels", [0, 1, 50])
def test_without_credits_a_gates_pool_holds_all_its_buffers(channels: int) -> None:
    assert TCP.gate_pool(channels) == PoolBounds(channels, 2 * channels + 8)
    assert TCP.exclusive(channels) == 0


JOB = [
    TaskDemand("source (1/2)", partitions=(PartitionDemand(4), PartitionDemand(1))),
    TaskDemand("join (1/2)", partitions=(PartitionDemand(2),), gates=(GateDemand(3, 1), GateDemand(0, 2))),
    TaskDemand("sink (1/2)", gates=(GateDemand(7, 2),)),
]
NEEDED = (5 + 2) + 3 + (3 * 2 + 0) + 7 * 2


def alone(tasks: list[TaskDemand], segments: int, *, read_ahead: bool = False) -> list[WorkerDemand]:
    """A job with one worker."""
    return [WorkerDemand("worker 0", tuple(tasks), segments, read_ahead=read_ahead)]


@pytest.mark.spec("M5")
def test_a_job_that_fits_is_let_through_with_its_sum() -> None:
    assert preflight(alone(JOB, NEEDED), segment_size=KIB, limits=CREDIT) == NEEDED == 30
    assert preflight(alone(JOB, 1000), segment_size=KIB, limits=TCP) == 7 + 3 + (3 + 1) + (7 + 2)
    assert preflight(alone([], 0), segment_size=KIB, limits=CREDIT) == 0


@pytest.mark.spec("M5")
def test_a_job_that_does_not_fit_is_refused_with_the_whole_sum() -> None:
    with pytest.raises(InsufficientBuffers) as caught:
        preflight(alone(JOB, NEEDED - 1), segment_size=32 * KIB, limits=CREDIT)
    head, *rows, last = str(caught.value).splitlines()
    assert head == "the job needs 30 network buffers on worker 0, which has 29:"
    assert rows == [
        "  source (1/2): partition of 4 subpartitions: 5",
        "  source (1/2): partition of 1 subpartitions: 2",
        "  join (1/2): partition of 2 subpartitions: 3",
        "  join (1/2): gate of 3 remote and 1 local channels: 6",
        "  join (1/2): gate of 0 remote and 2 local channels: 0",
        "  sink (1/2): gate of 7 remote and 2 local channels: 14",
    ]
    assert sum(int(row.rsplit(": ", 1)[1]) for row in rows) == NEEDED, "the sum can be checked by adding up"
    assert last.startswith("Any of these is enough: ")


@pytest.mark.spec("M5")
def test_a_worker_that_reads_from_disk_needs_a_little_more() -> None:
    assert Limits().read_ahead_pool() == PoolBounds(2, None)
    assert preflight(alone(JOB, NEEDED + 2, read_ahead=True), segment_size=KIB, limits=CREDIT) == NEEDED + 2
    with pytest.raises(InsufficientBuffers) as caught:
        preflight(alone(JOB, NEEDED + 1, read_ahead=True), segment_size=KIB, limits=CREDIT)
    head, *rows, last = str(caught.value).splitlines()
    assert head == "the job needs 32 network buffers on worker 0, which has 31:"
    assert rows[-1] == "  read-ahead of blocking partitions: 2"
    assert sum(int(row.rsplit(": ", 1)[1]) for row in rows) == NEEDED + 2
    assert "network.buffers_per_channel = 1" in last
    few = [TaskDemand("sink", gates=(GateDemand(2, 0),))]
    with pytest.raises(InsufficientBuffers) as caught:
        preflight(alone(few, 3, read_ahead=True), segment_size=KIB, limits=CREDIT)
    assert "buffers_per_channel" not in str(caught.value), "it would not be enough"


def remedies(segments: int, segment_size: int, limits: Limits, job: list[TaskDemand]) -> dict[str, str]:
    with pytest.raises(InsufficientBuffers) as caught:
        preflight(alone(job, segments), segment_size=segment_size, limits=limits)
    last = str(caught.value).splitlines()[-1]
    return dict(re.findall(r"([a-z_.]+) = (\w+)", last))


def fits(
    settings: dict[str, str], network_bytes: int, segment_size: int, limits: Limits, job: list[TaskDemand]
) -> bool:
    """Whether the job fits a worker that is configured so."""
    code: dict[str, object] = {"memory.segment_size": segment_size, **settings}
    least = max(network_bytes, parse_size(settings.get("memory.network.min", "16 B")))
    code["memory.network.min"] = code["memory.network.max"] = least
    loaded = load_settings(code=code, environ={})
    size, _ = loaded.network_memory_bytes(1)
    per_channel = int(settings.get("network.buffers_per_channel", limits.buffers_per_channel))
    changed = replace(limits, buffers_per_channel=per_channel)
    try:
        preflight(
            alone(job, size // loaded.memory.segment_size),
            segment_size=loaded.memory.segment_size,
            limits=changed,
        )
    except InsufficientBuffers:
        return False
    return True


CASES = [
    (segments, segment_size, limits)
    for segments in (1, 14, 16, 19, 22, 23, 29)
    for segment_size in (16, 1000, 4096, 32 * KIB, 10**6 + 7)
    for limits in (CREDIT, TCP, Limits(buffers_per_channel=7))
    if sum(task.required(limits) for task in JOB) > segments
]


@pytest.mark.spec("M5")
@pytest.mark.parametrize(("segments", "segment_size", "limits"), CASES)
def test_every_remedy_really_fits_and_nothing_smaller_does(segments: int, segment_size: int, limits: Limits) -> None:
    there = segments * segment_size
    offered = remedies(segments, segment_size, limits, JOB)
    assert "memory.network.min" in offered, "there is always one way out"
    for key, value in offered.items():
        assert fits({key: value}, there, segment_size, limits, JOB), f"{key} = {value}"
    assert not fits({}, there, segment_size, limits, JOB)

    kib = int(offered["memory.network.min"].removesuffix("KiB"))
    total = sum(task.required(limits) for task in JOB)
    assert kib == math.ceil(total * segment_size / KIB)
    if "memory.segment_size" in offered:
        larger = int(offered["memory.segment_size"].removesuffix("KiB")) + 1
        assert not fits({"memory.segment_size": f"{larger}KiB"}, there, segment_size, limits, JOB)
    if "network.buffers_per_channel" in offered:
        more = int(offered["network.buffers_per_channel"]) + 1
        assert not fits({"network.buffers_per_channel": str(more)}, there, segment_size, limits, JOB)
    elif limits.buffers_per_channel > 1:
        assert not fits({"network.buffers_per_channel": "1"}, there, segment_size, limits, JOB)


@pytest.mark.spec("M5")
def test_only_settings_that_reduce_the_shortage_are_offered() -> None:
    assert set(remedies(29, 32 * KIB, CREDIT, JOB)) == {
        "memory.network.min",
        "network.buffers_per_channel",
        "memory.segment_size",
    }
    assert set(remedies(19, 32 * KIB, TCP, JOB)) == {"memory.network.min", "memory.segment_size"}
    assert set(remedies(15, 4 * KIB, CREDIT, JOB)) == {"memory.network.min"}, "buffers of 2 KiB would cost more"


@pytest.mark.spec("M5")
def test_of_several_workers_the_one_that_lacks_most_is_shown_and_remedies_help_all() -> None:
    wide = TaskDemand("wide", partitions=(PartitionDemand(39),))  # 40, whatever a channel has
    many = TaskDemand("many", gates=(GateDemand(remote_channels=30),))  # 60, or 30
    workers = [
        WorkerDemand("worker 0", (TaskDemand("small"),), 35),
        WorkerDemand("worker 1", (wide,), 35),
        WorkerDemand("worker 2", (many,), 35),
        WorkerDemand("the driver", (many,), 70),
    ]
    with pytest.raises(InsufficientBuffers) as caught:
        preflight(workers, segment_size=32 * KIB, limits=CREDIT)
    head, *rows, last = str(caught.value).splitlines()
    assert head == "the job needs 60 network buffers on worker 2, which has 35 (also too few on worker 1):"
    assert rows == ["  many: gate of 30 remote and 0 local channels: 60"]
    assert f"memory.network.min = {60 * 32}KiB" in last
    assert "buffers_per_channel" not in last, "it would help worker 2, but not worker 1"
    assert "memory.segment_size = 18KiB" in last, "35 x 32 KiB / 60"
    assert preflight([workers[0], workers[3]], segment_size=32 * KIB, limits=CREDIT) == 60
