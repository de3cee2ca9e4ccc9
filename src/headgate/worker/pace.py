"""When the thread that serves a worker's control connection looks at the meters, and when it reports.

That thread calls `come_by` before it waits for a message, and waits no longer than `due_s`: so neither a stream of
messages nor one that takes long to handle keeps the meters from being looked at for longer than that message takes. Who
is late looks once, and the meters make up for the moments that were missed (see `moments`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headgate.worker.moments import wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.worker.messages import Report

__all__ = ["REPORT_S", "Pace"]

REPORT_S: Final = 1.0
"""From one report to the next."""

_LONGEST_S: Final = 10.0


class Pace:
    """Calls `look` at the end of each moment, and sends `reports` once a second; nothing before `begin`.

    >>> now = [100.0]
    >>> pace = Pace(lambda: print("look"), lambda: ["report"], print, 100, now_s=lambda: now[0], now_ms=lambda: 0)
    >>> pace.begin(); pace.due_s()
    0.1
    >>> now[0] += 1.0; pace.come_by()
    report
    """

    __slots__ = ("_length_ms", "_look", "_moment", "_now_ms", "_now_s", "_report_at_s", "_reports", "_tell")

    def __init__(
        self,
        look: Callable[[], object],
        reports: Callable[[], list[Report]],
        tell: Callable[[Report], object],
        length_ms: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._look = look
        self._reports = reports
        self._tell = tell
        self._length_ms = length_ms  # 0: there is nothing to look at between reports
        self._now_s = now_s
        self._now_ms = now_ms
        self._moment = 0  # that it was at the last look
        self._report_at_s: float | None = None  # None: it has not begun

    def begin(self) -> None:
        """From now on there is something to look at."""
        self._report_at_s = self._now_s() + REPORT_S
        if self._length_ms:
            self._moment = self._now_ms() // self._length_ms

    def due_s(self) -> float:
        """How long the caller may wait."""
        if self._report_at_s is None:
            return _LONGEST_S
        left_s = self._report_at_s - self._now_s()
        if self._length_ms:
            now_ms = self._now_ms()
            over = now_ms // self._length_ms != self._moment
            left_s = min(left_s, 0.0 if over else (self._length_ms - now_ms % self._length_ms) / 1000)
        return max(0.0, left_s)

    def come_by(self) -> None:
        """Do what is due."""
        if self._report_at_s is None:
            return
        now_s = self._now_s()
        moment = self._now_ms() // self._length_ms if self._length_ms else 0
        if now_s >= self._report_at_s:
            self._moment = moment  # a report looks by itself
            # Who is late does not hurry: two reports in a row say less than one.
            self._report_at_s = max(self._report_at_s, now_s - REPORT_S / 2) + REPORT_S
            for report in self._reports():
                self._tell(report)
        elif moment != self._moment:
            self._moment = moment
            self._look()
