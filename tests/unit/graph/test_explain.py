"""A plan for people."""

import pytest
from tests.support.schedule import Numbers

from headgate.config import Settings, load_settings
from headgate.graph import Chaining, Edge, Ship, ShipKind, StreamGraph, explain_mermaid, explain_text, make_plan
from headgate.ids import JobId
from headgate.record import Serializer
from headgate.task.operators.basic import PassOn

MIB = 2**20


def plan_of(graph, parallelism=2, settings=None, **options):
    return make_plan(
        graph.take(),
        job=JobId("job-1"),
        name="word count",
        parallelism=parallelism,
        settings=settings or Settings(),
        splits=False,
        **options,
    )


def word_count():
    graph = StreamGraph()
    lines = graph.add("lines", PassOn, source=object(), hint=str)
    words = graph.add("words", PassOn, inputs=[Edge(lines)], hint=tuple[str, int])
    count = graph.add("count", PassOn, inputs=[Edge(words, Ship(ShipKind.HASH, key=len))])
    graph.add("print", PassOn, inputs=[Edge(count)], in_driver=True)
    return graph


def test_text():
    assert explain_text(plan_of(word_count()), memory_bytes=MIB) == (
        """\
word count: STREAMING, 3 vertices on 2 workers and in the driver

[0] lines -> words
    parallelism 2, workers 0 to 1

[1] count
    parallelism 2, workers 0 to 1
    <- [0] hash, msgpack:tuple[str, int]

[2] print
    parallelism 1, in the driver
    <- [1] global, pickle

network buffers of 32 KiB that each worker needs, of 32 that it has:
    workers 0, 1: 7 = 3 (lines -> words) + 4 (count)
    driver: 4 = 4 (print)"""
    )


@pytest.mark.spec("M5")
def test_missing_buffers_are_shown_per_worker():
    text = explain_text(plan_of(word_count()), memory_bytes=5 * 32 * 1024)
    assert "of 5 that it has" in text
    assert "workers 0, 1: 7 = 3 (lines -> words) + 4 (count): 2 too few" in text


def test_the_buffers_are_those_of_the_settings():
    settings = load_settings(code={"network.buffers_per_channel": 5, "memory.segment_size": "4 KiB"}, environ={})
    text = explain_text(plan_of(word_count(), settings=settings), memory_bytes=MIB)
    assert "network buffers of 4 KiB that each worker needs, of 256 that it has" in text
    assert "driver: 10 = 10 (print)" in text  # two remote channels with five each


def test_mermaid():
    assert explain_mermaid(plan_of(word_count())).splitlines() == [
        "flowchart LR",
        '    v0(["lines<br/>words<br/><i>x 2</i>"])',
        '    v1["count<br/><i>x 2</i>"]',
        '    v2["print<br/><i>driver</i>"]',
        '    v0 -->|"hash, msgpack:tuple[str, int]"| v1',
        '    v1 -->|"global, pickle"| v2',
    ]


def test_mermaid_keeps_names_from_being_markup():
    graph = StreamGraph()
    graph.add('say "<b>" #1', PassOn, source=object())
    assert "say #quot;#lt;b#gt;#quot; #35;1<br/>" in explain_mermaid(plan_of(graph))


def test_slot_groups():
    graph = StreamGraph()
    lines = graph.add("lines", PassOn, source=object())
    graph.add("model", PassOn, inputs=[Edge(lines)]).slot_group = "gpu"
    plan = plan_of(graph, parallelism=3)
    assert "parallelism 3, workers 3 to 5, slot group gpu" in explain_text(plan, memory_bytes=MIB)
    assert explain_mermaid(plan).splitlines()[-3:] == ['    subgraph g1 ["gpu"]', "        v1", "    end"]


def test_a_chain_that_branches_is_shown_operator_by_operator():
    graph = StreamGraph()
    lines = graph.add("lines", PassOn, source=object())
    graph.add("words", PassOn, inputs=[Edge(lines)])
    graph.add("late", PassOn, inputs=[Edge(lines, tag="late")])
    text = explain_text(plan_of(graph), memory_bytes=MIB)
    assert "    1. lines\n    2. words reads 1\n    3. late reads 1, side output late\n" in text


