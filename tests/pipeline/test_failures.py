"""K6: whatever user code raises, wherever: the driver gets it, with its place and traceback, and nothing is left."""

import threading

import pytest
from tests.support.pipelines import Batches, Endless, Gathered, failure, raises, run, small_env

import headgate as hg
from headgate.control.messages import TaskState
from headgate.functions.sink import Sink
from headgate.functions.source import Source
from headgate.record import Serializer

TEXT = "made to fail"


def bang(*_):
    raise ValueError(TEXT)


class Fails(hg.MapFunction):
    """Raises in the methods that are named, in one subtask or in all."""

    def __init__(self, *methods, subtask=None, at=0):
        self.methods, self.subtask, self.at, self.here = methods, subtask, at, True

    def _in(self, method):
        if method in self.methods and self.here:
            raise ValueError(f"{TEXT} in {method}")

    def open(self, context):
        self.here = self.subtask in {None, context.subtask_index}
        self._in("open")

    def map(self, value):
        if value >= self.at:
            self._in("map")
        return value

    def close(self):
        self._in("close")


class FailingSink(Sink):
    def __init__(self, method):
        self.method = method

    def _in(self, method):
        if method == self.method:
            raise ValueError(TEXT)

    def open(self, place):
        self._in("open")

    def write(self, values):
        self._in("write")

    def flush(self):
        self._in("flush")

    def finish(self):
        self._in("finish")

    def close(self):
        self._in("close")


class FailingSource(Source):
    def __init__(self, at):
        self.at = at

    def splits(self, parallelism):
        return list(range(parallelism))

    def read(self, split, offset, place):
        if self.at == "call":
            raise ValueError(TEXT)
        return self._read()

    def _read(self):
        yield [1, 2]
        if self.at == "iteration":
            raise ValueError(TEXT)
        try:
            yield [3]
        finally:
            if self.at == "close":
                raise ValueError(TEXT)


class Counts(hg.MapFunction):
    """Counts as it is told: by a name made of the value, so much."""

    def __init__(self, name, amount=1):
        self.name, self.amount = name, amount

    def open(self, context):
        self.context = context

    def map(self, value):
        self.context.count(self.name.format(value), self.amount)
        return value


