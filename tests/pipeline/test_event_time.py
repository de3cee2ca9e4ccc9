"""Event time through exchanges: timestamps stay with their records, and watermarks are the least of all channels."""

import threading
from collections import Counter

import pytest
from tests.support.pipelines import NEVER, Batches, Gathered, collected, run, running, small_env, wait_progress

import headgate as hg
from headgate.connectors.collect import ProcessLocal
from headgate.connectors.generators import CollectionSource
from headgate.functions.source import Source, Wait

SECOND = hg.TumblingEventTimeWindows.of(hg.Time.seconds(1))


def monotonous(assigner=lambda n: n):
    return hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)


class Timed(hg.ProcessFunction):
    """Each value with its event time."""

    def process_element(self, value, ctx):
        yield value, ctx.timestamp()


SHIPS = {
    "rebalance": lambda s: s.rebalance(),
    "rescale": lambda s: s.rescale(),
    "shuffle": lambda s: s.shuffle(),
    "hash": lambda s: s.key_by(lambda n: n % 7).reduce(lambda a, b: b),
    "global": lambda s: s.global_(),
    "custom": lambda s: s.partition_custom(lambda n, channels: n % channels),
    "forward": lambda s: s.map(lambda n: n).disable_chaining(),
    "chain": lambda s: s.map(lambda n: n).filter(lambda n: True).flat_map(lambda n: [n]),
    "union": lambda s: s.filter(lambda n: n % 2).union(s.filter(lambda n: n % 2 == 0)),
    "connected": lambda s: s.filter(lambda n: n % 2).connect(s.filter(lambda n: n % 2 == 0)).map(int, int),
}


@pytest.mark.spec("R3", "T5")
@pytest.mark.parametrize("ship", SHIPS)
@pytest.mark.parametrize("timeout", ["auto", "0"])
def test_a_timestamp_stays_with_its_record(ship, timeout):
    env = small_env(2, execution__buffer_timeout=timeout)
    stream = env.from_collection(range(200)).assign_timestamps_and_watermarks(monotonous(lambda n: n * 10 + 3))
    got = collected(SHIPS[ship](stream).process(Timed()))
    assert sorted(got) == [(n, n * 10 + 3) for n in range(200)]


@pytest.mark.spec("R3")
def test_broadcast_records_have_their_timestamps_everywhere():
    stream = small_env(3).from_collection(range(50)).assign_timestamps_and_watermarks(monotonous(lambda n: -n))
    assert Counter(collected(stream.broadcast().process(Timed()))) == Counter({(n, -n): 3 for n in range(50)})


@pytest.mark.spec("R3")
def test_records_without_timestamps_get_none_on_the_way():
    assert sorted(collected(small_env(2).from_collection(range(20)).rebalance().process(Timed()))) == [
        (n, None) for n in range(20)
    ]


@pytest.mark.spec("R3")
def test_records_with_and_without_timestamps_in_one_stream():
    env = small_env(2)
    plain = env.from_collection(range(50))
    timed = env.from_collection(range(50, 100)).assign_timestamps_and_watermarks(monotonous())
    got = dict(collected(plain.union(timed).rebalance().map(lambda n: n).rebalance().process(Timed())))
    assert got == {n: n if n >= 50 else None for n in range(100)}


