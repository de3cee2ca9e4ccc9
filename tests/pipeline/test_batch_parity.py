"""Whole jobs with keys, windows, timers and joins give the same in BATCH as in STREAMING, also where they spill."""

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from tests.support.pipelines import Batches, Gathered, cut, failure, run, small_env

import headgate as hg
from headgate.errors import StorageFull

pytestmark = pytest.mark.spec("T4")

LATE = hg.OutputTag("late")


def records(count=3_000, disorder=400, seed=7):
    """(key, number, time), about in the order of their times."""
    rng = random.Random(seed)
    return [(f"key-{rng.randrange(60)}", n, 10 * n + rng.randrange(disorder)) for n in range(count)]


def first(record):
    return record[0]


def timed(env, splits, bound):
    source = env.from_source(Batches(*[cut(split, 50) for split in splits]))
    strategy = hg.WatermarkStrategy.for_bounded_out_of_orderness(bound)
    return source.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda record: record[2]))


def spans(key, window, values):
    yield key, window.start, window.end, sorted(value[1] for value in values)


def in_mode(mode, parallelism, pipeline, **settings):
    """What a pipeline gives out in a mode, by sink; and the job."""
    env = small_env(parallelism, execution__runtime_mode=mode, batch__group_memory="64 KiB", **settings)
    sinks = {}
    for name, stream in pipeline(env).items():
        sinks[name] = Gathered()
        stream.sink_to(sinks[name])
    job = run(env)
    return {name: Counter(map(repr, sink.values)) for name, sink in sinks.items()}, job


def spilled(job):
    return sum(vertex.counters.get("spilled_bytes", 0) for vertex in job.last_progress.vertices)


def same_in_both(pipeline, parallelism, **settings):
    streaming, _ = in_mode("STREAMING", parallelism, pipeline, **settings)
    batch, job = in_mode("BATCH", parallelism, pipeline, **settings)
    assert batch == streaming
    assert all(batch.values())
    return job


@pytest.mark.parametrize("parallelism", [1, 3])
def test_windows_behind_windows(parallelism):
    made = records()

    def pipeline(env):
        stream = timed(env, [made[::2], made[1::2]], 400).key_by(first)
        tumbling = stream.window(hg.TumblingEventTimeWindows.of(500)).apply(spans)
        sliding = stream.window(hg.SlidingEventTimeWindows.of(900, 300)).reduce(max)
        sessions = stream.window(hg.EventTimeSessionWindows.with_gap(700)).apply(spans)
        pairs = stream.map(lambda record: record).key_by(first).window(hg.TumblingEventTimeWindows.of(10_000))
        numbers = tumbling.map(lambda found: (found[0][-1], len(found[3]))).key_by(first)
        longest = numbers.window(hg.TumblingEventTimeWindows.of(5_000)).reduce(lambda a, b: (a[0], a[1] + b[1]))
        return {"sliding": sliding, "sessions": sessions, "longest": longest, "pairs": pairs.apply(spans)}

    job = same_in_both(pipeline, parallelism)
    assert spilled(job) > 0


def test_late_records_are_those_that_are_late_in_streaming():
    """With one subtask of everything the order is the same in both."""
    made = records(disorder=2_000)

    def pipeline(env):
        windows = timed(env, [made], 300).key_by(first).window(hg.TumblingEventTimeWindows.of(400))
        kept = windows.side_output_late_data(LATE).allowed_lateness(200).apply(spans)
        return {"kept": kept, "late": kept.get_side_output(LATE)}

    same_in_both(pipeline, 1)


class Alarm(hg.KeyedProcessFunction):
    """Says when a key has had no record for a while, and how many it had until then."""

    def open(self, context):
        self.times = context.get_list_state("times")

    def process_element(self, value, ctx):
        self.times.add(value[2])
        ctx.timer_service().register_event_time_timer(value[2] + 600)

    def on_timer(self, timestamp, ctx):
        seen = [time for time in self.times.get() if time <= timestamp]
        if max(seen) + 600 == timestamp:
            yield ctx.get_current_key(), timestamp, len(seen)
        if len(seen) % 10 == 0:
            yield LATE, (ctx.get_current_key(), timestamp)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_timers(parallelism):
    made = records()

    def pipeline(env):
        alarms = timed(env, [made[:1_500], made[1_500:]], 400).key_by(first).process(Alarm())
        return {"alarms": alarms, "side": alarms.get_side_output(LATE)}

    assert spilled(same_in_both(pipeline, parallelism)) > 0


class Latest(hg.KeyedCoProcessFunction):
    """All of the left of a key, and the right, whichever comes first."""

    def open(self, context):
        self.left, self.right = context.get_list_state("left"), context.get_list_state("right")

    def process_element1(self, value, ctx):
        self.left.add(value[1])
        for right in self.right.get():
            yield value[0], value[1], right

    def process_element2(self, value, ctx):
        self.right.add(value[1])
        for left in self.left.get():
            yield value[0], left, value[1]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_joins_and_functions_of_two_inputs(parallelism):
    left, right = records(600), records(600, seed=8)

    def pipeline(env):
        one, other = timed(env, [left], 400), timed(env, [right], 400)
        joined = one.join(other).where(first).equal_to(first).window(hg.TumblingEventTimeWindows.of(1_000))
        return {
            "joined": joined.apply(lambda a, b: (a[0], a[1], b[1])),
            "connected": one.connect(other).key_by(first, first).process(Latest()),
        }

    assert spilled(same_in_both(pipeline, parallelism)) > 0


@pytest.mark.parametrize("parallelism", [1, 4])
def test_rolling_aggregates_give_their_last_values(parallelism):
    values = [(f"key-{n * n % 10_007}", n) for n in range(5_000)]

    def pipeline(env):
        stream = env.from_source(Batches(*[cut(values[part::3], 100) for part in range(3)])).key_by(first)
        return {"sum": stream.sum(1), "count": stream.count(), "max": stream.max(1)}

    batch, job = in_mode("BATCH", parallelism, pipeline)
    totals, counts = Counter(), Counter(map(first, values))
    for key, n in values:
        totals[key] += n
    assert batch["sum"] == Counter(map(repr, totals.items()))
    assert batch["count"] == Counter(map(repr, counts.items()))
    largest = {key: n for key, n in values}  # noqa: C416 - the last is the largest
    assert batch["max"] == Counter(map(repr, largest.items()))
    assert spilled(job) > 0


@pytest.mark.spec("P3")
def test_a_quota_that_does_not_allow_spilling_fails_the_job_and_leaves_nothing():
    with tempfile.TemporaryDirectory() as directory:
        settings = {"batch__directories": directory, "batch__disk_quota": "300 KiB", "batch__compression": "none"}
        env = small_env(1, execution__runtime_mode="BATCH", batch__group_memory="64 KiB", **settings)
        values = [(n, "x" * 100) for n in range(2_000)]
        env.from_collection(values, parallel=True).key_by(first).process(Alarm()).for_each(lambda _: None)
        error = failure(env, StorageFull)
        assert "batch.disk_quota" in str(error)
        assert directory in str(error)
        assert [path for path in Path(directory).rglob("*") if path.is_file()] == []
