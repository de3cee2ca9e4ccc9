"""The answers of `why`, rule by rule, for views made by hand."""

from dataclasses import replace

import pytest
from tests.support.diagnosed_jobs import channel, connection, job, past, samples, task, vertex

from headgate.config import Settings
from headgate.control.messages import TaskState
from headgate.graph.plan import ChainedOperator, Exchange, Plan, Ship, ShipKind, Vertex
from headgate.ids import JobId
from headgate.observe import (
    Cause,
    Diagnosis,
    JobStatus,
    graph_view,
)
from headgate.observe.why import diagnose, render
from headgate.task.operators.basic import PassOn

SLOW = "slow (job.py:7)"


def source(*tasks, **more):
    return vertex("rate", *(tasks or [task(0.05, 0.95)]), source=True, **more)


def work(name="map(slow)", busy=0.98, cpu=0.95, tasks=1, **more):
    return vertex(name, *[task(busy, cpu=cpu) for _ in range(tasks)], **more)


def idle_sink(name="for_each(keep)", **more):
    return vertex(name, task(0.05, cpu=0.02), sink=True, ends=(name.split(" -> ")[-1],), **more)


def why(view, timelines=(), stacks=None):
    found = diagnose(view, timelines, None if stacks is None else samples(stacks))
    assert found.at_ms == view.at_ms
    return found


def text_of(found):
    return " | ".join([found.summary, *found.evidence, found.advice])


# Jobs without figures.


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELLED])
def test_a_job_that_is_over_has_no_bottleneck(status):
    found = why(job(source(), work(), status=status))
    assert found.cause is Cause.NONE
    assert str(status) in found.summary
    assert found.vertex is None


@pytest.mark.parametrize(
    "young",
    [
        job(source(), work(), uptime_s=0.4),
        job(source(state=TaskState.DEPLOYED), work(state=TaskState.CREATED)),
        job(vertex("rate", task(idle=0.0), source=True)),  # no report yet
    ],
)
def test_a_job_that_has_just_started_has_no_answer_yet(young):
    found = why(young)
    assert found.cause is Cause.NONE
    assert "too early" in found.summary


# A vertex that works.


def test_a_busy_task_on_a_cpu_while_others_wait_for_it():
    found = why(job(source(), work(), idle_sink()), stacks={(1, 0): [("map(slow)", ["outer (job.py:3)", SLOW], 90)]})
    assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.CPU, 1, "map(slow)", 0)
    assert found.function == SLOW
    assert SLOW in found.summary
    assert "rate before it waits for an output buffer 95 % of the time" in found.evidence
    assert "90 of 90 samples" in text_of(found)
    assert "set_parallelism(2) after map(slow)" in found.advice


def test_if_all_subtasks_are_busy_none_is_named():
    found = why(job(source(), work(tasks=3), idle_sink()))
    assert (found.cause, found.subtask) == (Cause.CPU, None)
    assert "all 3 subtasks are busy 98 %" in text_of(found)


def test_samples_decide_which_operator_of_a_chain_is_named():
    chain = work("map(a) -> map(b)")
    stacks = {
        (1, 0): [("map(a)", ["a (job.py:1)"], 20), ("map(b)", ["b (job.py:2)"], 50), ("map(b)", ["b (job.py:3)"], 30)]
    }
    found = why(job(source(), chain, idle_sink()), stacks=stacks)
    assert (found.operator, found.function) == ("map(b)", "b (job.py:2)")
    assert "80 of 100 samples" in text_of(found), "all lines of the function"


def test_without_samples_a_chain_is_named_as_a_whole():
    found = why(job(source(), work("map(a) -> map(b)"), idle_sink()))
    assert (found.operator, found.function) == ("map(a) -> map(b)", None)


def test_the_line_is_in_the_users_file_where_a_library_is_called():
    frames = ["look_up (job.py:12)", "fetch (job.py:30)", "urlopen (request.py:215)", "readinto (socket.py:718)"]
    found = why(job(source(), work(), idle_sink()), stacks={(1, 0): [("map(look_up)", frames, 90)]})
    assert found.function == "fetch (job.py:30)"


