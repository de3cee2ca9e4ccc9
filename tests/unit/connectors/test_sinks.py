"""Print, collect, for each, memory: what they do with batches, and that copies of them go to the same place."""

import copy
import io
import logging
import pickle
import subprocess
import sys

import pytest

from headgate.connectors.collect import CollectSink, MemorySink
from headgate.connectors.for_each import ForEachSink
from headgate.connectors.print import PrintSink
from headgate.errors import ConfigError, UserCodeError
from headgate.functions.basic import Function, MapFunction
from headgate.functions.place import Place
from headgate.task.operators.basic import SinkOperator
from headgate.testing.harness import OperatorHarness

COPIES = [copy.copy, copy.deepcopy, lambda sink: pickle.loads(pickle.dumps(sink))]


def place(subtask=0, parallelism=1):
    return Place("sink", subtask, parallelism, 128, lambda: 0, logging.getLogger("headgate.user"))


class Results(list):
    def put_batch(self, values):
        self.append(values)


@pytest.mark.parametrize(
    ("prefix", "subtask", "parallelism", "begin"),
    [(None, 0, 1, ""), ("out", 0, 1, "out> "), (None, 1, 3, "2> "), ("out", 1, 3, "out:2> ")],
)
def test_print(prefix, subtask, parallelism, begin):
    stream = io.StringIO()
    sink = PrintSink(prefix, stream=stream)
    sink.open(place(subtask, parallelism))
    sink.write(["to", 2])
    sink.finish()
    sink.close()
    assert stream.getvalue() == f"{begin}to\n{begin}2\n"


def test_print_writes_to_the_stdout_of_the_time_of_writing(capsys):
    sink = PrintSink()
    sink.open(place())
    sink.write(["to be"])
    sink.flush()
    assert capsys.readouterr().out == "to be\n"


@pytest.mark.parametrize(("limit", "text"), [(0, "... and 3 more\n"), (2, "1\n2\n... and 1 more\n"), (3, "1\n2\n3\n")])
def test_print_with_a_limit(limit, text):
    stream = io.StringIO()
    sink = PrintSink(limit=limit, stream=stream)
    sink.open(place())
    for value in (1, 2, 3):
        sink.write([value])
    sink.finish()
    assert stream.getvalue() == text


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigError, match="limit is -1"):
        PrintSink(limit=-1)


@pytest.mark.parametrize("duplicate", COPIES)
def test_copies_print_and_collect_in_the_same_place(duplicate):
    stream, results, memory = io.StringIO(), Results(), MemorySink()
    for sink in (PrintSink(stream=stream), CollectSink(results), memory):
        one = duplicate(duplicate(sink))
        one.open(place())
        one.write(["to", "be"])
        one.finish()
    assert stream.getvalue() == "to\nbe\n"
    assert results == [["to", "be"]]
    assert (memory.values, memory.finished) == (["to", "be"], 1)


def test_in_another_process_nothing_is_kept_silently():
    sinks = [PrintSink(stream=io.StringIO()), CollectSink(Results()), MemorySink()]
    code = """
import pickle, sys
printing, *others = pickle.loads(sys.stdin.buffer.read())
printing.write(["printed"])
for sink in others:
    try:
        sink.write([1])
    except Exception as error:
        print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(sinks), stdout=subprocess.PIPE, timeout=60, check=True
    )
    printed, collect, memory = run.stdout.decode().splitlines()
    assert printed == "printed"
    assert "CollectSink works only in the process" in collect
    assert "MemorySink works only in the process" in memory


def test_which_sinks_are_for_the_driver():
    assert PrintSink.in_driver
    assert CollectSink.in_driver
    assert not getattr(MemorySink, "in_driver", False)
    assert not getattr(ForEachSink, "in_driver", False)


def test_for_each_calls_a_function():
    seen = []
    ForEachSink(seen.append).write([1, 2])
    assert seen == [1, 2]


def test_for_each_opens_and_closes_a_function_object():
    calls = []

    class Keep(Function):
        def open(self, context):
            calls.append(("open", context.subtask_index))

        def __call__(self, value):
            calls.append(value)

        def close(self):
            calls.append("close")

    sink = ForEachSink(Keep())
    sink.open(place(1, 2))
    sink.write(["to"])
    sink.finish()
    sink.close()
    assert calls == [("open", 1), "to", "close"]


def test_for_each_takes_a_map_function_but_nothing_that_cannot_be_called():
    seen = []

    class Keep(MapFunction):
        def map(self, value):
            seen.append(value)

    ForEachSink(Keep()).write([1])
    assert seen == [1]
    with pytest.raises(ConfigError, match="Function cannot be called"):
        ForEachSink(Function())


def test_an_error_of_a_function_names_the_operator():
    raised = pytest.raises(UserCodeError, match="SinkOperator, subtask 0: ZeroDivisionError")
    with OperatorHarness(SinkOperator(ForEachSink(lambda value: 1 / value))) as harness, raised:
        harness.process([0])
