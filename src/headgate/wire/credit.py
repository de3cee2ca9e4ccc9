"""Credit, as both sides count it.

The sender's `Ledger` says how many buffers it may still send for one receiver; the receiver's `Book` says how many it
has promised to take. Plain arithmetic, called by the sessions on the network thread.

Invariants: sent <= granted (ledger); received <= promised (book); and, since what is granted was promised before,
sent <= granted <= promised across both.
"""

from __future__ import annotations

from headgate.errors import InvariantViolated, RemoteProtocolError
from headgate.wire.frames import MAX_CREDIT

__all__ = ["Book", "Ledger"]


class Ledger:
    """The sender's side of one channel's credit.

    >>> ledger = Ledger(initial=2)
    >>> ledger.spend(); ledger.spend(); ledger.available
    0
    >>> ledger.grant(3); ledger.available
    3
    """

    __slots__ = ("granted", "sent")

    def __init__(self, initial: int) -> None:
        self.granted = initial
        self.sent = 0

    @property
    def available(self) -> int:
        """How many buffers may be sent now."""
        return self.granted - self.sent

    def grant(self, credit: int) -> None:
        """The receiver set more buffers aside."""
        granted = self.granted + credit
        if credit < 1:
            raise RemoteProtocolError(f"a credit of {credit}")
        if granted - self.sent > MAX_CREDIT:
            raise RemoteProtocolError(f"a credit of {credit} on top of {self.available}: the limit is {MAX_CREDIT}")
        self.granted = granted

    def spend(self) -> None:
        """A buffer is sent."""
        if self.sent >= self.granted:
            raise InvariantViolated("a buffer is sent without credit")
        self.sent += 1


class Book:
    """The receiver's side of one channel's credit: what it has promised, and what has come of it.

    >>> book = Book(initial=2)
    >>> book.receive(); book.outstanding
    1
    >>> book.promise(3); book.outstanding
    4
    """

    __slots__ = ("promised", "received")

    def __init__(self, initial: int) -> None:
        self.promised = initial
        self.received = 0

    @property
    def outstanding(self) -> int:
        """Credit that is with the sender or on its way: so many buffers must be set aside."""
        return self.promised - self.received

    def promise(self, credit: int) -> None:
        """More buffers were set aside, and the sender is about to be told."""
        promised = self.promised + credit
        if credit < 1 or promised - self.received > MAX_CREDIT:
            raise InvariantViolated(f"a credit of {credit} is announced on top of {self.outstanding}")
        self.promised = promised

    def receive(self) -> None:
        """A buffer arrives: it fills one that was promised."""
        if self.received >= self.promised:
            raise RemoteProtocolError("data came without credit")
        self.received += 1