class OnTimer(hg.KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(5)

    def on_timer(self, timestamp, ctx):
        raise ValueError(TEXT)


def mapped(stream, function):
    return stream.map(function).name("culprit")


def timed(stream, assigner=lambda n: n):
    strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    return stream.assign_timestamps_and_watermarks(strategy)


async def bang_async(_):
    raise ValueError(TEXT)


PLACES = {
    "map": lambda s: mapped(s, bang),
    "map over an exchange": lambda s: mapped(s.rebalance(), bang),
    "open": lambda s: mapped(s.rebalance(), Fails("open")),
    "close": lambda s: mapped(s.rebalance(), Fails("close")),
    "filter": lambda s: s.filter(bang).name("culprit"),
    "flat_map": lambda s: s.flat_map(bang).name("culprit"),
    "reduce": lambda s: s.key_by(lambda n: 0).reduce(bang).name("culprit"),
    "count's key": lambda s: s.map(lambda n: n).name("culprit").key_by(bang).count(),
    "key": lambda s: s.map(lambda n: n).name("culprit").key_by(bang).reduce(max),
    "key with times": lambda s: timed(s).name("culprit").key_by(bang).reduce(max),
    "partitioner": lambda s: s.map(lambda n: n).name("culprit").partition_custom(bang).map(str),
    "process": lambda s: s.key_by(lambda n: 0).process(OnTimer()).name("culprit"),
    "timestamps": lambda s: timed(s, bang).name("culprit"),
    "window": lambda s: (
        timed(s)
        .key_by(lambda n: 0)
        .window(hg.TumblingEventTimeWindows.of(10))
        .apply(lambda key, window, values: bang())
        .name("culprit")
    ),
    "connected": lambda s: s.connect(s).map(bang, bang).name("culprit"),
    "map_batches": lambda s: s.map_batches(bang).name("culprit"),
    "map_async": lambda s: s.map_async(bang_async).name("culprit"),
}
SINKS = {f"sink {method}": method for method in ("open", "write", "flush", "finish", "close")}
SOURCES = {f"source {at}": at for at in ("call", "iteration", "close")}


def assert_told(error, *, text=TEXT, function="bang"):
    """The driver's error names the operator, the subtask and the cause, with its traceback."""
    assert isinstance(error, hg.UserCodeError)
    assert error.operator == "culprit"
    assert error.subtask in {0, 1}
    assert str(error).startswith(f"culprit, subtask {error.subtask}: ValueError: {text}\n")
    assert "Traceback (most recent call last)" in error.trace
    assert f"ValueError: {text}" in error.trace
    assert __file__ in error.trace
    assert f"in {function}\n" in error.trace
    assert str(error).count("Traceback (most recent call last)") == 1, "once is enough"


@pytest.mark.spec("K6", "M9")
@pytest.mark.parametrize("place", PLACES)
def test_user_code_that_raises(place):
    env = small_env(2)
    stream = env.from_collection(range(100))
    if place == "process":
        stream = timed(stream)
    PLACES[place](stream).rebalance().for_each(lambda _: None)
    error = failure(env)
    if place in {"open", "close"}:
        assert_told(error, text=f"{TEXT} in {place}", function="_in")
    elif place == "process":
        assert_told(error, function="on_timer")
    else:
        assert_told(error, function="bang_async" if place == "map_async" else "bang")


@pytest.mark.spec("K6", "M9")
@pytest.mark.parametrize("place", SINKS)
def test_a_sink_that_raises(place):
    env = small_env(2)
    env.from_collection(range(100)).rebalance().sink_to(FailingSink(SINKS[place])).name("culprit")
    assert_told(failure(env), function="_in")


@pytest.mark.spec("K6", "M9")
@pytest.mark.parametrize("place", SOURCES)
def test_a_source_that_raises(place):
    env = small_env(2)
    env.from_source(FailingSource(SOURCES[place])).name("culprit").rebalance().for_each(lambda _: None)
    assert_told(failure(env), function="read" if SOURCES[place] == "call" else "_read")


@pytest.mark.spec("K6")
@pytest.mark.parametrize(
    ("name", "amount", "records"),
    [
        ("halves", 0.5, 5),
        ("large", 2**64, 5),
        ("bad \udcff", 1, 5),
        ("user {} of many", 1, 60_000),
        ("x" * 2**20, 1, 5),
    ],
    ids=["halves", "large", "no unicode", "many", "long"],
)
def test_counters_of_any_kind_do_not_hurt_the_job(name, amount, records):
    """They are refused as what they are, a mistake of the user's; or the job finishes."""
    env = small_env(1)
    env.generate(lambda n: n, count=records).map(Counts(name, amount)).name("culprit").for_each(lambda _: None)
    try:
        run(env)
    except hg.UserCodeError as error:
        assert error.operator == "culprit"  # noqa: PT017 - it need not fail


@pytest.mark.spec("K6")
def test_the_subtask_that_failed_is_named():
    env = small_env(3)
    env.from_source(Endless()).rebalance().map(Fails("map", subtask=2)).name("culprit").for_each(lambda _: None)
    error = failure(env, hg.UserCodeError)
    assert (error.operator, error.subtask) == ("culprit", 2)


@pytest.mark.spec("K6", "M9")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_all_other_tasks_end(parallelism):
    """Upstream is without end, downstream has done nothing wrong, and a branch beside it has nothing to do with it."""
    env, source, sink, beside = small_env(parallelism), Endless(), Gathered(), Gathered()
    stream = env.from_source(source)
    stream.rebalance().map(Fails("map", at=500)).name("culprit").rebalance().sink_to(sink)
    stream.rebalance().sink_to(beside)
    job = env.execute_async()
    with pytest.raises(hg.UserCodeError, match="culprit"):
        job.await_termination(30)
    assert all(n < 500 for n in sink.values)
    for gathered in (sink, beside):
        assert sorted(gathered.calls) == sorted((what, n) for n in range(parallelism) for what in ("open", "close"))
    assert source.closed == list(range(parallelism))
    states = {vertex.name: {one.state for one in vertex.subtasks} for vertex in job.last_progress.vertices}
    assert TaskState.FAILED in states["culprit"]
    assert all(state.over for found in states.values() for state in found)


@pytest.mark.spec("K6")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_only_the_task_that_raised_has_failed(parallelism):
    """Readers, here and in other workers, learn of it before the coordinator can stop them."""
    env, last = small_env(parallelism), parallelism - 1
    env.from_source(Endless()).rebalance().map(Fails("map", at=200, subtask=last)).name("culprit").rebalance().map(
        str
    ).name("reader").rebalance().for_each(lambda _: None)
    job = env.execute_async()
    with pytest.raises(hg.UserCodeError, match="culprit"):
        job.await_termination(30)
    failed = [
        (vertex.name, subtask)
        for vertex in job.last_progress.vertices
        for subtask, one in enumerate(vertex.subtasks)
        if one.state is TaskState.FAILED
    ]
    assert failed == [("culprit", last)]


@pytest.mark.spec("K6")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("where", ["map", "source", "key"])
def test_an_error_that_is_no_exception_fails_the_job_too(error, where):
    def leave(*_):
        raise error

    env = small_env(2)
    if where == "source":
        stream = env.generate(leave, count=5).name("culprit").rebalance().map(str)
    elif where == "map":
        stream = env.from_collection(range(5)).map(leave).name("culprit")
    else:
        stream = env.from_collection(range(5)).name("culprit").key_by(leave).reduce(max)
    stream.for_each(lambda _: None)
    told = failure(env)
    assert "culprit" in str(told)
    assert type(error).__name__ in str(told)


@pytest.mark.spec("K6", "T5")
@pytest.mark.parametrize(
    "place", ["map", "filter", "flat_map", "count's key", "key", "partitioner", "timestamps", "map_async", "for_each"]
)
def test_a_stop_iteration_is_an_error_and_not_the_end_of_a_batch(place, monkeypatch):
    def stops(n, *_):
        return n if n < 3 else next(iter([]))

    async def stops_async(n):
        return stops(n)

    env, sink = small_env(1), Gathered()
    stream = env.from_collection(range(10))
    stream = {
        "map": lambda: stream.map(stops),
        "filter": lambda: stream.filter(stops),
        "flat_map": lambda: stream.flat_map(lambda n: [stops(n)]),
        "count's key": lambda: stream.key_by(stops).count(),
        "key": lambda: stream.key_by(stops).reduce(max),
        "partitioner": lambda: stream.partition_custom(lambda n, _: stops(n) and 0).map(str),
        "timestamps": lambda: timed(stream, stops),
        "map_async": lambda: stream.map_async(stops_async),
        "for_each": lambda: stream,
    }[place]()
    if place == "for_each":
        stream.for_each(stops)
    else:
        stream.sink_to(sink)
    error = failure(env, hg.UserCodeError)
    assert "StopIteration" in str(error)


@pytest.mark.spec("K6")
@pytest.mark.parametrize("text", ["bad \udcff name", "x" * 3_000_000, "\U0001f600" * 300_000, "\x00", ""], ids=len)
def test_an_error_of_any_text_arrives(text):
    env = small_env(2)
    env.from_collection(range(5)).map(raises(text)).name("culprit").for_each(lambda _: None)
    error = failure(env, hg.UserCodeError)
    assert error.operator == "culprit"
    assert len(str(error)) < 1_000_000


@pytest.mark.spec("K6")
def test_an_error_whose_str_raises_fails_the_job_with_its_class():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    def mute(_):
        raise Mute

    env = small_env(1)
    env.from_collection(range(5)).map(mute).name("culprit").for_each(lambda _: None)
    error = failure(env, hg.UserCodeError)
    assert "Mute" in str(error)


@pytest.mark.spec("K6")
def test_the_cause_of_the_users_error_is_shown():
    def wraps(_):
        try:
            bang()
        except ValueError as error:
            raise KeyError("outer") from error

    env = small_env(1)
    env.from_collection(range(5)).map(wraps).name("culprit").for_each(lambda _: None)
    error = failure(env, hg.UserCodeError)
    assert "KeyError: 'outer'" in error.trace
    assert f"ValueError: {TEXT}" in error.trace
    assert "in bang" in error.trace


@pytest.mark.spec("K6")
@pytest.mark.parametrize("second", ["close", "source close", "sink close"])
def test_the_first_failure_is_the_cause(second, caplog):
    env = small_env(1)
    stream = env.from_source(FailingSource("close") if second == "source close" else Batches([[1], [2], [3]]))
    stream = stream.map(Fails("map", "close") if second == "close" else Fails("map")).name("culprit")
    stream.sink_to(FailingSink("close" if second == "sink close" else ""))
    error = failure(env, hg.UserCodeError)
    assert str(error).startswith(f"culprit, subtask 0: ValueError: {TEXT} in map\n")


@pytest.mark.spec("K6")
def test_a_headgate_error_of_the_users_own_names_the_place_too():
    def refuse(_):
        raise hg.ConfigError("not with me")

    env = small_env(1)
    env.from_collection(range(5)).map(refuse).name("culprit").for_each(lambda _: None)
    error = failure(env)
    assert "not with me" in str(error)
    assert "culprit" in str(error)


class Picky(Serializer):
    """Writes and reads numbers, but not 7."""

    name = "picky"

    def __init__(self, fails_in="encode"):
        self.fails_in = fails_in

    def encode(self, value):
        if value == 7 and self.fails_in == "encode":
            raise ValueError(TEXT)
        return str(value).encode()

    def decode(self, data):
        value = int(bytes(data))
        if value == 7 and self.fails_in == "decode":
            raise ValueError(TEXT)
        return value


@pytest.mark.spec("K6", "M9")
@pytest.mark.parametrize("fails_in", ["encode", "decode"])
@pytest.mark.parametrize("timeout", ["auto", "0", "1 ms", "-1"])
def test_a_serializer_that_raises(fails_in, timeout):
    env = small_env(2, execution__buffer_timeout=timeout)
    env.register_serializer("picky", Picky(fails_in))
    stream = env.from_collection(range(100)).map(lambda n: n, output_type="picky").name("culprit").rebalance()
    stream.map(lambda n: n).name("victim").for_each(lambda _: None)
    error = failure(env)
    assert TEXT in str(error)
    assert ("culprit" if fails_in == "encode" else "victim") in str(error), "it names the operator"


@pytest.mark.spec("K6", "M9")
@pytest.mark.parametrize("value", [threading.Lock(), lambda: 1], ids=["lock", "lambda"])
def test_the_error_of_an_unserializable_value_names_the_operator(value):
    env = small_env(2)
    env.from_collection(range(9)).map(lambda _: value).name("culprit").rebalance().for_each(lambda _: None)
    error = failure(env)
    assert "culprit" in str(error)
    assert "pickle" in str(error)


@pytest.mark.spec("K6", "W2")
def test_a_key_that_cannot_be_hashed_alike_everywhere_names_the_operator():
    env = small_env(2)
    env.from_collection(range(9)).name("culprit").key_by(lambda n: [n]).count().for_each(lambda _: None)
    error = failure(env)
    assert "culprit" in str(error)
    assert "use a tuple" in str(error)


@pytest.mark.spec("K6")
def test_a_failure_in_the_driver_is_like_any_other():
    class InDriver(FailingSink):
        in_driver = True

    env = small_env(2)
    env.from_source(Endless()).sink_to(InDriver("write")).name("culprit")
    assert_told(failure(env), function="_in")


@pytest.mark.spec("K6")
def test_collected_results_before_a_failure_are_returned_before_it_is_raised():
    def late(n):
        if n == 900:
            raise ValueError(TEXT)
        return n

    results = small_env(1).generate(late, count=2000).execute_and_collect()
    got = []
    with pytest.raises(hg.UserCodeError, match=TEXT):
        got.extend(results)
    assert got == list(range(len(got)))


@pytest.mark.spec("K6", "M9")
def test_the_next_job_is_not_bothered():
    env = small_env(2)
    stream = env.from_collection(range(50))
    stream.rebalance().map(bang).for_each(lambda _: None)
    failure(env, hg.UserCodeError)
    sink = Gathered()
    stream.rebalance().map(lambda n: -n).sink_to(sink)
    run(env)
    assert sorted(sink.values) == list(range(-49, 1))
