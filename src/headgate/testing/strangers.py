"""Those who connect and should not: workers of another attempt, second copies of a worker, and anybody at all.

Added to a simulation by faults. Each lives on a host of its own, so that error texts tell it from the workers.
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
    from headgate.testing.plan import Plan
    from headgate.testing.simnet import SimNet

__all__ = ["Knocker", "Stranger"]

_NO_PRODUCER = 9_999


class Stranger:
    """A worker that does not belong: of an earlier attempt, or the same worker once more.

    >>> from headgate.testing import Fault, Simulation
    >>> simulation = Simulation(seed=3, faults=[Fault("stale attempt", at_step=5, first=0, second=1)])
    >>> simulation.run(); simulation.strangers[0].check()
    """

    def __init__(self, number: int, attempt: int, target: SimWorker, net: SimNet, plan: Plan) -> None:
        port = net.free_port()
        self.worker = SimWorker(number, plan, net, attempt=attempt, host=f"{STRANGERS}{port % 250 + 1}", segments=16)
        self._belongs = attempt == target.attempt
        self._proved: list[str] = []
        self.worker.network.on_proved = self._on_proved
        gate = self.worker.gate("stranger", 1)
        gate.connect(0, self.worker.remote_source(gate, _NO_PRODUCER, 0, target, 1, lane=0))

    def _on_proved(self, connection: Connection) -> None:
        self._proved.append(connection.peer)

    def check(self) -> None:
        """Whether it was kept out, if it had to be."""
        if self._proved and not self._belongs:
            raise InvariantViolated(f"a worker of another attempt was let in by {self._proved[0]}")


class Knocker:
    """Somebody who connects, says something, and listens to the answer.

    >>> from headgate.testing import Fault, Simulation
    >>> simulation = Simulation(seed=3, faults=[Fault("garbage", at_step=5, first=0, second=1)])
    >>> simulation.run(); simulation.strangers[0].check()
    """

    def __init__(self, target: SimWorker, net: SimNet, data: bytes) -> None:
        self._target = target
        self._data = data
        self._heard = 0
        self._stream: Stream | None = None
        port = net.free_port()
        transport = SimTransport(net, f"127.0.2.{port % 250 + 1}", Actor(f"127.0.2.{port % 250 + 1}"))
        transport.connect(target.address, 10**12, self._connected)

    def _connected(self, found: Stream | Exception) -> None:
        if not isinstance(found, Exception):
            self._stream = found
            found.start(self)
            self._say()

    def _say(self) -> None:
        assert self._stream is not None, "it is connected"
        taken = self._stream.write([self._data])
        self._data = self._data[taken:]

    def received(self, data: memoryview) -> None:
        """See `StreamHandler`."""
        self._heard += len(data)

    def writable(self) -> None:
        """See `StreamHandler`."""
        self._say()

    def lost(self, error: Exception | None) -> None:
        """See `StreamHandler`."""

    def check(self) -> None:
        """Whether it learned no more than a challenge."""
        if self._heard > 64:
            raise InvariantViolated(f"a stranger was told {self._heard} bytes")