@pytest.mark.spec("K3")
@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_windows_are_the_same_at_every_parallelism(parallelism):
    values = [(n * 37 % 101) * 50 for n in range(101)]  # out of order by anything up to 5 s
    strategy = hg.WatermarkStrategy.for_bounded_out_of_orderness(5_050).with_timestamp_assigner(lambda n: n)
    stream = small_env(parallelism).from_collection(values).assign_timestamps_and_watermarks(strategy)
    windows = stream.rebalance().map(lambda n: n).key_by(lambda n: n // 50 % 3).window(SECOND)
    got = collected(windows.apply(lambda key, window, elements: [(key, window.start, sorted(elements))]))
    expected = {}
    for n in sorted(values):
        expected.setdefault((n // 50 % 3, n // 1000 * 1000), []).append(n)
    assert {(key, start): elements for key, start, elements in got} == expected
    assert len(got) == len(expected), "each window fires once: nothing was late"


@pytest.mark.spec("K3")
@pytest.mark.parametrize("parallelism", [2, 3])
def test_no_record_is_behind_the_watermark_it_comes_after(parallelism):
    class Late(hg.KeyedProcessFunction):
        def process_element(self, value, ctx):
            if ctx.timestamp() <= ctx.timer_service().current_watermark():
                yield value

    # One subtask reads a quick past, the others a slow one: their watermarks are far apart.
    splits = [[range(begin, begin + 10) for begin in range(n * 17, 2000, 10 * (n + 1))] for n in range(parallelism)]
    stream = small_env(parallelism).from_source(Batches(*splits)).assign_timestamps_and_watermarks(monotonous())
    keyed = stream.rebalance().map(lambda n: n).shuffle().map(lambda n: n).key_by(lambda n: n % 5)
    assert collected(keyed.process(Late())) == []


class Steps(Source):
    """One split whose batches come as the test lets them: a callable is waited for."""

    bounded = True

    def __init__(self, *steps):
        self._steps = ProcessLocal(steps)

    def splits(self, parallelism):
        return [0]

    def read(self, split, offset, place):
        for step in self._steps.value:
            if callable(step):
                while not step():
                    yield Wait(0.001)
            else:
                yield list(step)


def seconds_of(stream, sink):
    stream.window_all(SECOND).apply(lambda window, values: [window.start]).sink_to(sink)


@pytest.mark.spec("K3")
def test_the_slower_of_two_inputs_holds_event_time_back():
    env, windows, passed, before = small_env(1), Gathered(), Gathered(), []
    fast = env.from_collection(range(0, 5001, 100)).assign_timestamps_and_watermarks(monotonous())

    def fast_has_passed():
        return len(passed.values) >= 51

    def first_two():
        before.append(windows.values)
        return len(windows.values) >= 2

    slow = env.from_source(Steps([500], fast_has_passed, [2500], first_two, [2600]))
    both = fast.union(slow.assign_timestamps_and_watermarks(monotonous())).rebalance().map(lambda n: n)
    both.sink_to(passed)
    seconds_of(both, windows)
    run(env)
    assert before[0] in ([], [0], [0, 1000]), "no more than the slow one has reached"
    assert before[-1] == [0, 1000], "event time is 2499 until the slow one goes on"
    assert windows.values == [0, 1000, 2000, 3000, 4000, 5000]


@pytest.mark.spec("K3")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_idle_input_does_not_hold_event_time_back(parallelism):
    """One of the sources never has anything: without idleness no window would ever fire."""
    env, windows = small_env(parallelism), Gathered()
    fast = env.from_source(Batches([[0, 1500, 3000], NEVER], bounded=False)).set_parallelism(1)
    timed = fast.assign_timestamps_and_watermarks(monotonous()).set_parallelism(
        1
    )  # idleness could make its records late
    silent = env.from_source(Batches(*[[NEVER]] * parallelism, bounded=False))
    both = timed.union(silent.assign_timestamps_and_watermarks(monotonous().with_idleness(1)))
    seconds_of(both.rebalance().map(lambda n: n), windows)
    with running(env):
        windows.wait_for(2)
        assert sorted(windows.values) == [0, 1000]


@pytest.mark.spec("K3")
def test_event_time_goes_on_after_one_input_has_ended_while_the_other_was_idle():
    env, windows, ended = small_env(1), Gathered(), threading.Event()
    strategy = monotonous().with_idleness(1)

    class Late(Steps):
        bounded = False

    history = env.from_source(Steps([0, 100])).assign_timestamps_and_watermarks(monotonous())
    live = Late([50], ended.is_set, [1500, 2500], lambda: False)
    both = history.union(env.from_source(live).assign_timestamps_and_watermarks(strategy)).rebalance().map(lambda n: n)
    seconds_of(both, windows)
    with running(env) as job:
        wait_progress(job, lambda progress: any("Steps" in one.name and one.state.over for one in progress.vertices))
        ended.set()
        windows.wait_for(2)
        assert sorted(windows.values) == [0, 1000]


@pytest.mark.spec("K3")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_last_window_of_an_idle_stream_closes_as_the_clock_goes_on(parallelism):
    """No record comes any more: idleness says when the window that the last one is in is over."""
    env, windows = small_env(parallelism), Gathered()
    splits = [[[0, 1500], NEVER], [[200], NEVER]][:parallelism]
    source = env.from_source(Batches(*splits, bounded=False))
    timed = source.assign_timestamps_and_watermarks(monotonous().with_idleness(1))
    seconds_of(timed.rebalance().map(lambda n: n), windows)
    with running(env):
        windows.wait_for(2)
        assert sorted(windows.values) == [0, 1000]


@pytest.mark.spec("K3")
def test_an_idle_stream_closes_the_windows_that_an_ended_one_has_completed():
    env, windows, go_idle = small_env(1), Gathered(), threading.Event()
    history = env.from_source(Steps([0, 1500, 3500])).assign_timestamps_and_watermarks(monotonous())

    class Late(Steps):
        bounded = False

    live = env.from_source(Late([50], go_idle.is_set, [60], lambda: False))
    timed = live.assign_timestamps_and_watermarks(monotonous().with_idleness(1000))
    seconds_of(history.union(timed).rebalance().map(lambda n: n), windows)
    with running(env) as job:
        wait_progress(job, lambda progress: any("Steps" in one.name and one.state.over for one in progress.vertices))
        go_idle.set()  # from now on nothing comes, and the live one was active when the other one ended
        windows.wait_for(2)
        assert sorted(windows.values) == [0, 1000]


@pytest.mark.spec("K3")
def test_the_end_of_the_input_is_the_end_of_event_time():
    env, windows = small_env(3), Gathered()
    strategy = hg.WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda n: n)
    seconds_of(env.from_collection(range(0, 5000, 100)).assign_timestamps_and_watermarks(strategy).rebalance(), windows)
    run(env)
    assert sorted(windows.values) == [0, 1000, 2000, 3000, 4000]


@pytest.mark.spec("K1", "B2")
def test_the_last_watermark_is_a_gauge():
    env = small_env(2)
    env.from_collection(range(100)).assign_timestamps_and_watermarks(monotonous()).rebalance().for_each(lambda _: None)
    marks = [vertex.watermark_ms for vertex in run(env).last_progress.vertices]
    assert marks == [2**63 - 1] * 2


def test_a_source_without_watermarks_needs_no_timestamps():
    stream = small_env(2).from_source(CollectionSource(range(20)), hg.WatermarkStrategy.no_watermarks())
    assert sorted(collected(stream.key_by(lambda n: n % 3).map(lambda n: n))) == list(range(20))