def test_work_of_headgate_itself_is_not_the_users_function():
    stacks = {(1, 0): [("map(f)", ["RecordReader.read (headgate)"], 80), ("map(f)", ["f (job.py:1)"], 20)]}
    found = why(job(source(), work("map(f)"), idle_sink()), stacks=stacks)
    assert (found.cause, found.operator, found.function) == (Cause.CPU, "map(f)", None)
    assert "80 in headgate's own code" in text_of(found)
    assert "to_arrow" in found.advice


def test_samples_that_wait_are_not_work():
    pressure = samples({(1, 0): [("map(a)", ["waits for input (headgate)"], 90), ("map(b)", ["b (job.py:1)"], 10)]})
    one = pressure.vertices[0].subtasks[0]
    idle = replace(one, stacks=(replace(one.stacks[0], idle=90), one.stacks[1]))
    pressure = replace(pressure, vertices=(replace(pressure.vertices[0], subtasks=(idle,)),))
    assert diagnose(job(source(), work("map(a) -> map(b)"), idle_sink()), (), pressure).operator == "map(b)"


def test_the_most_downstream_vertex_that_works_is_the_bottleneck():
    held = vertex("map(a)", task(0.3, 0.7))
    found = why(job(source(), held, work("map(b)"), idle_sink()))
    assert (found.cause, found.operator) == (Cause.CPU, "map(b)")


def test_of_two_busy_vertices_the_more_downstream_one_is_the_bottleneck():
    held = vertex("map(b)", task(0.1, 0.9))
    found = why(job(source(), work("map(a)"), held, work("map(c)"), idle_sink()))
    assert (found.cause, found.operator) == (Cause.CPU, "map(c)")


def test_a_back_pressured_vertex_is_not_the_bottleneck_however_busy():
    busy_and_held = vertex("map(a)", task(0.55, 0.4, worker=0))
    idle = vertex("map(b)", task(0.05, worker=1), sink=True)
    found = why(job(source(), busy_and_held, idle))
    assert (found.cause, found.vertex, found.exchange) == (Cause.BUFFERS, 1, 1)


def test_an_idle_branch_is_not_the_bottleneck_if_another_explains_the_back_pressure():
    held, beyond = vertex("map(a)", task(0.05, 0.9, worker=0)), vertex("map(b)", task(0.05, worker=1))
    edges = [(0, 1, "hash"), (1, 2, "hash"), (0, 3, "hash"), (2, 3, "hash")]
    found = why(job(source(), held, beyond, idle_sink(), edges=edges))
    assert (found.cause, found.vertex, found.exchange) == (Cause.BUFFERS, 1, 1)


def test_an_idle_branch_does_not_hide_the_bottleneck():
    edges = [(0, 1, "hash"), (0, 2, "hash")]
    for branches in ([work(), idle_sink()], [idle_sink(), work()]):
        found = why(job(source(), *branches, edges=edges))
        assert (found.cause, found.operator) == (Cause.CPU, "map(slow)")


def test_a_task_neither_on_a_cpu_nor_in_the_run_queue_waits():
    found = why(job(source(), work(cpu=0.02), idle_sink()), stacks={(1, 0): [("map(slow)", [SLOW], 90)]})
    assert (found.cause, found.operator, found.function) == (Cause.WAITING, "map(slow)", SLOW)
    assert "of its busy time it is on a CPU 2 %, waiting 98 %" in text_of(found)
    assert "map_async(..., capacity=100)" in found.advice


def test_a_task_in_the_run_queue_does_not_wait():
    busy = vertex("map(slow)", task(0.98, cpu=0.2, run_queue=0.75))
    found = why(job(source(), busy, idle_sink()))
    assert found.cause is Cause.CPU
    assert "in the run queue 77 %" in text_of(found)
    assert "its machine has more runnable threads than CPUs" in found.advice


def test_other_threads_that_leave_the_interpreter_free_do_not_explain_waiting():
    workers = [{"number": 0, "cpu": 0.5}]
    assert why(job(source(), work(cpu=0.02), idle_sink(), workers=workers)).cause is Cause.WAITING


def test_without_a_known_run_queue_a_shared_cpu_is_not_taken_for_waiting():
    def found(cpu):
        return why(job(source(), vertex("map(slow)", task(0.98, cpu=cpu, run_queue=None)), idle_sink())).cause

    assert (found(0.4), found(0.05)) == (Cause.CPU, Cause.WAITING)


