"""The schedule of a job in BATCH, one step at a time."""

import pytest
from tests.support.schedule import Cluster, Numbers, planned, word_count

from headgate.coordinator.schedule import FailureResponse, RegionSchedule
from headgate.graph import Edge, Ship, ShipKind, StreamGraph
from headgate.graph.plan import Partition
from headgate.graph.regions import Region, Regions
from headgate.task.operators.basic import PassOn

IGNORE, RETRY, NEW_ATTEMPT, FAIL_JOB = (
    FailureResponse.IGNORE,
    FailureResponse.RETRY,
    FailureResponse.NEW_ATTEMPT,
    FailureResponse.FAIL_JOB,
)


def cluster_of(plan, attempts=3, host="here"):
    cluster = Cluster(Regions(plan), attempts=attempts)
    cluster.gather([host] * cluster.members)
    return cluster


def finish_all(cluster):
    for worker in list(cluster.running):
        cluster.finish(worker)


def stages(cluster):
    """The stages that are running."""
    return {run.region.stage for run in cluster.running.values()}


@pytest.mark.spec("P6", "T4")
def test_a_consumer_starts_when_its_producers_have_finished():
    cluster = cluster_of(word_count())
    assert len(cluster.start()) == 2
    cluster.finish(0)
    assert cluster.start() == [], "the other half of its input is not there"
    cluster.finish(1)
    starts = cluster.start()
    assert [start.region for start in starts] == [Region(1, 0), Region(1, 1)]
    assert starts[0].places == {Partition(0, 0, 0): 0, Partition(0, 0, 1): 1}


def test_ten_exchanges_run_on_two_workers():
    graph = StreamGraph()
    node = graph.add("source", PassOn, source=Numbers())
    for number in range(10):
        node = graph.add(f"step {number}", PassOn, inputs=[Edge(node, Ship(ShipKind.REBALANCE))])
    cluster = cluster_of(planned(graph))
    for stage in range(11):
        assert len(cluster.start()) == 2
        assert stages(cluster) == {stage}
        finish_all(cluster)
        assert len(cluster.disks["here"]) == (2 if stage < 10 else 0), "only what is still to be read"
    assert cluster.schedule.over


def test_a_sink_in_the_driver_waits_for_everything_else():
    graph = StreamGraph()
    first = graph.add("first", PassOn, source=Numbers())
    graph.add("print", PassOn, inputs=[Edge(first)], in_driver=True)
    slow = graph.add("slow", PassOn, source=Numbers())
    slow.parallelism = 1
    plan = planned(graph, parallelism=1)
    cluster = cluster_of(plan)
    cluster.start()
    cluster.finish(0)
    cluster.start()
    cluster.finish(plan.workers)  # all that is printed has been fetched
    assert [start.region.stage for start in cluster.start()] == []
    assert [run.region.stage for run in cluster.running.values()] == [3]
    finish_all(cluster)
    assert [start.worker for start in cluster.start()] == [plan.workers]


def test_late_stages_go_first_and_sources_in_their_order():
    graph = StreamGraph()
    for name in "ab":
        source = graph.add(name, PassOn, source=Numbers(fed=True))
        graph.add(f"after {name}", PassOn, inputs=[Edge(source, Ship(ShipKind.REBALANCE))])
    cluster = cluster_of(planned(graph, parallelism=1))
    order = []
    while not cluster.schedule.over:
        cluster.start()
        order += stages(cluster)
        finish_all(cluster)
    assert order == [0, 1, 2, 3]


def test_a_run_that_fails_is_tried_again_in_place_up_to_a_limit():
    cluster = cluster_of(word_count(), attempts=3)
    runs = []
    for response in RETRY, RETRY, FAIL_JOB:
        runs += [start.run for start in cluster.start() if start.worker == 0]
        assert cluster.fail(0) is response
    assert runs == [1, 2, 3]
    assert cluster.start() == []
    assert cluster.schedule.exhausted == Region(0, 0)


def test_one_attempt_is_no_second_try():
    cluster = cluster_of(word_count(), attempts=1)
    cluster.start()
    assert cluster.fail(1) is FAIL_JOB


def test_a_region_fed_by_the_host_needs_new_workers_after_a_failure():
    cluster = cluster_of(word_count(fed=True))
    cluster.start()
    cluster.finish(1)
    assert cluster.fail(0) is NEW_ATTEMPT
    cluster.leave()
    cluster.gather(["here", "here"])
    assert cluster.schedule.again == (Region(0, 0), Region(0, 1)), "new workers get it in other portions"
    assert len(cluster.start()) == 2
    finish_all(cluster)
    cluster.start()
    assert cluster.fail(0) is RETRY, "it reads files"


