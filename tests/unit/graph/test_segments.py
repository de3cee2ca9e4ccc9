"""The size of buffers of jobs that carry record batches, or run in BATCH."""

from dataclasses import replace

import pyarrow as pa
import pytest

from headgate.config import MemorySettings, Settings, load_settings
from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
from headgate.graph.segments import with_fitting_segments

KIB = 1024


def plan_of(parallelism: int, hint: object, settings: Settings | None = None) -> Plan:
    made = Vertex(0, "made", parallelism, 32_768, (), inputs=0)
    kept = Vertex(1, "kept", parallelism, 32_768, ())
    exchange = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.REBALANCE), hint=hint)
    return Plan("1", "etl", (made, kept), (exchange,), workers=parallelism, settings=settings or Settings())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(2, 256 * KIB), (42, 256 * KIB), (50, 128 * KIB), (100, 64 * KIB), (200, 32 * KIB)],
)
def test_the_largest_of_which_there_are_enough(parallelism: int, expected: int) -> None:
    plan = with_fitting_segments(plan_of(parallelism, pa.RecordBatch))
    assert plan.settings.memory.segment_size == expected


@pytest.mark.parametrize("hint", [None, str, "msgpack", tuple[int, str]])
def test_records_keep_the_default(hint: object) -> None:
    plan = plan_of(2, hint)
    assert with_fitting_segments(plan) is plan


@pytest.mark.parametrize(
    "settings",
    [
        Settings(memory=MemorySettings(segment_size=4 * KIB)),
        load_settings(code={"memory.segment_size": "32 KiB"}, environ={}),  # the default, but configured
    ],
)
def test_a_segment_size_set_by_the_user_is_kept(settings: Settings) -> None:
    plan = plan_of(2, pa.RecordBatch, settings)
    assert with_fitting_segments(plan) is plan


def test_little_memory_keeps_them_small() -> None:
    memory = MemorySettings()
    little = replace(memory, network=replace(memory.network, min=64 * KIB, max=512 * KIB))
    plan = plan_of(2, pa.RecordBatch, Settings(memory=little))
    assert with_fitting_segments(plan) is plan


@pytest.mark.parametrize("hint", [None, str, pa.RecordBatch])
def test_in_batch_all_segments_are_large(hint: object) -> None:
    settings = with_fitting_segments(replace(plan_of(2, hint), batch=True)).settings
    assert settings.memory.segment_size == 256 * KIB
    assert settings.origin("memory.segment_size") == "chosen for BATCH"


def test_in_batch_only_the_largest_region_has_to_fit() -> None:
    wide, fits = plan_of(60, None), 128 * KIB
    assert with_fitting_segments(replace(plan_of(60, pa.RecordBatch), batch=False)).settings.memory.segment_size == fits
    exchanges = tuple(replace(one, blocking=True) for one in wide.exchanges)
    batch = with_fitting_segments(replace(wide, batch=True, exchanges=exchanges))
    assert batch.settings.memory.segment_size == 256 * KIB
