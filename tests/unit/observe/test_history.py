"""The history of intervals: any order of reports, and steps compared with a simple model."""

import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.reports import SubtaskInterval, SubtaskReport
from headgate.observe.history import History
from headgate.observe.timeline import Timeline

LENGTH = 100
FIELDS = SubtaskInterval.__struct_fields__
SUMMED = ("records_in", "records_out")
SHARES = ("busy", "idle", "back_pressured")
POOLS = ("in_pool", "out_pool")


def state(busy=0, idle=0, held=0, came=0, went=0, queued=0, backlog=0, pools=(0, 0)):
    return SubtaskInterval(busy, idle, held, came, went, queued, backlog, *pools)


def of(vertex, subtask, end_ms, *states):
    return SubtaskReport(vertex=vertex, subtask=subtask, intervals=list(states), intervals_end_ms=end_ms)


class Kept(History):
    """A history whose driver's clock is the test's."""

    def __init__(self, tasks, keep_ms=60_000, **more):
        self.ms = 0
        super().__init__(tasks, interval_ms=LENGTH, keep_ms=keep_ms, now_ms=lambda: self.ms, **more)

    def tell(self, at_ms, *reports, worker=0):
        self.ms = max(self.ms, at_ms)
        self.put(worker, at_ms, reports)

    def line(self, subtask=-1, *, vertex=0, seconds=60.0, points=600):
        found = self.timeline(seconds=seconds, points=points, vertex=vertex)
        return found, next(one for one in found.tasks if one.subtask == subtask)


def test_without_reports_the_timeline_is_empty():
    history = Kept({0: 2})
    for found in (history.timeline(seconds=10, points=10), history.full()):
        assert (found.steps, found.tasks) == (0, ())
        assert found.step_ms > 0
    history.tell(5000, of(0, 0, 0))
    assert history.timeline(seconds=10, points=10).steps == 0


@pytest.mark.spec("B2")
def test_intervals_are_at_their_time():
    history = Kept({0: 2, 1: 1})
    history.tell(
        10_350,
        of(0, 0, 10_300, state(busy=900), state(busy=800), state(busy=700)),
        of(0, 1, 10_300, state(busy=100), state(busy=300)),
        of(1, 0, 10_300, state(idle=1000), state(idle=1000), state(idle=1000)),
    )
    found, line = history.line(0)
    assert (found.start_ms, found.step_ms, found.steps) == (10_000, 100, 3)
    assert [(one.vertex, one.subtask) for one in found.tasks] == [(0, -1), (0, 0), (0, 1)]
    assert line.busy == (900, 800, 700)
    assert history.line(1)[1].busy == (-1, 100, 300), "nothing is known of the first"
    assert history.line(-1)[1].busy == (900, 450, 500), "the mean of those that are known"
    everybody = history.timeline(seconds=60, points=600)
    assert [(one.vertex, one.subtask) for one in everybody.tasks] == [(0, -1), (1, -1)]
    assert everybody.tasks[1].idle == (1000, 1000, 1000)


@pytest.mark.spec("B2")
def test_steps_are_means_sums_and_maxima():
    history = Kept({0: 1})
    history.tell(
        10_400,
        of(
            0,
            0,
            10_400,
            state(busy=1000, came=5, went=7, queued=2, backlog=0, pools=(100, 900)),
            state(idle=1000, came=6, went=1, queued=1, backlog=9, pools=(300, 100)),
            state(busy=251, idle=749, came=1),
            state(busy=250, idle=750, came=2),
        ),
    )
    found, line = history.line(0, seconds=0.4, points=2)
    assert (found.start_ms, found.step_ms, found.steps) == (10_000, 200, 2)
    assert (line.busy, line.idle) == ((500, 251), (500, 750)), "halves up"
    assert (line.records_in, line.records_out) == ((11, 3), (8, 0))
    assert (line.in_queued, line.backlog) == ((2, 0), (9, 0))
    assert (line.in_pool, line.out_pool) == ((300, 0), (900, 0))


def test_queues_of_a_vertex_are_summed_before_the_maximum():
    history = Kept({0: 2})
    history.tell(
        10_200,
        of(0, 0, 10_200, state(queued=5, pools=(1000, 0)), state(queued=0)),
        of(0, 1, 10_200, state(queued=0), state(queued=4, pools=(500, 0))),
    )
    _, line = history.line(-1, seconds=0.2, points=1)
    assert (line.in_queued, line.in_pool) == ((5,), (500,)), "not nine, which there never were"