def test_a_sink_in_the_driver_is_not_tried_again():
    plan = word_count(printed=True)
    cluster = cluster_of(plan)
    for _ in range(3):
        cluster.start()
        finish_all(cluster)
    cluster.start()
    assert cluster.schedule.running == {Region(3, 0): 1}
    assert not cluster.schedule.needs(0)
    assert cluster.lose(0) is IGNORE, "all that is printed is in the driver"
    assert cluster.fail(plan.workers) is FAIL_JOB
    assert cluster.schedule.exhausted == Region(3, 0)


def test_the_loss_of_the_driver_while_it_delivers():
    plan = word_count(printed=True)
    cluster = cluster_of(plan)
    for _ in range(3):
        cluster.start()
        finish_all(cluster)
    cluster.start()
    assert cluster.lose(plan.workers) is FAIL_JOB


def test_the_loss_of_the_driver_before_it_delivers():
    plan = word_count(printed=True)
    cluster = cluster_of(plan)
    for _ in range(3):
        cluster.start()
        finish_all(cluster)
    assert cluster.lose(plan.workers) is NEW_ATTEMPT
    cluster.leave()
    cluster.gather(["here"] * 3)
    assert [start.region for start in cluster.start()] == [Region(3, 0)], "it was fetched"


def test_after_a_loss_only_unfinished_regions_are_run():
    cluster = cluster_of(word_count())
    cluster.start()
    finish_all(cluster)
    cluster.start()
    cluster.finish(1)
    assert cluster.lose(0) is NEW_ATTEMPT
    assert cluster.start() == []
    cluster.leave()
    cluster.gather(["here", "here"])
    assert cluster.schedule.again == (Region(1, 0),)
    [start] = cluster.start()
    assert (start.region, start.run) == (Region(1, 0), 2)
    assert start.places == {Partition(0, 0, 0): 0, Partition(0, 0, 1): 1}, "each from its own worker"


def test_a_missing_partition_is_made_again_and_its_readers_are_run_again():
    cluster = cluster_of(word_count())
    cluster.start()
    finish_all(cluster)
    cluster.start()
    cluster.finish(1)
    cluster.lose(0)
    cluster.leave()
    del cluster.disks["here"][Partition(0, 0, 1)]
    cluster.gather(["here", "here"])
    assert cluster.schedule.again == (Region(0, 1), Region(1, 0), Region(1, 1))
    assert cluster.disks["here"].keys() == {Partition(0, 0, 0)}, "what came of the lost version is removed"


def test_an_older_version_on_another_machine_does_not_count():
    cluster = Cluster(Regions(word_count(parallelism=1)))
    for host in "a", "b":
        cluster.gather([host])
        cluster.start()
        cluster.finish(0)
        assert cluster.start()
        assert cluster.lose(0) is NEW_ATTEMPT
        cluster.leave()
    assert cluster.disks["a"].keys() == cluster.disks["b"].keys() == {Partition(0, 0, 0)}
    cluster.gather(["a"])
    assert cluster.disks["a"] == {}, "'b' had the one that counts"
    assert [start.region for start in cluster.start()] == [Region(0, 0)]


def test_a_partition_not_reported_as_finished_is_made_again():
    cluster = cluster_of(word_count(parallelism=1))
    cluster.start()
    cluster.write(0)
    cluster.lose(0)
    cluster.leave()
    cluster.gather(["here"])
    assert cluster.disks["here"] == {}
    assert cluster.schedule.again == (Region(0, 0),)


def test_only_the_worker_of_a_region_removes_a_partition_that_is_written_again():
    """The others of its machine may be slow to do so."""
    cluster = cluster_of(word_count())
    cluster.start()
    cluster.write(1)
    cluster.lose(1)
    renewed = cluster.schedule.renew()
    for worker in 0, 1:
        renewed.found(worker, cluster.disks["here"], host="here")
    assert renewed.begin() == [(1, Partition(0, 0, 1))]


def test_pending_removals_are_done_by_the_workers_of_the_next_attempt():
    cluster = cluster_of(word_count(printed=True))
    for _ in range(2):
        cluster.start()
        finish_all(cluster)
    cluster.start()
    cluster.finish(2, removing=False)
    cluster.lose(2)
    cluster.leave()
    cluster.gather(["here"] * 3)
    assert cluster.disks["here"].keys() == {Partition(2, 0, 0)}


