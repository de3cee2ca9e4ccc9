"""Latency markers and hot keys of whole jobs: they reach every task, count what records wait for, change nothing."""

import time

import pytest
from tests.support.pipelines import (
    NEVER,
    Batches,
    Endless,
    Gathered,
    Silent,
    cut,
    run,
    running,
    small_env,
    wait_progress,
)

import headgate as hg

pytestmark = pytest.mark.spec("B2")


def by_task(progress):
    """For each vertex but the sources, and each of its subtasks: the sources of the markers that came."""
    return {
        vertex.name: [{one.source for one in task.latencies if one.count} for task in vertex.subtasks]
        for vertex in progress.vertices
        if not vertex.name.startswith("Endless") and not vertex.name.startswith("Silent")
    }


def marked(interval="5 ms", parallelism=2, **settings):
    return small_env(parallelism, metrics__latency_interval=interval, **settings)


@pytest.mark.parametrize("source", [Endless(pause_s=0.01), Silent()], ids=["busy", "idle"])
def test_every_task_behind_a_source_knows_how_long_it_takes_to_it(source):
    env = marked().disable_operator_chaining()
    stream = env.from_source(source).rebalance().map(lambda n: n).name("same")
    stream.key_by(lambda n: n % 7).map(lambda n: n).name("keyed").sink_to(Gathered()).name("sink")
    with running(env) as job:
        wait_progress(
            job, lambda progress: by_task(progress) == {"same": [{0}, {0}], "keyed": [{0}, {0}], "sink": [{0}, {0}]}
        )
        for vertex in job.last_progress.vertices[1:]:
            for one in vertex.latencies:
                assert 0 <= one.p50_ms <= one.p99_ms <= one.max_ms


def test_a_task_of_two_inputs_and_one_of_a_union_know_of_all_sources():
    env = marked()
    sources = [env.from_source(Endless(pause_s=0.01)).name(f"source {n}") for n in range(3)]
    joined = sources[0].union(sources[1]).map(lambda n: n).name("union")
    joined.connect(sources[2]).map(lambda n: n, lambda n: n).rebalance().sink_to(Gathered()).name("sink")
    with running(env) as job:
        wait_progress(job, lambda progress: set(map(frozenset, by_task(progress)["sink"])) == {frozenset({0, 1, 2})})


def test_broadcast_and_side_outputs_carry_them():
    env = marked()
    tag = hg.OutputTag("odd")

    class Sort(hg.ProcessFunction):
        def process_element(self, value, context):
            yield (tag, value) if value % 2 else value

    sorted_out = env.from_source(Endless(pause_s=0.01)).rebalance().process(Sort()).name("sort")
    sorted_out.broadcast().sink_to(Gathered()).name("all")
    sorted_out.get_side_output(tag).rebalance().sink_to(Gathered()).name("odd")
    with running(env) as job:
        wait_progress(job, lambda progress: all(found == [{0}, {0}] for found in by_task(progress).values()))


def test_latency_includes_the_time_records_wait_in_buffers():
    env = marked("10 ms", parallelism=1, memory__segment_size="4 KiB")
    source = Batches([list(range(200)), 0.05, [0], NEVER], bounded=False)
    slow = env.from_source(source).rebalance().map(lambda n: time.sleep(0.002)).name("slow")
    slow.sink_to(Gathered())
    with running(env) as job:
        # The second marker was sent behind 200 records, while at most a few of them were done.
        wait_progress(job, lambda progress: any(one.max_ms >= 100 for one in progress.vertices[1].latencies))


def test_none_are_sent_where_they_are_not_wanted():
    env = marked("0 ms")
    env.from_source(Endless(pause_s=0.01)).rebalance().sink_to(Gathered()).name("sink")
    with running(env) as job:
        wait_progress(job, lambda progress: progress.vertices[1].records_in > 1000)
        assert by_task(job.last_progress) == {"sink": [set(), set()]}


@pytest.mark.parametrize("timeout", ["auto", "0 ms", "1 ms", "-1"])
def test_results_are_the_same_with_very_many_markers(timeout):
    env = marked("1 ms", execution__buffer_timeout=timeout)
    values = list(range(5_000))
    batches = [Batches(*([*cut(values[part::4], 50), 0.01] for part in range(4))) for _ in range(2)]
    one, other = (env.from_source(source) for source in batches)
    sink, everywhere = Gathered(), Gathered()
    counted = one.union(other).key_by(lambda n: n % 97).map(lambda n: n + 1)
    counted.sink_to(sink)
    counted.broadcast().sink_to(everywhere)
    job = run(env)
    assert sorted(sink.values) == sorted(n + 1 for n in values * 2)
    assert all(sorted(found) == sorted(n + 1 for n in values * 2) for found in everywhere.by_subtask.values())
    assert job.last_progress.vertices[0].records_out == 5_000, "markers are no records"


def test_arrow_batches_and_markers_share_buffers():
    pa = pytest.importorskip("pyarrow")
    env = marked("1 ms", memory__segment_size="4 KiB", memory__network__min="1 MiB", memory__network__max="1 MiB")

    class Columns(hg.Source):
        hint = "arrow"

        def splits(self, parallelism):
            return list(range(parallelism))

        def read(self, split, offset, place):
            for start in range(0, 5_000, 100):
                yield [pa.record_batch({"n": list(range(start, start + 100)), "s": ["x" * (start % 7)] * 100})]
                yield hg.Wait(0.001)

    sink = Gathered()
    env.from_source(Columns()).key_by("n").map_batches(lambda batch: batch, form="arrow").sink_to(sink)
    run(env)
    assert sorted(n for batch in sink.values for n in batch["n"].to_pylist()) == sorted(list(range(5_000)) * 2)


# Hot keys.


class City(str):
    """A key that does not want to be shown."""

    __slots__ = ()

    def __repr__(self):
        raise ValueError("not in public")


@pytest.mark.parametrize(
    ("key", "shown"),
    [(lambda n: "london" if n % 4 else f"city {n}", "'london'"), (lambda n: City("x" if n % 4 else f"{n}"), "<City>")],
    ids=["text", "one that cannot be shown"],
)
def test_a_hot_key_is_named_with_its_share(key, shown):
    env = small_env()
    env.from_source(Endless(batch=100, pause_s=0.001)).key_by(key).sink_to(Gathered(each=lambda n: None))
    with running(env) as job:
        wait_progress(job, lambda progress: all(task.hot_keys for task in progress.vertices[0].subtasks))
        (hot,) = job.last_progress.vertices[0].hot_keys
        assert (hot.exchange, hot.key) == (0, shown)
        assert 0.65 < hot.share < 0.85


def test_hot_keys_are_not_looked_for_where_they_are_not_wanted():
    env = small_env(metrics__hot_keys=False)
    env.from_source(Endless(batch=100, pause_s=0.001)).key_by(lambda n: "london").sink_to(Gathered())
    with running(env) as job:
        wait_progress(job, lambda progress: progress.vertices[1].records_in > 1000)
        assert all(vertex.hot_keys == () for vertex in job.last_progress.vertices)
