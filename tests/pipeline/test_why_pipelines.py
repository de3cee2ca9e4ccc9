"""Pipelines each of which is slow for one known reason, and two for none: `why` names the reason and the place.

They run on the local host, where all workers are threads of one process. Reasons are extreme, so that a machine with
more to do does not change the answer.
"""

import time
from functools import partial

import pytest
from tests.support.links import Link
from tests.support.pipelines import run, running, wait_progress
from tests.support.slow_pipelines import (
    HOT_KEY,
    HOT_SHARE,
    QUICK,
    SETTLED_S,
    Cities,
    HardNumbers,
    LeisurelyNumbers,
    Numbers,
    asked,
    burn,
    busiest,
    drop,
    is_in,
    look_up,
    look_up_together,
    nap,
)

import headgate as hg
from headgate.observe import Cause, JobStatus


def environment(parallelism=1, **settings):
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    env = hg.environment(local=True, parallelism=parallelism, settings={**QUICK, **dotted})
    return env.disable_operator_chaining()


@pytest.mark.timing
def test_a_map_that_computes():
    env = environment()
    env.from_source(Numbers()).map(burn).for_each(drop)
    with asked(env) as (found, _):
        assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.CPU, 1, "map(burn)", 0), found
        assert is_in(found.function, burn), found


@pytest.mark.timing
def test_a_map_that_waits():
    env = environment(2)
    env.from_source(Numbers()).map(look_up).for_each(drop)
    with asked(env) as (found, _):
        assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.WAITING, 1, "map(look_up)", None)
        assert is_in(found.function, look_up), found


@pytest.mark.timing
@pytest.mark.spec("B2")
def test_coroutines_that_wait():
    env = environment()
    env.from_source(Numbers()).map_async(look_up_together, capacity=2).for_each(drop)
    with asked(env) as (found, view):
        waits = view.progress.vertices[1]
        assert waits.waiting > 0.5 > waits.busy
        assert waits.busy + waits.idle + waits.back_pressured + waits.waiting == pytest.approx(1)
        assert (found.cause, found.operator) == (Cause.WAITING, "map_async(look_up_together)"), found
        assert is_in(found.function, look_up_together), found
        assert "capacity" in found.advice


@pytest.mark.timing
def test_a_key_that_most_records_have():
    env = environment(2)
    env.from_source(Cities()).key_by(lambda record: record[0]).map(nap).for_each(drop)
    with asked(env) as (found, view):
        assert (found.cause, found.vertex, found.operator) == (Cause.HOT_KEY, 1, "map(nap)"), found
        assert found.subtask == busiest(view, 1)
        assert found.key == repr(HOT_KEY)
        assert found.share == pytest.approx(HOT_SHARE, abs=0.15)


@pytest.mark.timing
def test_a_partitioner_that_knows_one_subtask():
    env = environment(2)
    env.from_source(Numbers()).partition_custom(lambda n, channels: channels - 1).map(nap).for_each(drop)
    with asked(env) as (found, _):
        assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.SKEW, 1, "map(nap)", 1), found


@pytest.fixture
def link(request, monkeypatch):
    made = Link(**request.param)
    made.install(monkeypatch)
    yield made
    made.close()


def over_a_link(**settings):
    """A source in one worker, and its reader in another."""
    env = environment(1, **settings)
    env.from_source(Numbers()).map(str).slot_sharing_group("elsewhere").for_each(drop)
    return env


@pytest.mark.parametrize("link", [{"delay_s": 0.1}], indirect=True)
@pytest.mark.timing
def test_too_few_buffers_for_a_long_link(link):
    env = over_a_link(
        network__buffers_per_channel=1,
        network__floating_buffers_per_gate=0,
    )
    with asked(env) as (found, view):
        assert (found.cause, found.vertex, found.operator) == (Cause.BUFFERS, 0, "Numbers"), found
        assert found.exchange == view.graph.edges[0].id
        assert "network.buffers_per_channel" in found.advice