@pytest.mark.spec("B2")
@pytest.mark.parametrize("keep_ms", [60_000, 3_000], ids=["long", "as long as asked"])
def test_a_step_is_the_same_in_every_timeline(keep_ms):
    history = Kept({0: 1}, keep_ms)
    seen = {}
    for at_ms in range(20_000, 30_000, 300):
        history.tell(at_ms + 37, of(0, 0, at_ms, *[state(busy=at_ms // 100 % 97, came=at_ms % 7)] * 3))
        found = history.timeline(seconds=3, points=7)
        assert found.step_ms == 500
        assert found.start_ms % 500 == 0
        assert found.steps <= 7
        for step in range(found.steps):
            figures = tuple(getattr(found.tasks[0], name)[step] for name in FIELDS)
            begin_ms = found.start_ms + step * found.step_ms
            assert seen.setdefault(begin_ms, figures) == figures
    assert max(seen) == 29_000, "the last is not over"


def test_an_incomplete_step_is_shown_if_it_is_the_only_one():
    history = Kept({0: 1})
    history.tell(20_250, of(0, 0, 20_200, state(busy=1000, came=4)))
    found = history.timeline(seconds=60, points=3)
    assert (found.start_ms, found.step_ms, found.steps) == (20_000, 20_000, 1)
    assert found.tasks[0].records_in == (4,)


def test_after_the_end_of_tasks_the_last_step_is_shown():
    history = Kept({0: 1})
    history.tell(20_150, of(0, 0, 20_200, *[state(busy=1000, came=1)] * 8))
    assert sum(history.timeline(seconds=60, points=600).tasks[0].records_in) == 7
    assert sum(history.timeline(seconds=60, points=600, over=True).tasks[0].records_in) == 8
    found = history.timeline(seconds=60, points=120, over=True)
    assert (found.start_ms, found.steps, found.tasks[0].records_in) == (19_000, 3, (1, 5, 2))


def test_late_and_repeated_intervals_have_their_slot_and_old_ones_are_dropped():
    history = Kept({0: 2}, keep_ms=1000)
    history.tell(10_000, of(0, 0, 10_000, *[state(busy=n) for n in range(10)]), worker=0)
    history.tell(9_800, of(0, 1, 9_800, state(busy=77), state(busy=78)), worker=1)
    history.tell(10_000, of(0, 0, 9_900, state(busy=500)), worker=0)
    found, line = history.line(0)
    assert (found.start_ms, line.busy) == (9_000, (0, 1, 2, 3, 4, 5, 6, 7)), "one of them is behind by 200 ms"
    assert history.line(1)[1].busy == (-1, -1, -1, -1, -1, -1, 77, 78)
    history.tell(10_010, of(0, 1, 10_000), worker=1)
    assert history.line(0)[1].busy == (0, 1, 2, 3, 4, 5, 6, 7, 500, 9)
    history.tell(10_510, of(0, 0, 10_500, *[state(busy=600)] * 5), worker=0)
    history.tell(10_520, of(0, 1, 9_500, state(busy=9), state(busy=9)), worker=1)  # longer ago than the ring
    history.tell(10_530, of(0, 1, 9_600, state(busy=9), state(busy=44)), worker=1)
    found, line = history.line(0)
    assert (found.start_ms, line.busy) == (9_500, (5, 6, 7, 500, 9, 600, 600, 600, 600, 600))
    assert history.line(1)[1].busy == (44, 77, 78) + (-1,) * 7


def test_a_gap_clears_the_slots_it_passes():
    history = Kept({0: 1}, keep_ms=1000)
    history.tell(10_000, of(0, 0, 10_000, *[state(busy=1)] * 10))
    history.tell(10_700, of(0, 0, 10_700, state(busy=2)))
    assert history.line(0)[1].busy == (1, 1, 1, -1, -1, -1, -1, -1, -1, 2)
    history.tell(30_000, of(0, 0, 30_000, state(busy=3)))
    assert history.line(0)[1].busy == (-1,) * 9 + (3,)


def test_the_timeline_ends_at_the_slowest_worker_within_a_limit():
    history = Kept({0: 2})
    for at_ms in range(10_000, 16_000, 1000):
        history.tell(at_ms + 50, of(0, 0, at_ms, *[state(busy=9)] * 10), worker=0)
        if at_ms <= 12_000:
            history.tell(at_ms - 320, of(0, 1, at_ms - 400, *[state(busy=5)] * 10), worker=1)
        found = history.timeline(seconds=60, points=600)
        end_ms = found.start_ms + found.steps * found.step_ms
        assert end_ms == (min(at_ms, 12_000) - 400 if at_ms <= 14_000 else at_ms)


@pytest.mark.parametrize("ahead_ms", [-3_600_000, -400, 0, 700, 86_400_000])
def test_a_clock_that_differs_much_is_corrected(ahead_ms):
    history = Kept({0: 2})
    right, wrong = 100_000_000, 100_000_000 + ahead_ms
    history.ms = right
    history.put(0, right, [of(0, 0, right, *[state(busy=1)] * 5)])
    history.put(1, wrong, [of(0, 1, wrong, *[state(busy=2)] * 5)])
    history.ms = right + 1000
    history.put(0, right + 1000, [of(0, 0, right + 1000, *[state(busy=1)] * 10)])
    history.put(1, wrong + 1000, [of(0, 1, wrong + 1000, *[state(busy=2)] * 10)])
    found = history.timeline(seconds=60, points=600, vertex=0)
    slightly = min(0, ahead_ms) if abs(ahead_ms) < 10_000 else 0
    assert found.start_ms + found.steps * found.step_ms == right + 1000 + slightly
    assert [one.busy.count(2) > 5 for one in found.tasks if one.subtask == 1] == [True]


def test_a_clock_that_was_set_right_is_not_corrected():
    history = Kept({0: 1})
    for now_ms, at_ms in [(1_000_000, 7_000_000), (1_001_000, 7_001_000), (1_002_000, 1_002_000)]:
        history.ms = now_ms
        history.put(0, at_ms, [of(0, 0, at_ms, *[state(busy=at_ms // 1_000_000)] * 10)])
    found, line = history.line(0)
    assert (found.start_ms, found.steps) == (999_000, 30)
    assert line.busy == (7,) * 20 + (1,) * 10


def test_intervals_without_a_time_end_at_the_report():
    history = Kept({0: 1})
    history.tell(10_050, of(0, 0, 0, state(busy=1), state(busy=2)))
    found, line = history.line(0)
    assert (found.start_ms, line.busy) == (9_800, (1, 2))


def test_intervals_in_the_future_are_dropped():
    history = Kept({0: 1})
    history.tell(10_050, of(0, 0, 10_000, state(busy=1)))
    history.tell(10_150, of(0, 0, 50_000, state(busy=2)))
    history.tell(10_250, of(0, 0, 10_300, state(busy=3)))  # of a task that ended in this moment
    assert history.full().tasks[0].busy == (1, -1, -1, 3)


def test_figures_are_limited_to_their_range():
    history = Kept({0: 1})
    history.tell(10_100, of(0, 0, 10_100, SubtaskInterval(-5, 2000, 2**64 - 1, 2**63, -1, 2**40, 0, -2, 1001)))
    _, line = history.line(0)
    assert (line.busy, line.idle, line.back_pressured) == ((0,), (1000,), (1000,))
    assert (line.records_in, line.records_out, line.in_queued) == ((2**32 - 2,), (0,), (2**32 - 2,))
    assert (line.in_pool, line.out_pool) == ((0,), (1000,))


@pytest.mark.parametrize(
    ("seconds", "points", "vertex"), [(0, 10, None), (-1, 10, 0), (float("nan"), 1, 0), (1, 0, 0), (1, 1, 7)]
)
def test_invalid_arguments_are_refused(seconds, points, vertex):
    history = Kept({0: 1})
    history.tell(10_100, of(0, 0, 10_100, state()))
    with pytest.raises(ValueError, match=r"both must be positive|no vertex 7"):
        history.timeline(seconds=seconds, points=points, vertex=vertex)


@pytest.mark.parametrize("seconds", [1e-9, 1e300, float("inf")])
def test_any_positive_duration_is_valid(seconds):
    history = Kept({0: 1}, keep_ms=1000)
    history.tell(10_000, of(0, 0, 10_000, *[state(busy=4)] * 30))
    assert set(history.timeline(seconds=seconds, points=3).tasks[0].busy) == {4}


def test_memory_is_limited_and_a_shorter_history_is_logged_once(caplog):
    with caplog.at_level(logging.WARNING):
        history = Kept({0: 50, 1: 50}, keep_ms=600_000, max_bytes=28 * 100 * 20)
    assert caplog.messages == ["100 tasks: 2 s of history are kept, not 600 s (metrics.history, metrics.interval)"]
    caplog.clear()
    for at_ms in range(10_000, 20_000, 1000):
        history.tell(at_ms, *[of(n // 50, n % 50, at_ms, *[state(busy=n)] * 10) for n in range(100)])
    assert history.timeline(seconds=600, points=6000).steps == 20
    assert caplog.messages == []
    assert history._shares.nbytes + history._counts.nbytes <= 28 * 100 * 20


def test_the_whole_history_fits_into_a_file():
    history = Kept({0: 4, 1: 2}, keep_ms=600_000)
    for at_ms in range(10_000, 610_000, 10_000):
        states = [state(busy=123, idle=877, came=12345, went=678)] * 100
        history.tell(at_ms, *[of(vertex, n, at_ms, *states) for vertex in (0, 1) for n in range(4 - 2 * vertex)])
    whole = history.full()
    assert (whole.steps, whole.step_ms, len(whole.tasks)) == (6000, 100, 8)
    assert sum(whole.tasks[1].records_in) == 12345 * 6000
    coarse = history.full(max_bytes=100_000)
    assert len(msgspec.json.encode(coarse)) <= 100_000
    assert len(coarse.tasks) == 8
    assert 100 < coarse.steps < 6000
    assert sum(coarse.tasks[1].records_in) == 12345 * 6000
    vertices = history.full(max_bytes=10_000)
    assert len(msgspec.json.encode(vertices)) <= 10_000
    assert [(one.vertex, one.subtask) for one in vertices.tasks] == [(0, -1), (1, -1)]
    assert sum(vertices.tasks[0].records_in) == 4 * 12345 * 6000
    assert history.full(max_bytes=1).steps == 1


# The model: dicts of lists, and what the documentation says.


def naive(cells, first, last, per_step, vertex, subtasks):
    """A line of `Timeline` for steps from `first` on, by cells (vertex, subtask, moment): SubtaskInterval."""
    found = {name: [] for name in FIELDS}
    for step in range(first, last):
        moments = range(step * per_step, (step + 1) * per_step)
        known = [[cells[vertex, n, m] for n in subtasks if (vertex, n, m) in cells] for m in moments]
        known = [some for some in known if some]
        each = [one for some in known for one in some]
        for name in FIELDS:
            values = [getattr(one, name) for one in each]
            if not each:
                figure = -1
            elif name in SUMMED:
                figure = sum(values)
            elif name in SHARES:
                figure = (2 * sum(values) + len(values)) // (2 * len(values))
            else:
                at_once = [[getattr(one, name) for one in some] for some in known]
                if name in POOLS:
                    figure = max((2 * sum(some) + len(some)) // (2 * len(some)) for some in at_once)
                else:
                    figure = max(map(sum, at_once))
            found[name].append(figure)
    return {name: tuple(figures) for name, figures in found.items()}


permille = st.integers(0, 1000)
count = st.integers(0, 10**6)
states = st.builds(SubtaskInterval, permille, permille, permille, count, count, count, count, permille, permille)
puts = st.tuples(
    st.sampled_from([(0, 0), (0, 1), (0, 2), (1, 0)]),
    st.integers(0, 60),  # the moment that its states end at, after the beginning
    st.lists(states, min_size=1, max_size=12),
)
BEGIN = 170_000


@settings(max_examples=80, deadline=None)
@given(st.lists(puts, min_size=1, max_size=12), st.integers(1, 40), st.integers(1, 70), st.integers(1, 40))
def test_steps_equal_those_of_the_model(puts, size, moments, points):
    history = Kept({0: 3, 1: 1}, keep_ms=size * LENGTH)
    cells, newest = {}, -1
    for (vertex, subtask), after, some in puts:
        end = BEGIN + after
        history.tell((BEGIN + 61) * LENGTH, of(vertex, subtask, end * LENGTH, *some))
        newest = max(newest, end - 1)
        for n, one in enumerate(some):
            cells[vertex, subtask, end - len(some) + n] = one
        cells = {which: one for which, one in cells.items() if which[2] > newest - size}
    for vertex in (None, 0, 1):
        found = history.timeline(seconds=moments * LENGTH / 1000, points=points, vertex=vertex)
        check(found, cells, vertex, points)
        assert found.steps * found.step_ms <= (min(moments, size) + found.step_ms // LENGTH) * LENGTH
    whole = history.full()
    check(whole, cells, None, 10**6)
    oldest = min(which[2] for which in cells)
    assert whole.start_ms <= oldest * LENGTH or whole.start_ms == 0
    assert whole.start_ms + whole.steps * whole.step_ms == (newest + 1) * LENGTH


def check(found: Timeline, cells, vertex, points):
    assert 0 < found.steps <= points
    per_step = found.step_ms // LENGTH
    assert found.step_ms == per_step * LENGTH
    assert found.start_ms % found.step_ms == 0
    first = found.start_ms // found.step_ms
    for line in found.tasks:
        subtasks = range(3) if line.subtask == -1 else [line.subtask]
        model = naive(cells, first, first + found.steps, per_step, line.vertex, subtasks)
        assert {name: getattr(line, name) for name in FIELDS} == model
    wanted = {0: 3, 1: 1}
    if vertex is not None:
        assert [one.subtask for one in found.tasks] == [-1, *range(wanted[vertex])]
