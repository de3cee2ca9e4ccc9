"""What is read out of a stack: whose operator, which of the user's functions, and at which line."""

import asyncio
import gc
import inspect
import string
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from tests.support.waiting import wait_until

from headgate.control.reports import MAX_FRAMES, MAX_STACKS
from headgate.errors import Cancelled
from headgate.meters import Activity
from headgate.task.operators.async_map import MapAsync
from headgate.task.operators.basic import FlatMap, Map
from headgate.task.runtime.chain import Chain
from headgate.testing.harness import OperatorHarness
from headgate.worker.stack_sampling import OTHERS, StackCounts

HERE = "test_stack_counts.py"


class Looking:
    """A chain of operators whose functions can look at the stack of the thread that they run in."""

    def __init__(self, *operators, name="op"):
        for number, operator in enumerate(operators):
            place = OperatorHarness(operator).operator.place
            operator.place = replace(place, operator=f"{name}{number}")
        reads = [None, *[(number, None) for number in range(len(operators) - 1)]]
        self.chain = Chain(operators, reads)
        self.stacks = StackCounts(operators)

    def look(self, state=Activity.BUSY):
        self.stacks.add(threading.get_ident(), sys._current_frames(), state)

    def run(self, *values):
        self.chain.open()
        with suppress(Cancelled):
            self.chain.head.process(list(values), None)
        self.chain.close()
        return self.answer()

    def answer(self, max_bytes=100_000):
        return self.stacks.samples(0, 0, max_bytes=max_bytes)


def line_of(function, text):
    """The number of the line of a function in which this stands."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return found


def test_the_function_and_the_line_that_is_executed_are_named():
    def slow(value):
        total = value
        looking.look()  # here
        return total

    looking = Looking(Map(slow))
    (seen,) = looking.run(1).stacks
    # The line is that of the call in `slow`; `look` itself is the test's.
    assert (seen.operator, seen.count) == ("op0", 1)
    assert seen.frames[0] == f"slow ({HERE}:{line_of(slow, '# here')})"
    assert seen.frames[1].startswith("Looking.look (")


def test_of_two_operators_of_one_class_the_innermost_is_named():
    def first(value):
        looking.look()
        return value

    def second(value):
        looking.look()
        return value

    looking = Looking(Map(first), Map(second))
    seen = {one.operator: one.frames[0].split()[0] for one in looking.run(1).stacks}
    assert seen == {"op0": "first", "op1": "second"}


def test_a_called_function_is_below_its_caller():
    def outer(value):
        return inner(value)

    def inner(value):
        looking.look()
        return [value]

    looking = Looking(FlatMap(outer))
    assert [frame.split()[0] for frame in looking.run(1).stacks[0].frames[:2]] == ["outer", "inner"]


def test_a_method_is_named_with_its_class_and_a_function_in_a_function_without():
    class Step:
        def __call__(self, value):
            looking.look()
            return value

    looking = Looking(Map(Step()))
    assert looking.run(1).stacks[0].frames[0].startswith("Step.__call__ (")


def test_library_code_is_the_users_where_the_user_has_called_it_or_given_it():
    class Given(string.Template):
        """Its `substitute` is the library's, and calls back."""

        def __init__(self):
            super().__init__("$x")

    class Words(dict):
        def __getitem__(self, key):
            looking.look()
            return "be"

    def calls(value):
        return Given().substitute(value)

    looking = Looking(Map(calls), Map(lambda text: Words()), Map(Given().substitute))
    called, given = looking.run(Words()).stacks
    assert [one.split()[0] for one in called.frames][:2] == ["calls", "Template.substitute"]
    assert given.operator == "op2"
    assert given.frames[0].startswith("Template.substitute (string.py:")


def test_a_context_manager_of_the_users_is_not_taken_for_one_of_an_operators():
    class Opens:
        __name__ = "opens"

        def __call__(self):
            looking.look()
            return (one for one in [1])

    opened = contextmanager(Opens())  # its code is that of every context manager, an operator's too

    def slow(value):
        with opened():
            pass
        return value

    looking = Looking(Map(slow))
    names = [one.split()[0] for one in looking.run(1).stacks[0].frames]
    assert names[0] == "slow"
    assert "Opens.__call__" in names


def test_library_code_that_headgate_calls_for_itself_is_not_the_users():
    class Costly:
        def __deepcopy__(self, memo):
            looking.look()
            return self

    looking = Looking(Map(lambda value: looking and value))  # it could keep what it returns
    seen = looking.run([Costly()]).stacks[0]
    assert [one.split()[0] for one in seen.frames] == ["Costly.__deepcopy__", "Looking.look"], "without copy.deepcopy"


def without_this_file(looking, monkeypatch):
    """Let the looking itself, which is the test's, not be seen."""
    walk = looking.stacks._walk

    def walk_around(frame):
        operator, steps = walk(frame)
        return operator, [one for one in steps if one.code.file != HERE]

    monkeypatch.setattr(looking.stacks, "_walk", walk_around)


def test_without_a_function_of_the_users_headgates_own_is_named(monkeypatch):
    globals_ = {"__name__": "headgate.record.pretended"}
    exec("def serialize(look):\n    look()\n", globals_)
    looking = Looking(Map(globals_["serialize"]))
    without_this_file(looking, monkeypatch)
    assert looking.run(looking.look).stacks[0].frames == ("serialize (headgate)",)


