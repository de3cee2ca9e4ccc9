"""Shared by the tests of coordinator and control links: plans, fake workers, and strangers that connect."""

import os
import socket
import struct
from contextlib import ExitStack, contextmanager

from tests.support.waiting import PATIENCE_S, Watched

import headgate
from headgate.config import Settings
from headgate.control.connect import connect_control
from headgate.control.messages import Register
from headgate.coordinator import Coordinator
from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
from headgate.ids import AttemptId, JobId
from headgate.net import Identity
from headgate.net.loop import open_loop
from headgate.net.sockets import SocketTransport
from headgate.wire.handshake import ClientHandshake

JOB, ATTEMPT, SECRET = JobId("job"), AttemptId(3), bytes(range(32))

SEGMENTS = 2048
"""The network memory that fake workers register with."""


def plan_of(
    workers: int = 2, kind: ShipKind = ShipKind.HASH, *, sink_in_driver: bool = False, settings: Settings | None = None
) -> Plan:
    """Return the plan words -> count [-> print, in the driver]."""
    vertices = [Vertex(0, "words", workers, 128, (), inputs=0), Vertex(1, "count", workers, 128, ())]
    exchanges = [Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(kind))]
    if sink_in_driver:
        vertices.append(Vertex(2, "print", 1, 128, (), in_driver=True))
        exchanges.append(Exchange(1, producer=1, operator=0, consumer=2, ship=Ship(ShipKind.GLOBAL)))
    used = Settings() if settings is None else settings
    return Plan(JOB, "word count", tuple(vertices), tuple(exchanges), workers=workers, settings=used)


class FakeWorker(Watched):
    """A worker that sends the messages of the test, and records the messages that it receives."""

    def __init__(
        self,
        address,
        number=0,
        *,
        loop="asyncio",
        register=True,
        segments=SEGMENTS,
        timeout_s=PATIENCE_S,
        **identity,
    ):
        super().__init__()
        self.heard: list[object] = []
        self.losses: list[Exception | None] = []
        self.number = number
        parts = {"job": JOB, "attempt": ATTEMPT, "secret": SECRET, **identity}
        self.transport = SocketTransport(open_loop(loop))
        self.transport.start()
        try:
            identity = Identity(worker=number, **parts)
            self.link = connect_control(
                self.transport, address, identity, self._on_message, self._on_lost, timeout_s=timeout_s
            )
        except BaseException:
            self.transport.close()
            raise
        if register:
            self.say(Register("127.0.0.1", 9000 + number, os.getpid(), headgate.__version__, segments=segments))

    def say(self, *messages):
        for message in messages:
            self.link.send(message)

    def wait_heard(self, message):
        self.wait(lambda: message in self.heard or self.losses, f"hearing {message}")
        assert message in self.heard, (self.heard, self.losses)

    def wait_lost(self):
        self.wait(lambda: self.losses, "losing the link")
        return self.losses[0]

    def close(self):
        self.link.close()
        self.transport.close()

    def _on_message(self, message):
        with self.change():
            self.heard.append(message)

    def _on_lost(self, error):
        with self.change():
            self.losses.append(error)


class Site:
    """A coordinator and its fake workers."""

    def __init__(self, plan=None, *, credentials=None, **options):
        self._stack = ExitStack()
        self.plan = plan_of() if plan is None else plan
        self.coordinator = Coordinator(self.plan, SECRET, ATTEMPT, credentials=credentials, **options)
        self.job = self.coordinator.job
        self.address = self.coordinator.start()
        self._stack.callback(self.coordinator.close)
        self.workers: list[FakeWorker] = []

    def worker(self, number=0, **options):
        made = FakeWorker(self.address, number, **options)
        self._stack.callback(made.close)
        self.workers.append(made)
        return made

    def all_workers(self, **options):
        return [self.worker(number, **options) for number in range(self.plan.workers + self.plan.uses_driver)]

    @contextmanager
    def stranger(self):
        with socket.create_connection(self.address, timeout=PATIENCE_S) as raw:
            yield raw

    @contextmanager
    def member(self, number=0):
        """Return a raw socket that is authenticated: the coordinator reads its further bytes as messages."""
        with self.stranger() as raw:
            shake_hands(raw, number)
            yield raw

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._stack.close()


def shake_hands(raw, number):
    handshake = ClientHandshake(SECRET, JOB, ATTEMPT, worker=number, nonce=os.urandom(32))
    raw.sendall(handshake.data_to_send())
    while not handshake.done:
        data = raw.recv(4096)
        assert data, "the coordinator has ended the connection"
        assert handshake.receive(data) == b""
        raw.sendall(handshake.data_to_send())


def said(body: bytes, length: int | None = None) -> bytes:
    """Return the bytes of a message on the wire."""
    return struct.pack("<I", len(body) if length is None else length) + body


def is_ended(raw) -> bool:
    """Block until the other side has closed a connection."""
    try:
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True
