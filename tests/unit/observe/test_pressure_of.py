"""From workers' samples to levels and flame graphs."""

import msgspec
import pytest

from headgate.control.reports import Stack, StackSamples, SubtaskSamples
from headgate.observe import Pressure, PressureLevel, level_of, pressure_of
from headgate.observe.flame import Flame, Flames, flames_of


def stack(operator, frames, count, idle=0, back_pressured=0):
    return Stack(operator=operator, frames=tuple(frames), count=count, idle=idle, back_pressured=back_pressured)


def samples(vertex, subtask, back_pressured, taken=100, idle=0, stacks=()):
    return SubtaskSamples(vertex, subtask, taken, idle, back_pressured, list(stacks))


def made(*subtasks):
    return pressure_of([StackSamples(1, [one]) for one in subtasks], at_ms=5, samples=100, delay_ms=50)


@pytest.mark.spec("B1")
@pytest.mark.parametrize(
    ("back_pressured", "level"),
    [
        (0, PressureLevel.OK),
        (10, PressureLevel.OK),
        (11, PressureLevel.LOW),
        (50, PressureLevel.LOW),
        (51, PressureLevel.HIGH),
        (100, PressureLevel.HIGH),
    ],
)
def test_the_ratio_is_the_share_of_back_pressured_samples(back_pressured, level):
    (vertex,) = made(samples(0, 0, back_pressured)).vertices
    assert vertex.ratio == vertex.subtasks[0].ratio == back_pressured / 100
    assert vertex.level is vertex.subtasks[0].level is level is level_of(back_pressured / 100)


def test_a_vertex_has_the_level_of_its_worst_task():
    found = made(samples(3, 1, 5), samples(0, 2, 60), samples(3, 0, 20, idle=50), samples(0, 0, 0, taken=0))
    assert [(one.vertex, one.ratio, one.level) for one in found.vertices] == [
        (0, 0.6, PressureLevel.HIGH),
        (3, 0.2, PressureLevel.LOW),
    ]
    assert [(one.subtask, one.idle) for one in found.vertices[1].subtasks] == [(0, 0.5), (1, 0.0)]
    assert [one.subtask for one in found.vertices[0].subtasks] == [2], "of the other nothing was seen"
    assert (found.at_ms, found.samples, found.delay_ms) == (5, 100, 50)


def test_the_most_frequent_stack_is_the_first():
    stacks = [stack("map", ["a"], 1), stack("map", ["b"], 9, 2, 3)]
    (task,) = made(samples(0, 0, 3, stacks=stacks)).vertices[0].subtasks
    assert [(one.frames, one.count, one.idle, one.back_pressured) for one in task.stacks] == [
        (("b",), 9, 2, 3),
        (("a",), 1, 0, 0),
    ]


def test_it_can_be_written_and_read_back():
    found = made(samples(0, 0, 3, stacks=[stack("map", ["a (b.py:1)"], 9, 2, 3)]))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Pressure) == found


def names(flame):
    return {flame.name: (flame.value, [names(one) for one in flame.children])}


def test_flames_are_functions_below_operators_by_state():
    first = [
        stack("map(slow)", ["slow (job.py:7)", "parse (job.py:3)"], 50),
        stack("map(slow)", ["slow (job.py:7)"], 20),
        stack("key_by", ["key (job.py:9)"], 10),
        stack("key_by", ["waits for a buffer (headgate)"], 15, 0, 15),
    ]
    second = [stack("map(slow)", ["slow (job.py:7)", "parse (job.py:3)"], 40, 4, 6)]
    (vertex,) = made(samples(0, 0, 15, stacks=first), samples(0, 1, 6, idle=4, stacks=second)).vertices
    flames = flames_of(vertex)
    assert flames.vertex == 0
    parse = {"parse (job.py:3)": (80, [])}
    assert names(flames.busy) == {
        "busy": (
            110,
            [
                {"map(slow)": (100, [{"slow (job.py:7)": (100, [parse])}])},
                {"key_by": (10, [{"key (job.py:9)": (10, [])}])},
            ],
        )
    }
    assert (flames.idle.value, flames.back_pressured.value) == (4, 21)
    assert [one.name for one in flames.back_pressured.children] == ["key_by", "map(slow)"], "the widest first"
    only = flames_of(vertex, subtask=1)
    assert only.busy.value == 30
    assert flames_of(vertex, subtask=7).busy == Flame(name="busy", value=0)


def test_a_value_is_the_sum_of_its_children_and_its_own_samples():
    stacks = [stack("a", ["f"] * depth, depth) for depth in range(1, 64)] + [stack("", ["others"], 3)]
    (vertex,) = made(samples(0, 0, 0, taken=10_000, stacks=stacks)).vertices
    flames = flames_of(vertex)

    def check(flame):
        assert flame.value >= sum(one.value for one in flame.children)
        return flame.value - sum(one.value for one in flame.children) + sum(check(one) for one in flame.children)

    assert check(flames.busy) == flames.busy.value == sum(range(1, 64)) + 3
    assert flames.busy.children[1].name == "no operator"
    assert msgspec.json.decode(msgspec.json.encode(flames), type=Flames) == flames