def test_a_waiting_task_is_in_the_run_queue_after_each_wait_on_a_busy_machine():
    slow = vertex("map(slow)", *[task(0.98, cpu=0.01, run_queue=0.5, worker=number) for number in range(2)])
    workers = [{"number": number, "pid": 7, "cpu": 0.02} for number in range(2)]
    found = why(job(source(), slow, idle_sink(), workers=workers))
    assert found.cause is Cause.WAITING
    assert "in the run queue 51 %, waiting 48 %" in text_of(found)
    works = vertex("map(slow)", task(0.98, cpu=0.1, run_queue=0.68))
    assert why(job(source(), works, idle_sink())).cause is Cause.CPU, "too little is left for an answer"


def test_more_capacity_is_the_advice_for_map_async():
    found = why(job(source(), work("map_async(look_up)", cpu=0.02), idle_sink()))
    assert found.cause is Cause.WAITING
    assert "capacity" in found.advice


@pytest.mark.parametrize("cpu", [0.04, None])
def test_an_operator_that_waits_for_its_coroutines_is_named(cpu):
    """Neither its exchange nor the next vertex, which are idle, too."""
    waits = vertex("map_async(look_up)", task(0.05, idle=0.0, waiting=0.95, cpu=cpu))
    steps = [(0.05, 0.0, 0.95)] * 10
    for pasts in ([], [past(0, [(0.1, 0.9)] * 10), past(1, steps), past(2, [(0.0, 0.0)] * 10)]):
        found = why(job(source(), waits, idle_sink()), pasts)
        assert (found.cause, found.operator) == (Cause.WAITING, "map_async(look_up)")
        assert "capacity" in found.advice
        assert "it is busy 5 % of the time, waiting for coroutines 95 %, and back-pressured 0 %" in text_of(found)
        if cpu is not None:
            assert "of that time it is on a CPU 4 %, waiting 96 %" in text_of(found)


def test_without_thread_cpu_times_the_process_decides():
    blind = vertex("map(slow)", task(0.98, cpu=None, run_queue=None))
    idle, full = [{"number": 0, "cpu": 0.1}], [{"number": 0, "cpu": 1.0}]
    assert why(job(source(), blind, idle_sink(), workers=idle)).cause is Cause.WAITING
    assert why(job(source(), blind, idle_sink(), workers=full)).cause is Cause.CPU
    unknown = why(job(source(), blind, idle_sink(), workers=[{"number": 0}]))
    assert unknown.cause is Cause.CPU
    assert "does not report" in text_of(unknown)


def test_a_task_behind_other_threads_of_its_process_has_the_cause_cpu():
    # Three tasks in one process, which uses one CPU: each is on it a third of the time.
    busy = vertex("map(slow)", *[task(0.98, cpu=0.33) for _ in range(3)])
    workers = [{"number": number, "pid": 7, "cpu": 1.0} for number in range(3)]
    found = why(job(source(), busy, idle_sink(), workers=workers))
    assert found.cause is Cause.CPU
    assert "behind other threads" in text_of(found)
    assert "its process uses 1.0 CPUs in all" in text_of(found)
    assert "4 other tasks are in the same" in text_of(found), "the source and the sink are, too"
    assert "every worker has a process of its own" in found.advice
    own = [{"number": number, "pid": 7 + number, "cpu": 0.34} for number in range(3)]
    assert why(job(source(), busy, idle_sink(), workers=own)).cause is Cause.WAITING


def test_a_process_in_the_run_queue_is_not_taken_for_a_waiting_one():
    # The same on a machine with too few CPUs: the thread with the interpreter is in the run queue.
    busy = vertex("map(slow)", *[task(0.98, cpu=0.2, run_queue=0.3) for _ in range(2)])
    workers = [{"number": number, "pid": 7, "cpu": 0.4} for number in range(2)]
    assert why(job(source(), busy, idle_sink(), workers=workers)).cause is Cause.CPU


def test_a_sink_that_waits():
    name = "for_each(post)"
    slow = vertex(name, task(0.97, cpu=0.01), sink=True, ends=(name,))
    held = vertex("map(f)", task(0.1, 0.9))
    found = why(job(source(), held, slow), stacks={(2, 0): [(name, ["post (job.py:9)"], 100)]})
    assert (found.cause, found.operator, found.function) == (Cause.SINK, name, "post (job.py:9)")
    assert "waits for what it writes to" in found.summary
    assert "with one call" in found.advice


