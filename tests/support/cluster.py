"""Workers in one process that are connected, and records for them to exchange."""

from datetime import UTC, datetime

from tests.support.exchange import values_of

from headgate.config import load_settings
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Authority, Identity
from headgate.output import Forward
from headgate.record import BytesSerializer
from headgate.worker import Environment

JOB, ATTEMPT, SECRET = JobId("job"), AttemptId(1), bytes(range(32))


def pid(subtask=0):
    return PartitionId(JOB, ATTEMPT, 0, 0, subtask)


class Cluster:
    """Workers that have each other's addresses."""

    def __init__(self, workers=2, *, mib=4, credentials=False, segment="4 KiB", packed=False, **settings):
        self.packed = packed
        code = {"memory.segment_size": segment} | {key.replace("__", "."): one for key, one in settings.items()}
        self.settings = load_settings(code=code)
        authority = Authority(JOB, datetime.now(UTC)) if credentials else None
        self.workers, self.addresses = [], []
        for number in range(workers):
            worker = Environment(self.settings, memory_bytes=mib * 2**20, seed=1)
            self.workers.append(worker)
            issued = authority.issue(number) if authority is not None else None
            self.addresses.append(worker.join(Identity(JOB, ATTEMPT, number, SECRET, issued)))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for worker in self.workers:
            worker.close()
            free = worker.statistics().memory
            assert free.free == free.total

    def gate(self, reader, channels):
        """Return a gate of a worker whose channels read these (worker, subtask, subpartition)s."""
        gate = self.workers[reader].gate("gate", channels=len(channels))
        for index, channel in enumerate(channels):
            self.connect(gate, index, reader, *channel)
        return gate

    def connect(self, gate, index, reader, worker, subtask, subpartition):
        source = self.workers[reader].remote_source(
            gate,
            pid(subtask),
            SubpartitionIndex(subpartition),
            worker=worker,
            address=self.addresses[worker],
            packed=self.packed,
        )
        gate.connect(index, source)

    def writer(self, worker, subtask=0, subpartitions=1, selector=None):
        partition = self.workers[worker].partition(pid(subtask), subpartitions=subpartitions)
        return self.workers[worker].writer(partition, selector or Forward(), BytesSerializer())

    def read(self, reader, gate):
        return values_of(list(self.workers[reader].reader(gate, BytesSerializer())))

    def connections(self):
        return [len(worker.statistics().network.connections) for worker in self.workers]


def records(count, size=100, mark=b""):
    return [mark + index.to_bytes(4, "big") + bytes(index % (size + 1)) for index in range(count)]


def produce(writer, values, batch=50):
    for start in range(0, len(values), batch):
        writer.emit_batch(values[start : start + batch])
    writer.finish()
