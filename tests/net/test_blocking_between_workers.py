"""Blocking partitions read by other workers over real sockets: with credits, without, again, and when it goes wrong."""

import random
import threading

import pytest
from tests.support.blocking_partition import files_in, store
from tests.support.cluster import Cluster, pid, produce, records
from tests.support.exchange import values_of
from tests.support.threads import Thread
from tests.support.waiting import wait_until

from headgate.config import Compression
from headgate.errors import Cancelled, ProducerFailed, StorageError, TransportError
from headgate.ids import SubpartitionIndex
from headgate.output import Broadcast, PartitionType, Rebalance
from headgate.record import BytesSerializer

KINDS = {
    "credit": {},
    "tcp": {"network__flow_control": "tcp"},
    "checksum": {"network__checksum": True},
    "one buffer": {"network__buffers_per_channel": 1, "network__floating_buffers_per_gate": 0},
    "one ahead": {"batch__read_ahead": 1},
    "small buffers": {"segment": "64 B"},
    "small sockets": {"network__send_buffer": "4 KiB", "network__receive_buffer": "4 KiB"},
    "tls": {"credentials": True},
}
KINDS |= {f"{name}, packed": {**one, "packed": True} for name, one in KINDS.items()}


@pytest.fixture
def cluster(request, tmp_path):
    """Two workers, both with files in one directory."""
    with disks(tmp_path, **getattr(request, "param", {})) as found:
        yield found


def disks(tmp_path, **settings):
    cluster = Cluster(**settings)
    for worker in cluster.workers:
        store(worker, tmp_path, pid(), compression=Compression.LZ4)
    return cluster


def write(cluster, values, subpartitions=1, selector=None, subtask=0, worker=0):
    here = cluster.workers[worker]
    partition = here.partition(pid(subtask), subpartitions=subpartitions, kind=PartitionType.BLOCKING)
    writer = here.writer(partition, selector or Rebalance(random.Random(1).randrange), BytesSerializer())
    produce(writer, values)
    writer.close()
    return partition


def ahead(cluster, worker=0):
    return cluster.workers[worker].disk._thread.read_ahead.pool


def begin(cluster):
    """A reader in the other worker that has read a little."""
    reader = cluster.workers[1].reader(cluster.gate(1, [(0, 0, 0)]), BytesSerializer())
    assert next(iter(reader)) is not None
    return reader


@pytest.mark.spec("T4", "P3", "N5", "N7")
@pytest.mark.parametrize(("cluster", "kind"), [(one, name) for name, one in KINDS.items()], indirect=["cluster"])
def test_everything_is_read_once_and_in_order(cluster, kind):
    values = records(3000)
    write(cluster, values)
    assert cluster.read(1, cluster.gate(1, [(0, 0, 0)])) == values
    assert cluster.read(1, cluster.gate(1, [(0, 0, 0)])) == values, "and again"
    wait_until(lambda: ahead(cluster).in_use == 0, "all is given back")


@pytest.mark.spec("N1", "P3")
@pytest.mark.parametrize("codec", [Compression.LZ4, Compression.ZSTD, Compression.NONE])
@pytest.mark.parametrize("packed", [False, True])
def test_compressed_buffers_travel_compressed_where_that_was_asked_for(tmp_path, codec, packed):
    values = records(3000)
    with Cluster(packed=packed, network__checksum=packed) as cluster:
        for worker in cluster.workers:
            store(worker, tmp_path, pid(), compression=codec)
        written = write(cluster, values).bytes_out
        gate = cluster.gate(1, [(0, 0, 0)])
        reader = cluster.workers[1].reader(gate, BytesSerializer())
        found, carried = [], 0
        for element in reader:
            found += values_of([element])
            carried = max([carried, *(one.traffic.bytes_in for one in cluster.workers[1].connections())])
        assert found == values
        assert reader.statistics().bytes_in >= written, "what is read is not compressed"
        reader.close()
    if packed and codec is not Compression.NONE:
        assert carried < written / 4
    else:
        assert carried >= written


@pytest.mark.spec("P3", "N7")
@pytest.mark.parametrize(
    "cluster",
    [{}, {"network__flow_control": "tcp"}, {"packed": True}, {"packed": True, "network__flow_control": "tcp"}],
    indirect=True,
    ids=["credit", "tcp", "packed", "tcp, packed"],
)
def test_many_channels_and_several_readers_at_once(cluster):
    """A gate with channels from both workers, two of the same subpartitions in the other worker, one in this."""
    count, values = 8, records(4000)
    for side in (0, 1):
        write(cluster, values, count, subtask=side, worker=side)
    remote = [(0, 0, index) for index in range(count)]
    gates = [cluster.gate(1, remote) for _ in range(2)]
    both = cluster.workers[1].gate("both", channels=2 * count)
    for index in range(count):
        cluster.connect(both, index, 1, *remote[index])
        both.connect(count + index, cluster.workers[1].local_source(pid(1), SubpartitionIndex(index)))
    here = cluster.workers[0].gate("here", channels=count)
    for index in range(count):
        here.connect(index, cluster.workers[0].local_source(pid(0), SubpartitionIndex(index)))
    threads = [Thread(lambda gate=gate: sorted(cluster.read(1, gate))) for gate in (*gates, both)]
    threads.append(Thread(lambda: sorted(cluster.read(0, here))))
    found = [thread.end() for thread in threads]
    assert found[0] == found[1] == found[3] == sorted(values)
    assert found[2] == sorted(values + values)
    for side in (0, 1):
        pool = ahead(cluster, side)
        wait_until(lambda pool=pool: pool.in_use == 0, "all is given back")
        assert pool.held <= pool.size