def test_a_sink_that_computes():
    found = why(job(source(), work("for_each(f)", sink=True, ends=("for_each(f)",))))
    assert (found.cause, found.vertex) == (Cause.SINK, 1)
    assert "works as fast as it can" in found.summary


def test_a_sink_in_the_driver_is_better_written_by_workers():
    slow = vertex("print", task(0.97, cpu=0.01), sink=True, ends=("print",), in_driver=True)
    assert "in the workers" in why(job(source(), slow)).advice


def test_samples_distinguish_a_sink_from_the_rest_of_its_chain():
    chain = work("map(f) -> Files", sink=True, ends=("Files",))
    first = why(job(source(), chain), stacks={(1, 0): [("map(f)", ["f (job.py:1)"], 50)]})
    last = why(job(source(), chain), stacks={(1, 0): [("Files", ["write (job.py:1)"], 50)]})
    assert (first.cause, last.cause) == (Cause.CPU, Cause.SINK)


def test_the_ends_of_a_graph_are_operators_without_a_reader():
    def chained(number, name, reads=None):
        return ChainedOperator(number, name, PassOn, reads=reads)

    # words -> upper -> { Files, exchange -> count }: of the first vertex, Files is an end and upper is not.
    first = (chained(0, "words"), chained(1, "upper", 0), chained(2, "Files", 1))
    vertices = (Vertex(0, "first", 1, 128, first, inputs=0), Vertex(1, "count", 1, 128, (chained(3, "count"),)))
    exchange = Exchange(0, producer=0, operator=1, consumer=1, ship=Ship(ShipKind.FORWARD))
    plan = Plan(JobId("1"), "job", vertices, (exchange,), workers=1, settings=Settings())
    assert [one.ends for one in graph_view(plan).vertices] == [("Files",), ("count",)]


# One task of a vertex.


def uneven(ship="hash", records=(900, 50, 50), keys=(), busy=(0.98, 0.1, 0.1)):
    tasks = [task(share, cpu=share, records_in=n, records_in_per_s=n) for share, n in zip(busy, records, strict=True)]
    return job(
        source(hot_keys=keys), vertex("reduce(add)", *tasks), idle_sink(), edges=[(0, 1, ship), (1, 2, "forward")]
    )


def test_a_hot_key_is_named_with_its_share():
    found = why(uneven(keys=[(0, "'london'", 0.85), (0, "'paris'", 0.06)]))
    assert (found.cause, found.operator, found.subtask, found.exchange) == (Cause.HOT_KEY, "reduce(add)", 0, 0)
    assert (found.key, found.share) == ("'london'", 0.85)
    assert "90 % of the records" in text_of(found)
    assert "'london'" in found.advice


def test_a_key_that_does_not_explain_the_load_is_not_hot():
    found = why(uneven(keys=[(0, "'london'", 0.08)]))
    assert (found.cause, found.subtask, found.key) == (Cause.SKEW, 0, None)
    assert "no single key" in text_of(found)


def test_a_key_with_a_small_share_is_not_hot_even_if_it_explains_a_small_difference():
    view = uneven(records=(660, 340), busy=(0.98, 0.3), keys=[(0, "'london'", 0.09)])
    assert why(view).cause is Cause.SKEW


def test_a_hot_key_of_another_exchange_is_not_the_cause():
    assert why(uneven(keys=[(7, "'london'", 0.85)])).cause is Cause.SKEW


def test_a_hot_key_is_not_the_cause_if_all_subtasks_are_busy():
    view = uneven(busy=(0.98, 0.95, 0.95), keys=[(0, "'london'", 0.85)])
    assert why(view).cause is Cause.CPU


@pytest.mark.parametrize(
    ("ship", "advice"), [("custom", "partition_custom"), ("forward", "rebalance()"), ("global", "global_()")]
)
def test_skew_of_exchanges_without_keys(ship, advice):
    found = why(uneven(ship))
    assert (found.cause, found.operator, found.subtask, found.exchange) == (Cause.SKEW, "reduce(add)", 0, 0)
    assert "90 % of the records" in found.summary
    assert advice in found.advice


def test_a_task_that_is_busier_with_no_more_records_is_slow_and_not_skewed():
    found = why(uneven(records=(100, 100, 100)))
    assert (found.cause, found.subtask) == (Cause.CPU, 0)
    assert "the others 10 %" in text_of(found)