def test_a_partition_made_again_is_removed_at_once_if_the_driver_has_fetched_it():
    graph = StreamGraph()
    words = graph.add("words", PassOn, source=Numbers())
    graph.add("print", PassOn, inputs=[Edge(words)], in_driver=True)
    graph.add("count", PassOn, inputs=[Edge(words, Ship(ShipKind.HASH, key=hash))])
    cluster = cluster_of(planned(graph, parallelism=1))
    cluster.start()
    cluster.finish(0)
    cluster.start()
    cluster.finish(1)  # the driver has all that is printed
    assert cluster.lose(0) is NEW_ATTEMPT
    cluster.leave()
    del cluster.disks["here"][Partition(0, 1, 0)]
    cluster.gather(["here", "here"])
    assert [start.region for start in cluster.start()] == [Region(0, 0)], "the count needs it"
    cluster.finish(0)
    assert cluster.disks["here"].keys() == {Partition(0, 1, 0), Partition(1, 0, 0)}


def test_a_cancelled_run_does_not_count_as_failed():
    cluster = cluster_of(word_count(), attempts=2)
    cluster.start()
    assert cluster.lose(1) is NEW_ATTEMPT
    assert cluster.schedule.failed(Region(0, 0), 1) is IGNORE
    cluster.leave()
    cluster.gather(["here", "here"])
    cluster.start()
    assert cluster.fail(0) is RETRY, "this is the first time"


def test_tries_are_counted_through_attempts():
    cluster = cluster_of(word_count(), attempts=3)
    cluster.start()
    assert cluster.fail(0) is RETRY
    cluster.start()
    assert cluster.lose(0) is NEW_ATTEMPT
    cluster.leave()
    cluster.gather(["here", "here"])
    assert {start.region: start.run for start in cluster.start()} == {Region(0, 0): 3, Region(0, 1): 2}
    assert cluster.lose(0) is FAIL_JOB


@pytest.mark.spec("T4")
def test_attempts_in_which_nothing_ran_do_not_count():
    schedule = RegionSchedule(Regions(word_count()), attempts=3)
    assert schedule.lost(0) is NEW_ATTEMPT
    assert schedule.lost(0) is IGNORE, "it is lost once"
    for _ in range(20):
        assert not schedule.ran
        schedule = schedule.renew()
        assert schedule.lost(1) is NEW_ATTEMPT
    cluster = Cluster(Regions(word_count()))
    cluster.schedule = schedule.renew()
    cluster.gather(["here", "here"])
    cluster.start()
    assert cluster.schedule.ran
    assert cluster.lose(0) is NEW_ATTEMPT, "the first that counts"
    assert not cluster.schedule.renew().ran


def test_attempts_that_end_with_the_loss_of_an_idle_worker_count():
    """Worker 0 has finished its part and waits for worker 1, which runs."""
    cluster = cluster_of(word_count(), attempts=3)
    cluster.start()
    cluster.finish(0)
    for expected in (NEW_ATTEMPT, NEW_ATTEMPT, FAIL_JOB):
        assert cluster.lose(0) is expected
        cluster.leave()
        cluster.gather(["here", "here"])
        assert [start.worker for start in cluster.start()] == [1]


def test_a_worker_is_needed_while_others_read_from_it():
    graph = StreamGraph()
    wide = graph.add("wide", PassOn, source=Numbers())
    graph.add("narrow", PassOn, inputs=[Edge(wide, Ship(ShipKind.GLOBAL))]).parallelism = 1
    cluster = cluster_of(planned(graph))
    cluster.start()
    finish_all(cluster)
    assert cluster.schedule.needs(1), "it has what is read"
    cluster.start()
    cluster.finish(0)
    assert not cluster.schedule.needs(1)
    assert cluster.schedule.over
    assert cluster.lose(1) is IGNORE


def test_unknown_partition_names_are_ignored():
    schedule = RegionSchedule(Regions(word_count()), attempts=3)
    names = [Partition(7, 0, 0), Partition(0, 3, 0), Partition(0, 0, 9), Partition(0, 0, -1), Partition(2, 0, 0)]
    schedule.found(0, names)
    assert schedule.begin() == []
    assert len(schedule.starts()) == 2


def test_unknown_regions_are_ignored():
    cluster = cluster_of(word_count())
    cluster.start()
    assert cluster.schedule.finished(Region(9, 0), 1) == []
    assert cluster.schedule.failed(Region(0, 9), 1) is IGNORE