def test_broadcast(cluster):
    values = records(500)
    write(cluster, values, 3, Broadcast())
    assert [cluster.read(1, cluster.gate(1, [(0, 0, index)])) for index in range(3)] == [values] * 3


@pytest.mark.spec("P3", "P6", "G4")
@pytest.mark.parametrize(
    "cluster", [{"network__partition_request_backoff__initial": "1 ms"}], indirect=True, ids=["soon"]
)
def test_a_partition_requested_before_its_end_is_read_after_it(cluster):
    here = cluster.workers[0]
    partition = here.partition(pid(), subpartitions=1, kind=PartitionType.BLOCKING)
    writer = here.writer(partition, Rebalance(random.Random(1).randrange), BytesSerializer())
    writer.emit_batch(records(100))
    gate = cluster.gate(1, [(0, 0, 0)])
    assert gate.read(timeout_s=0.02) is None
    writer.finish()
    writer.close()
    assert cluster.read(1, gate) == records(100)


def test_a_partition_that_was_released_is_not_there(cluster):
    write(cluster, records(10))
    cluster.workers[0].registry.release(pid())
    backoff = cluster.settings.network.partition_request_backoff
    assert backoff.initial.ns > 0
    gate = cluster.gate(1, [(0, 0, 0)])
    assert gate.read(timeout_s=0.02) is None, "it asks again for a while, as it may only be late"
    gate.release()


@pytest.mark.spec("P3", "M9")
@pytest.mark.parametrize("cluster", [{}, {"network__flow_control": "tcp"}], indirect=True, ids=["credit", "tcp"])
def test_a_reader_s_worker_is_lost_and_another_reads_again(cluster):
    values = records(20_000)
    write(cluster, values)
    here = cluster.workers[0]
    lost = begin(cluster)
    survivor = here.gate("survivor", channels=1)
    survivor.connect(0, here.local_source(pid(), SubpartitionIndex(0)))
    beside = here.reader(survivor, BytesSerializer())
    begun = next(iter(beside))
    cluster.workers[1].transport.call(cluster.workers[1]._network.abort)
    wait_until(lambda: not here.statistics().network.connections, "the loss is seen")
    with pytest.raises(Cancelled, match="worker 1 is closed"):
        list(lost)
    lost.close()
    assert values_of([begun, *beside]) == values, "who reads beside it does not notice"
    again = here.gate("again", channels=1)
    again.connect(0, here.local_source(pid(), SubpartitionIndex(0)))
    assert cluster.read(0, again) == values
    wait_until(lambda: ahead(cluster).in_use == 0, "all is given back")


@pytest.mark.spec("P3", "G8")
def test_a_damaged_file_reaches_the_reader_with_its_path(cluster):
    partition = write(cluster, [b"to be or not to be " * 50] * 2000, 2)
    path = partition._file.path
    offset = partition._file.chunks(1).entry(40)[0]
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(bytes(100))
    with pytest.raises(ProducerFailed, match=r"v0\.0-0\.partition.*damaged") as caught:
        cluster.read(1, cluster.gate(1, [(0, 0, 1)]))
    assert isinstance(caught.value.cause, StorageError)
    assert len(cluster.read(1, cluster.gate(1, [(0, 0, 0)]))) > 0, "the other subpartition is whole"
    wait_until(lambda: ahead(cluster).in_use == 0, "all is given back")


@pytest.mark.spec("M9")
@pytest.mark.parametrize("cause", [None, StorageError("gone", path="/data/x")])
def test_release_while_it_is_read_from_afar(cluster, tmp_path, cause):
    write(cluster, records(20_000))
    begun = begin(cluster)
    cluster.workers[0].registry.release(pid(), cause)
    with pytest.raises(Cancelled if cause is None else ProducerFailed):
        list(begun)
    begun.close()
    wait_until(lambda: files_in(tmp_path) == [], "the file is gone, once it is not being read")
    wait_until(lambda: ahead(cluster).in_use == 0, "all is given back")


def test_the_producer_s_worker_is_lost(cluster):
    write(cluster, records(20_000))
    begun = begin(cluster)
    closing = threading.Thread(target=cluster.workers[0].close)
    closing.start()
    with pytest.raises((Cancelled, TransportError, ProducerFailed)):
        list(begun)
    begun.close()
    closing.join()


@pytest.mark.parametrize("cluster", [{"mib": 1}], indirect=True, ids=["little memory"])
def test_a_reader_without_credit_holds_up_no_other(cluster):
    """It keeps what was read ahead for it; the others have their share."""
    values = records(5000)
    write(cluster, values, 2)
    slow = cluster.gate(1, [(0, 0, 0)])
    pool = ahead_when_there(cluster)
    wait_until(lambda: pool.in_use > 0, "something is read ahead for it")
    fast = sorted(cluster.read(1, cluster.gate(1, [(0, 0, 1)])))
    assert sorted(fast + cluster.read(1, slow)) == sorted(values)


def ahead_when_there(cluster):
    wait_until(lambda: cluster.workers[0].disk._thread is not None, "there is a read-ahead")
    return ahead(cluster)