def test_a_task_in_one_long_batch_counts_with_its_total_records():
    view = uneven(records=(900, 50, 50))
    tasks = [replace(one, records_in_per_s=0.0) for one in view.progress.vertices[1].subtasks]
    vertices = list(view.progress.vertices)
    vertices[1] = replace(vertices[1], subtasks=tuple(tasks))
    assert why(replace(view, progress=replace(view.progress, vertices=tuple(vertices)))).cause is Cause.SKEW


# Exchanges.


def two(producer=None, consumer=None, *, connections=(), cpu=0.1, pids=(1, 2), more=(), settings=()):
    first = vertex("rate", task(0.05, 0.9, idle=0.05, **{"worker": 0, **(producer or {})}), source=True)
    second = vertex("map(f)", task(0.05, **{"worker": 1, **(consumer or {})}), sink=True, ends=("map(f)",))
    workers = [
        {"number": 0, "pid": pids[0], "cpu": cpu, "connections": tuple(connections)},
        {"number": 1, "pid": pids[1], "cpu": cpu},
    ]
    for number, fields in more:
        workers[number].update(fields)
    return job(first, second, workers=workers, settings=settings)


def test_a_full_socket_is_the_limit_of_the_network():
    found = why(two(connections=[connection(1, blocked=0.8, bytes_out_per_s=1e6, waiting_bytes=70_000)]))
    assert (found.cause, found.vertex, found.operator, found.exchange) == (Cause.NETWORK, 0, "rate", 0)
    assert "from worker 0 to worker 1 carries 1.0 MB/s" in text_of(found)
    assert "accepts no bytes 80 %" in text_of(found)


def test_unsent_bytes_of_the_kernel_are_the_limit_of_the_network():
    assert why(two(connections=[connection(1, unsent_bytes=400_000)])).cause is Cause.NETWORK
    assert why(two(connections=[connection(1, unsent_bytes=10)])).cause is Cause.BUFFERS


def test_a_full_socket_to_another_worker_is_not_the_cause():
    assert why(two(connections=[connection(5, blocked=0.9)])).cause is Cause.BUFFERS


def test_a_send_buffer_that_is_set_too_small_is_named():
    view = two(connections=[connection(1, blocked=0.8)], settings=[("network.send_buffer", "4 KiB")])
    assert "network.send_buffer" in why(view).advice


def test_too_few_credits_for_the_round_trip():
    channels = (channel(backlog=7, credit=1),)
    view = two(
        consumer={"channels": channels, "bytes_in_per_s": 40_960},
        connections=[connection(1, round_trip_ms=99.0)],
        settings=[
            ("memory.segment_size", "4 KiB"),
            ("network.buffers_per_channel", "1"),
            ("network.floating_buffers_per_gate", "0"),
        ],
    )
    found = why(view)
    assert (found.cause, found.vertex, found.operator, found.exchange) == (Cause.BUFFERS, 0, "rate", 0)
    assert "7 buffers wait at the producers" in text_of(found)
    assert "a round trip of up to 100 ms" in text_of(found)
    assert "round trip of 99.0 ms" in text_of(found)
    assert "network.buffers_per_channel = 10" in found.advice, "it waits nine tenths of the time"


def test_a_worker_without_buffers():
    view = two(more=[(0, {"segments_total": 64, "segments_free": 0})])
    found = why(view)
    assert found.cause is Cause.BUFFERS
    assert "memory.network.min" in found.advice


def test_too_few_buffers_in_one_worker():
    first = vertex("rate", task(0.1, 0.6, worker=0), source=True)
    second = vertex("map(f)", task(0.2, worker=0, channels=(channel(local=True),)), sink=True)
    found = why(job(first, second))
    assert found.cause is Cause.BUFFERS
    assert "network.max_buffers_per_channel = 20" in found.advice


def test_two_ends_in_one_full_process_alternate():
    found = why(two(cpu=1.0, pids=(1, 1), consumer={}, connections=[connection(1, blocked=0.8)]))
    assert (found.cause, found.exchange) == (Cause.CPU, 0)
    assert "share one process" in found.summary
    assert why(two(cpu=0.2, pids=(1, 1))).cause is Cause.BUFFERS
    queued = two({"run_queue": 0.5}, {"run_queue": 0.5}, cpu=0.2, pids=(1, 1))
    assert why(queued).cause is Cause.BUFFERS, "runnable often, with little work"


# No task is back-pressured.