@pytest.mark.parametrize("link", [{"bytes_per_s": 30_000}], indirect=True)
@pytest.mark.timing
def test_a_thin_link(link):
    # Far more is under way than the kernel has room for along a link, so that what is unsent stays with the sender.
    env = over_a_link(memory__segment_size="32 KiB", memory__network__min="8 MiB", memory__network__max="8 MiB")
    with asked(env) as (found, view):
        assert (found.cause, found.vertex, found.operator) == (Cause.NETWORK, 0, "Numbers"), found
        assert found.exchange == view.graph.edges[0].id


@pytest.mark.timing
def test_a_sink_that_waits():
    env = environment()
    env.from_source(Numbers()).map(str).for_each(look_up)
    with asked(env) as (found, _):
        assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.SINK, 2, "for_each(look_up)", 0)
        assert is_in(found.function, look_up), found
        assert "waits" in found.summary


@pytest.mark.timing
def test_a_sink_that_computes():
    env = environment()
    env.from_source(Numbers()).map(str).for_each(burn)
    with asked(env) as (found, _):
        assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.SINK, 2, "for_each(burn)", 0)
        assert is_in(found.function, burn), found
        assert "works as fast as it can" in found.summary


@pytest.mark.timing
def test_a_source_that_has_little_to_give():
    env = environment(2)
    env.rate(20).map(str).for_each(drop)
    with asked(env, held=False) as (found, view):
        assert (found.cause, found.vertex) == (Cause.SOURCE, 0), found
        assert found.operator == view.graph.vertices[0].operators[0]


@pytest.mark.timing
def test_a_source_that_is_the_limit_itself():
    env = environment()
    env.from_source(HardNumbers()).map(str).for_each(drop)
    with asked(env, held=False) as (found, _):
        assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.CPU, 0, "HardNumbers", 0), found
        assert is_in(found.function, burn), found


@pytest.mark.timing
def test_alternating_bottlenecks_are_named_in_the_evidence():
    def slow(begin, end, record):
        if begin <= time.monotonic() % 1.0 < end:
            look_up(record)
        return record

    env = environment()
    first, second = partial(slow, 0.0, 0.5), partial(slow, 0.5, 1.0)
    env.from_source(Cities()).map(first).name("first").map(second).name("second").for_each(drop)
    with asked(env) as (found, _):
        other = {"first": "second", "second": "first"}[found.operator]
        assert any(one.startswith("they alternate") and other in one for one in found.evidence), found


@pytest.mark.timing
def test_a_job_with_busy_tasks_and_free_buffers_has_no_bottleneck():
    env = environment()
    env.from_source(LeisurelyNumbers()).map(lambda n: time.sleep(0.03)).for_each(drop)
    with asked(env, held=False) as (found, _):
        assert (found.cause, found.vertex) == (Cause.NONE, None), found
        assert "no bottleneck" in found.summary


def test_nothing_where_the_job_is_over():
    env = environment()
    env.from_collection(range(100)).map(str).for_each(drop)
    job = run(env)
    found = job.why()
    assert job.status is JobStatus.FINISHED
    assert (found.cause, found.vertex) == (Cause.NONE, None)
    assert "over" in found.summary


@pytest.mark.timing
def test_the_bottleneck_of_a_batch_job_is_in_the_running_region(tmp_path):
    """A task that reads from disk waits for no other task: the work of the running region is the limit."""
    env = hg.environment(
        local=True, parallelism=2, runtime_mode="BATCH", settings={**QUICK, "batch.directories": str(tmp_path)}
    )
    env.from_collection(range(100_000)).rebalance().map(look_up).rebalance().for_each(drop)
    with running(env) as job:
        wait_progress(job, lambda now: now.uptime_s > SETTLED_S and all(one.busy for one in now.vertices[1].subtasks))
        found, view = job.why(), job.view()
    assert [one.blocking for one in view.graph.edges] == [True, True]
    assert (found.cause, found.vertex, found.operator) == (Cause.WAITING, 1, "map(look_up)"), found
    assert is_in(found.function, look_up), found
