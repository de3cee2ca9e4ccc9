"""Why a job fails: of all that its workers then say, what comes closest to the cause."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from headgate.errors import Cancelled, HeadgateError, PartitionNotFound, ProducerFailed, TransportError

__all__ = ["Cause", "Weight"]

# What a worker says when another has failed: the other's own words, if they come, say more.
_CONSEQUENCES: Final = (ProducerFailed, TransportError, PartitionNotFound, Cancelled)


class Weight(IntEnum):
    """How much a failure says of the cause.

    >>> Weight.of(ProducerFailed("its producer failed")).name
    'CONSEQUENCE'
    """

    CONSEQUENCE = 0  # somebody else failed
    LOST = 1  # a worker is gone
    OWN = 2  # it failed by itself

    @classmethod
    def of(cls, error: HeadgateError) -> Weight:
        """That of an error which a worker reports."""
        return cls.CONSEQUENCE if isinstance(error, _CONSEQUENCES) else cls.OWN


class Cause:
    """The first failure, unless one that says more comes later, which then has a note of what was heard before.

    >>> cause = Cause()
    >>> cause.hear(ProducerFailed("its producer failed"), Weight.CONSEQUENCE)
    True
    >>> cause.hear(HeadgateError("disk full"), Weight.OWN), cause.hear(HeadgateError("too late"), Weight.OWN)
    (True, False)
    >>> cause.error, cause.error.__notes__
    (HeadgateError('disk full'), ['before that was heard: its producer failed'])
    """

    def __init__(self) -> None:
        self.error: HeadgateError | None = None
        self._weight = Weight.CONSEQUENCE

    def hear(self, error: HeadgateError, weight: Weight) -> bool:
        """Take a failure into account; whether it is the cause now."""
        if self.error is not None:
            if weight <= self._weight:
                return False
            error.add_note(f"before that was heard: {self.error}")
        self.error, self._weight = error, weight
        return True
