"""When a client connects again after the peer has ended its connection during the handshake.

A port under attack drops half-open connections (`wire.half_open`), those of workers among them. A connection that ends
before the server's challenge does not depend on the client's secret, so the client connects again until its deadline.
After the challenge, the end most likely means that the proof was refused: the client proves itself `MAX_PROOFS` times.

Waits double from 10 ms to 500 ms. Each is shortened by a random part, so that workers that were dropped together do not
connect together again; the random numbers depend only on the worker's number, so that a simulation can be repeated.
"""

from __future__ import annotations

import random
from typing import Final

__all__ = ["MAX_PROOFS", "Retry"]

MAX_PROOFS: Final = 3

_FIRST_NS: Final = 10_000_000
_LONGEST_NS: Final = 500_000_000


class Retry:
    """The attempts of one client to complete one handshake before a deadline, on the transport's clock.

    >>> retry = Retry(deadline_ns=10**9, worker=3)
    >>> 5_000_000 <= retry.wait_ns(now_ns=0, challenged=False) <= 10_000_000
    True
    >>> retry.wait_ns(now_ns=10**9, challenged=False) is None
    True
    """

    def __init__(self, deadline_ns: int, worker: int) -> None:
        self.tries = 0
        """Handshakes that the peer has ended."""
        self._deadline_ns = deadline_ns
        self._proofs = 0
        self._wait_ns = _FIRST_NS
        self._random = random.Random(worker)  # noqa: S311 - no secret depends on it

    def wait_ns(self, now_ns: int, *, challenged: bool) -> int | None:
        """Return how long to wait before the next connection; None: no more attempts.

        `challenged`: the server's challenge had arrived before the peer ended the connection.
        """
        self.tries += 1
        self._proofs += challenged
        wait_ns = self._random.randint(self._wait_ns // 2, self._wait_ns)
        self._wait_ns = min(2 * self._wait_ns, _LONGEST_NS)
        if self._proofs >= MAX_PROOFS or now_ns + wait_ns >= self._deadline_ns:
            return None
        return wait_ns