def test_a_function_that_is_not_python_is_called_built_in(monkeypatch):
    class Word(str):
        __slots__ = ()

        def __hash__(self):
            looking.look()
            return 1

    looking = Looking(Map(hash))
    without_this_file(looking, monkeypatch)
    assert looking.run(Word("to")).stacks[0].frames == ("built-in function",)


@pytest.mark.parametrize(
    ("state", "frame"),
    [
        (Activity.IDLE, "waits for input (headgate)"),
        (Activity.BACK_PRESSURED, "waits for a buffer (headgate)"),
    ],
)
def test_samples_of_a_waiting_task_are_counted_by_state(state, frame):
    stacks, over = StackCounts([]), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        for each in (state, Activity.BUSY, state):
            stacks.add(thread.ident, sys._current_frames(), each)
    finally:
        over.set()
        thread.join()
    answer = stacks.samples(3, 1, max_bytes=1000)
    assert (answer.vertex, answer.subtask, answer.taken) == (3, 1, 3)
    counts = {Activity.IDLE: answer.idle, Activity.BACK_PRESSURED: answer.back_pressured}
    assert counts[state] == 2
    assert sum(counts.values()) == 2


def test_a_loop_without_an_operator_is_the_heads():
    def read():
        looking.look()
        yield [1]

    looking = Looking(Map(len))
    globals_ = {"__name__": "headgate.task.runtime.loop"}
    exec("def run(reading):\n    return next(reading)\n", globals_)
    globals_["run"](read())
    (seen,) = looking.answer().stacks
    assert seen.operator == "op0"
    assert seen.frames[0].startswith("read (")


def test_stacks_beyond_the_limit_are_counted_as_others():
    functions = {}
    for number in range(MAX_STACKS + 20):
        exec(f"def f{number}(look): look()", functions)
    looking = Looking(Map(lambda number: functions[f"f{number}"](looking.look)))
    answer = looking.run(*range(MAX_STACKS + 20))
    assert len(answer.stacks) == MAX_STACKS
    assert sum(one.count for one in answer.stacks) == answer.taken == MAX_STACKS + 20
    assert answer.stacks[-1].frames == (OTHERS,)
    assert answer.stacks[-1].count == 21


def test_stacks_beyond_the_size_limit_are_counted_as_others():
    functions = {}
    for number in range(50):
        exec(f"def {'f' * 100}{number}(look): look()", functions)
    looking = Looking(Map(lambda number: functions[f"{'f' * 100}{number}"](looking.look)))
    looking.run(*range(50), 7, 7)
    answer = looking.answer(max_bytes=2000)
    assert 1 < len(answer.stacks) < 20
    assert f"{'f' * 100}7" in answer.stacks[0].frames[1], "the most frequent is not left out"
    assert sum(one.count for one in answer.stacks) == answer.taken == 52
    assert looking.answer(max_bytes=0).stacks[0].frames == (OTHERS,)


def test_of_a_deep_stack_both_ends_are_kept():
    def deep(n):
        return deep(n - 1) if n else bottom()

    def bottom():
        looking.look()

    looking = Looking(Map(deep))
    frames = looking.run(300).stacks[0].frames
    assert len(frames) == MAX_FRAMES
    assert frames[0].startswith("deep (")
    assert frames[MAX_FRAMES // 2] == "..."
    assert [one.split()[0] for one in frames[-2:]] == ["bottom", "Looking.look"]


def test_names_can_be_sent_whatever_is_in_them():
    def odd(value):
        looking.look()
        return value

    nasty = "\ud800" + "x" * 1000 + "\n"
    odd.__code__ = odd.__code__.replace(co_qualname=nasty, co_filename="/home/\n\x1b[31m.py")
    looking = Looking(Map(odd), name="\udfff\n")
    (seen,) = looking.run(1).stacks
    for text in (seen.operator, *seen.frames):
        assert text.isprintable()
        assert len(text) < 300
        text.encode()


def test_nothing_of_the_stack_is_kept():
    class Held:
        pass

    def slow(value):
        local = Held()
        held.append(weakref.ref(local))
        looking.look()
        return [local]

    looking, held = Looking(Map(slow), Map(len)), []
    gc.disable()
    try:
        looking.run(1)
        assert held[0]() is None
    finally:
        gc.enable()


@contextmanager
def waiting_for(coroutine):
    """An operator that waits for a coroutine, and a function that says which frames it is seen in."""
    operator = MapAsync(coroutine, capacity=1)
    looking = Looking(operator)
    task = threading.Thread(target=looking.run, args=(1, 2), daemon=True)
    task.start()

    def frames():
        looking.stacks.add(task.ident, sys._current_frames(), Activity.WAITING)
        answer = looking.answer()
        assert (answer.idle, answer.back_pressured) == (0, 0), "these are other waits"
        return {frame for one in answer.stacks for frame in one.frames}

    try:
        yield frames
    finally:
        operator.cancel()
        task.join(30)
        assert not task.is_alive()


def test_an_operator_that_waits_for_coroutines_is_where_they_are():
    async def look_up(value):
        await asyncio.sleep(30)  # here
        return value

    wanted = f"look_up ({HERE}:{line_of(look_up, '# here')})"
    with waiting_for(look_up) as frames:
        wait_until(lambda: wanted in frames(), "the coroutine that waits")


def test_a_coroutine_that_blocks_its_loop_is_named():
    leave = threading.Event()

    async def blocks(value):
        leave.wait(30)  # here
        return value

    wanted = f"blocks ({HERE}:{line_of(blocks, '# here')})"
    with waiting_for(blocks) as frames:
        wait_until(lambda: wanted in frames(), "the coroutine that blocks")
        leave.set()
