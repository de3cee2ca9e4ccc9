"""Processes that connect and do not belong to the job: workers of another attempt, second copies, other programs.

Faults add them to a simulation. Each has a host of its own, so that error texts distinguish it from the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.errors import InvariantViolated
from headgate.testing.simnet import SimTransport
from headgate.testing.simulator import Actor
from headgate.testing.worker import STRANGERS, SimWorker

if TYPE_CHECKING:
    from headgate.net import Stream
    from headgate.net.connection import Connection
    from headgate.testing.plan import SimPlan
    from headgate.testing.simnet import SimNet

__all__ = ["RawClient", "Stranger"]

_NO_PRODUCER = 9_999


class Stranger:
    """A worker of an earlier attempt, or a second copy of a worker."""

    def __init__(self, number: int, attempt: int, target: SimWorker, net: SimNet, plan: SimPlan) -> None:
        port = net.free_port()
        self.worker = SimWorker(number, plan, net, attempt=attempt, host=f"{STRANGERS}{port % 250 + 1}", segments=16)
        self._belongs = attempt == target.attempt
        self._proved: list[str] = []
        self.worker.network.on_proved = self._on_proved
        gate = self.worker.gate("stranger", channels=1)
        gate.connect(0, self.worker.source(gate, _NO_PRODUCER, 0, target))

    def _on_proved(self, connection: Connection) -> None:
        self._proved.append(connection.peer)

    def check(self) -> None:
        """Check that no worker authenticated it, unless it has the identity of the job."""
        if self._proved and not self._belongs:
            raise InvariantViolated(f"a worker of another attempt was authenticated by {self._proved[0]}")


class RawClient:
    """A program that connects, sends bytes, and counts the bytes of the answer."""

    def __init__(self, target: SimWorker, net: SimNet, data: bytes) -> None:
        self._target = target
        self._data = data
        self._received_bytes = 0
        self._stream: Stream | None = None
        port = net.free_port()
        transport = SimTransport(net, f"127.0.2.{port % 250 + 1}", Actor(f"127.0.2.{port % 250 + 1}"))
        transport.connect(target.address, 10**12, self._connected)

    def _connected(self, found: Stream | Exception) -> None:
        if not isinstance(found, Exception):
            self._stream = found
            found.start(self)
            self._send()

    def _send(self) -> None:
        assert self._stream is not None, "it is connected"
        taken = self._stream.write([self._data])
        self._data = self._data[taken:]

    def received(self, data: memoryview) -> None:
        """See `StreamHandler`."""
        self._received_bytes += len(data)

    def writable(self) -> None:
        """See `StreamHandler`."""
        self._send()

    def lost(self, error: Exception | None) -> None:
        """See `StreamHandler`."""

    def check(self) -> None:
        """Check that it received no more than a challenge."""
        if self._received_bytes > 64:
            raise InvariantViolated(f"a stranger was sent {self._received_bytes} bytes")
