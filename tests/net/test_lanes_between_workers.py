"""Lanes over real sockets: without credit, each has a connection of its own that the others do not stop."""

import pytest
from tests.support.cluster import Cluster, pid, produce, records
from tests.support.threads import Thread
from tests.support.waiting import wait_until

from headgate.ids import SubpartitionIndex


def gate_in_lane(cluster, reader, worker, lane):
    """A gate of a worker that reads the partition of that number, in that lane."""
    gate = cluster.workers[reader].gate(f"lane {lane}", channels=1)
    source = cluster.workers[reader].remote_source(
        gate, pid(lane), SubpartitionIndex(0), worker=worker, address=cluster.addresses[worker], lane=lane
    )
    gate.connect(0, source)
    return gate


def open_lanes(cluster, worker):
    return sorted(one.lane for one in cluster.workers[worker].connections() if one.worker >= 0)


@pytest.mark.spec("N5", "N7")
@pytest.mark.parametrize("credentials", [False, True], ids=["plain", "tls"])
def test_a_lane_that_is_not_read_does_not_stop_another(credentials):
    wanted = records(4000)
    with Cluster(credentials=credentials, network__flow_control="tcp") as cluster:
        gates = [gate_in_lane(cluster, 1, 0, lane) for lane in range(2)]
        producers = [Thread(lambda lane=lane: produce(cluster.writer(0, lane), wanted)) for lane in range(2)]
        assert cluster.read(1, gates[1]) == wanted, "though nobody reads lane 0"
        assert 0 in open_lanes(cluster, 1)
        assert cluster.read(1, gates[0]) == wanted
        for producer in producers:
            producer.end()
        wait_until(lambda: cluster.connections() == [0, 0], "all are closed")


@pytest.mark.spec("N4", "N5")
def test_two_workers_keep_one_connection_in_each_lane():
    """Both connect at once, in every lane."""
    lanes = (0, 1, 5)
    with Cluster(network__flow_control="tcp") as cluster:
        writers = {(side, lane): cluster.writer(side, lane) for side in (0, 1) for lane in lanes}
        gates = {(side, lane): gate_in_lane(cluster, side, 1 - side, lane) for side in (0, 1) for lane in lanes}
        for writer in writers.values():
            writer.emit_batch([b"first"])
            writer.flush()
        wait_until(lambda: open_lanes(cluster, 0) == open_lanes(cluster, 1) == [0, 1, 5], "one in each lane")
        for writer in writers.values():
            writer.finish()
        assert [cluster.read(side, gates[side, lane]) for side, lane in gates] == [[b"first"]] * 6
        wait_until(lambda: cluster.connections() == [0, 0], "all are closed")


@pytest.mark.spec("T3")
def test_with_credit_all_lanes_are_one():
    with Cluster() as cluster:
        writers = [cluster.writer(0, lane) for lane in range(3)]
        gates = [gate_in_lane(cluster, 1, 0, lane) for lane in range(3)]
        for writer in writers:
            writer.emit_batch([b"first"])
            writer.flush()
        wait_until(lambda: sum(one.traffic.receiving for one in cluster.workers[1].connections()) == 3, "all three")
        assert open_lanes(cluster, 0) == open_lanes(cluster, 1) == [0]
        for writer in writers:
            writer.finish()
        assert [cluster.read(1, gate) for gate in gates] == [[b"first"]] * 3