def test_a_serializer_of_the_users_own_and_a_buffer_timeout():
    class Hex(Serializer[int]):
        def encode(self, value):
            return b"%x" % value

        def decode(self, data):
            return int(bytes(data), 16)

    graph = StreamGraph()
    numbers = graph.add("numbers", PassOn, source=object(), hint="hex")
    graph.add("map", PassOn, inputs=[Edge(numbers, Ship(ShipKind.SHUFFLE))])
    numbers.buffer_timeout = load_settings(code={"execution.buffer_timeout": "5 ms"}).execution.buffer_timeout
    plan = plan_of(graph, serializers={"hex": Hex()})
    assert "<- [0] shuffle, Hex, buffer timeout 5 ms" in explain_text(plan, memory_bytes=MIB)


def test_an_exchange_without_a_serializer_is_shown():
    graph = StreamGraph()
    numbers = graph.add("numbers", PassOn, source=object(), hint="nonesuch")
    graph.add("map", PassOn, inputs=[Edge(numbers, Ship(ShipKind.HASH_COLUMNS, columns=("a", "b")))])
    text = explain_text(plan_of(graph), memory_bytes=MIB)
    assert "hash of a, b, no serializer: no serializer is called 'nonesuch'" in text


@pytest.fixture
def batch_plan():
    graph = StreamGraph()
    lines = graph.add("lines", PassOn, source=Numbers(), hint=str)
    words = graph.add("words", PassOn, inputs=[Edge(lines, Ship(ShipKind.HASH, key=len))], hint=str)
    kept = graph.add("kept", PassOn, inputs=[Edge(words)])
    kept.chaining = Chaining.NEVER
    graph.add("print", PassOn, inputs=[Edge(words)], in_driver=True)
    return plan_of(graph, settings=load_settings(code={"execution.runtime_mode": "AUTO"}, environ={}))


@pytest.mark.spec("T4")
def test_batch_as_text(batch_plan):
    assert explain_text(batch_plan, memory_bytes=8 * MIB) == (
        """\
word count: BATCH (chosen by AUTO), 5 vertices in 4 stages on 2 workers and in the driver

[0] lines
    parallelism 2, workers 0 to 1

[1] words
    parallelism 2, workers 0 to 1
    <- [0] hash, blocking, str

[2] kept
    parallelism 2, workers 0 to 1
    <- [1] forward, str

[3] fetch
    parallelism 1, in the driver
    <- [1] global, blocking, str

[4] print
    parallelism 1, in the driver
    <- [3] forward, blocking, str

stages, of which a worker runs one at a time:
    0: [0]
    1: [1], [2], after 0
    2: [3], after 1
    3: [4], at the end

network buffers of 256 KiB that each worker needs for the largest of its stages, of 32 that it has:
    workers 0, 1: 10 = 8 (words) + 0 (kept) + 2 (reading ahead)
    driver: 8 = 6 (fetch) + 2 (reading ahead)"""
    )


def test_batch_as_mermaid(batch_plan):
    lines = explain_mermaid(batch_plan).splitlines()
    assert lines[:4] == ["---", "title: BATCH (chosen by AUTO)", "---", "flowchart LR"]
    assert '    v0 ==>|"hash, blocking, str"| v1' in lines
    assert '    v1 -->|"forward, str"| v2' in lines
    stages = lines[lines.index('    subgraph s1 ["stage 1"]') :]
    assert stages[1:4] == ["        v1", "        v2", "    end"]
    assert sum(line.startswith("    subgraph s") for line in lines) == 4


def test_streaming_chosen_by_auto_is_shown():
    graph = StreamGraph()
    graph.add("clicks", PassOn, source=Numbers(bounded=False))
    plan = plan_of(graph, settings=load_settings(code={"execution.runtime_mode": "AUTO"}, environ={}))
    assert explain_text(plan, memory_bytes=MIB).startswith(
        "word count: STREAMING (chosen by AUTO), 1 vertex on 2 workers"
    )
