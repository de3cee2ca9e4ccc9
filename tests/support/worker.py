"""One worker of a plan without a coordinator: what it tells, and who connects it."""

from tests.support.waiting import Watched

from headgate.control.messages import Done, PartitionConsumable, PartitionLocation, TaskStateChanged
from headgate.ids import AttemptId
from headgate.net import Identity
from headgate.record import AuthenticatedPeer, SerializerRegistry
from headgate.worker import Environment
from headgate.worker.setup import WorkerPart
from headgate.worker.streaming import StreamingWorker

ATTEMPT = AttemptId(1)


class Site(Watched):
    """One worker of a plan, whose coordinator is the test: it connects by itself if `connects`."""

    def __init__(self, env, *, index=0, connects=True, memory_bytes=2**18):
        super().__init__()
        self.plan = env._plan(env._graph.nodes(), None)
        env._graph.take()
        self.environment = Environment(self.plan.settings, memory_bytes=memory_bytes)
        identity = Identity(self.plan.job, ATTEMPT, index, bytes(32))
        self.address = self.environment.join(identity)
        peer = AuthenticatedPeer.this_process()
        self.part = WorkerPart(self.plan, index, ATTEMPT, self.environment, peer, SerializerRegistry())
        self.told = []
        self.connects = connects
        self.worker = StreamingWorker(self.part, self.tell)

    def tell(self, message):
        with self.change():
            self.told.append(message)
        if self.connects and isinstance(message, PartitionConsumable):
            self.worker.connect(self.location(message.partition))

    def location(self, partition):
        return PartitionLocation(partition, self.part.index, self.address.host, self.address.port)

    def wait_done(self):
        self.wait(lambda: Done() in self.told, "the end of all tasks")
        assert self.worker.join(30.0) == []

    def states(self, vertex):
        return [one.state for one in self.told if isinstance(one, TaskStateChanged) and one.vertex == vertex]

    @property
    def used(self):
        statistics = self.environment.memory.statistics()
        return statistics.total - statistics.free

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.worker.cancel("the test is over")
        assert self.worker.join(30.0) == []
        self.environment.close()