def test_a_source_without_records_to_read():
    found = why(job(vertex("ticks", task(0.02), source=True), work(busy=0.05), idle_sink()))
    assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.SOURCE, 0, "ticks", 0)
    assert "98 %" in text_of(found)


def test_a_source_that_is_busy_all_the_time_is_the_limit_itself():
    busy = vertex("numbers -> map(f)", task(0.99, cpu=0.97), source=True)
    frames = {(0, 0): [("numbers", ["Numbers.read (job.py:4)"], 90)]}
    found = why(job(busy, idle_sink()), stacks=frames)
    assert (found.cause, found.operator, found.function) == (Cause.CPU, "numbers", "Numbers.read (job.py:4)")
    waits = vertex("numbers -> map(f)", task(0.99, cpu=0.01), source=True)
    found = why(job(waits, idle_sink()), stacks=frames)
    assert (found.cause, found.operator) == (Cause.WAITING, "numbers")
    assert "read()" in found.advice


def test_samples_decide_in_a_job_of_one_task():
    alone = vertex("rate -> map(f) -> Files", task(0.99, cpu=0.97), source=True, sink=True, ends=("Files",))
    slow_map = why(job(alone), stacks={(0, 0): [("map(f)", ["f (job.py:1)"], 90)]})
    slow_sink = why(job(alone), stacks={(0, 0): [("Files", ["write (job.py:1)"], 90)]})
    assert (slow_map.cause, slow_map.operator) == (Cause.CPU, "map(f)")
    assert (slow_sink.cause, slow_sink.operator) == (Cause.SINK, "Files")


def test_a_saturated_vertex_that_no_task_waits_for_yet():
    found = why(job(vertex("rate", task(0.3), source=True), work(), idle_sink()))
    assert (found.cause, found.operator) == (Cause.CPU, "map(slow)")
    assert "yet" in found.summary


def test_a_job_without_a_bottleneck():
    found = why(job(vertex("rate", task(0.6), source=True), work(busy=0.6), idle_sink()))
    assert (found.cause, found.vertex) == (Cause.NONE, None)
    assert "no bottleneck" in found.summary
    assert "60 %" in text_of(found)


@pytest.mark.parametrize(
    ("reads", "works"),
    [
        (task(0.1), 0.6),  # the source is idle, and another task is busy
        (task(0.45, 0.15), 0.1),  # the source is busy itself
    ],
)
def test_an_idle_source_is_the_limit_only_if_all_tasks_are_idle(reads, works):
    found = why(job(vertex("rate", reads, source=True), work(busy=works), idle_sink()))
    assert (found.cause, found.vertex) == (Cause.NONE, None)


def test_a_source_without_readers_is_no_sink():
    alone = vertex("numbers", task(0.99, cpu=0.97), source=True, sink=True, ends=("numbers",))
    assert why(job(alone)).cause is Cause.CPU


def test_a_source_that_is_over_does_not_count():
    ended = vertex("words", task(idle=0.0, state=TaskState.FINISHED), source=True, state=TaskState.FINISHED)
    assert why(job(ended, work(busy=0.2), idle_sink())).cause is Cause.NONE
    assert why(job(ended, work(), idle_sink())).cause is Cause.CPU


# The past.


def timelines(first, second, third):
    return [past(0, first), past(1, second), past(2, third)]


def test_alternating_vertices_are_distinguished_by_steps():
    # On average both are half busy, and their producer is back-pressured; in each step one is the cause.
    phases = [("a", 20), ("b", 12)] * 2
    first, second, third = [], [], []
    for which, steps in phases:
        first += [(0.0, 1.0)] * steps
        second += [(1.0, 0.0) if which == "a" else (0.0, 1.0)] * steps
        third += [(0.0, 0.0) if which == "a" else (1.0, 0.0)] * steps
    view = job(source(), work("map(a)", busy=0.6), work("map(b)", busy=0.4))
    found = why(view, timelines(first, second, third))
    assert (found.cause, found.operator) == (Cause.CPU, "map(a)")
    alternation = "while a task is back-pressured, it is the slowest 62 % of the time, map(b) 38 %"
    assert alternation in text_of(found)


def test_the_past_outweighs_the_last_report():
    steps = 30
    quiet = job(vertex("rate", task(0.1), source=True), work(busy=0.1), idle_sink())
    held = timelines([(0.1, 0.9)] * steps, [(0.95, 0.0)] * steps, [(0.0, 0.0)] * steps)
    found = why(quiet, held)
    assert (found.cause, found.operator) == (Cause.CPU, "map(slow)")


