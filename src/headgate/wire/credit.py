"""Credit, as both sides count it.

The sender's `Ledger` says how many buffers it may still send for one receiver; the receiver's `Book` says how many it
has set aside for one channel and how many of those the sender knows of. Plain arithmetic, called by the sessions under
the exchange lock.

Invariants: sent <= granted (ledger); announced <= reserved + received (book); so every credit the sender has is backed
by a buffer that waits for it.
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
        if credit < 1:
            raise RemoteProtocolError(f"a credit of {credit}")
        if self.available + credit > MAX_CREDIT:
            raise RemoteProtocolError(f"a credit of {credit} on top of {self.available}: the limit is {MAX_CREDIT}")
        self.granted += credit

    def spend(self) -> None:
        """A buffer is sent."""
        if self.sent >= self.granted:
            raise InvariantViolated("a buffer is sent without credit")
        self.sent += 1


class Book:
    """The receiver's side of one channel's credit.

    >>> book = Book(exclusive=2)
    >>> book.receive(backlog=5); book.wanted
    6
    >>> book.reserve(4); book.take_unannounced()
    4
    >>> book.take_unannounced()
    0
    """

    __slots__ = ("backlog", "exclusive", "reserved", "unannounced")

    def __init__(self, exclusive: int) -> None:
        self.exclusive = exclusive  # buffers of its own, which is also its initial credit
        self.reserved = exclusive  # buffers set aside that no data has arrived for
        self.unannounced = 0  # of these, how many the sender does not know of
        self.backlog = 0  # what the sender had waiting when it last spoke

    @property
    def wanted(self) -> int:
        """How many more buffers it could use: enough for the backlog and the initial credit."""
        return max(0, self.backlog + self.exclusive - self.reserved)

    @property
    def credit_at_sender(self) -> int:
        """Credit that is with the sender or on its way."""
        return self.reserved - self.unannounced

    def reserve(self, count: int = 1) -> None:
        """Buffers were set aside."""
        self.reserved += count
        self.unannounced += count

    def give_up(self, count: int) -> None:
        """Buffers that were set aside, and not announced, go elsewhere."""
        if count > self.unannounced:
            raise InvariantViolated(f"{count} buffers are taken back, but only {self.unannounced} are not promised")
        self.reserved -= count
        self.unannounced -= count

    def take_unannounced(self) -> int:
        """How much credit to announce now; it counts as announced from here on."""
        credit, self.unannounced = self.unannounced, 0
        return credit

    def learn(self, backlog: int) -> None:
        """The sender said how much it has waiting."""
        self.backlog = backlog

    def receive(self, backlog: int) -> None:
        """A buffer has arrived: it fills one that was announced."""
        if self.credit_at_sender <= 0:
            raise RemoteProtocolError("data came without credit")
        self.reserved -= 1
        self.backlog = backlog