def test_a_burst_is_not_back_pressure():
    calm, burst = [(0.1, 0.0)] * 40, [(0.1, 0.9)] * 8
    view = job(vertex("rate", task(0.1), source=True), work(busy=0.1), idle_sink())
    found = why(view, timelines(calm + burst, [(0.1, 0.0)] * 40 + [(1.0, 0.0)] * 8, [(0.0, 0.0)] * 48))
    assert found.cause is Cause.SOURCE


def test_only_the_last_seconds_count():
    long_ago, now = [(0.0, 1.0)] * 200, [(0.05, 0.0)] * 100
    view = job(vertex("rate", task(0.05), source=True), work(busy=0.1), idle_sink())
    found = why(view, timelines(long_ago + now, [(1.0, 0.0)] * 200 + now, [(0.0, 0.0)] * 300))
    assert found.cause is Cause.SOURCE


def test_incomplete_steps_have_no_vote():
    first = [(0.1, 0.9)] * 20 + [None] * 60
    view = job(source(), work(busy=0.95), idle_sink())
    found = why(view, timelines(first, [(0.95, 0.0)] * 80, [(0.0, 0.0)] * 80))
    assert (found.cause, found.operator) == (Cause.CPU, "map(slow)")
    assert "and the rest of the pipeline waits for it" in found.summary


def test_a_vertex_without_a_past_counts_with_its_last_report():
    view = job(source(), work(), idle_sink())
    found = why(view, [past(0, [(0.1, 0.9)] * 20), past(2, [(0.0, 0.0)] * 20)])
    assert (found.cause, found.operator, found.exchange) == (Cause.CPU, "map(slow)", None)


def test_a_past_that_ended_long_before_the_others_does_not_count():
    view = job(source(), work(), idle_sink())
    lines = [past(0, [(0.1, 0.9)] * 20), past(1, [(0.0, 0.0)] * 20, start_ms=-60_000), past(2, [(0.0, 0.0)] * 20)]
    found = why(view, lines)
    assert (found.cause, found.operator, found.exchange) == (Cause.CPU, "map(slow)", None)
    assert "busy 98 %" in text_of(found)


# Text.


def test_the_text_has_all_fields():
    text = render(why(uneven(keys=[(0, "'london'", 0.85)])))
    lines = text.splitlines()
    assert lines[0] == "cause:    hot-key"
    assert lines[1] == "where:    reduce(add), subtask 0"
    assert "key:      'london', 85 % of the records" in lines
    assert any(line.startswith("  - ") for line in lines)
    assert any(line.startswith("try: ") for line in lines)
    assert max(map(len, lines)) <= 100


def test_names_cannot_contain_terminal_commands():
    nasty = "map(\x1b[2J\n\x9b31m)"
    found = why(job(source(), work(nasty), idle_sink()))
    assert found.cause is Cause.CPU
    assert all(one.isprintable() or one == "\n" for one in render(found))
    assert r"map(\x1b[2J\n\x9b31m)" in render(found)


def test_an_answer_without_advice_ends_with_its_evidence():
    assert (
        render(Diagnosis(cause=Cause.NONE, summary="it is over")) == "cause:    none\nwhere:    the job\n\nit is over."
    )


# Through disk.


def test_an_exchange_through_disk_blocks_no_producer():
    """The producer waits, but not for the consumer, which runs in a later stage."""
    view = job(source(), vertex("map(slow)", task(0.1, cpu=0.1), sink=True))
    assert why(view).cause in {Cause.BUFFERS, Cause.NETWORK}, "in memory it would"
    edges = tuple(replace(one, blocking=True) for one in view.graph.edges)
    found = why(replace(view, graph=replace(view.graph, edges=edges)))
    assert found.cause not in {Cause.BUFFERS, Cause.NETWORK}, found
    assert "exchange" not in text_of(found)


def test_the_graph_marks_exchanges_through_disk():
    vertices = tuple(Vertex(number, name, 1, 128, ()) for number, name in enumerate(["words", "count"]))
    by_word = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.HASH), blocking=True)
    plan = Plan(JobId("1"), "etl", vertices, (by_word,), workers=1, settings=Settings(), batch=True)
    assert graph_view(plan).edges[0].blocking
