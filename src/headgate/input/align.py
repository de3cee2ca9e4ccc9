"""One watermark out of many channels (K3).

Used by a task's loop, on its thread. Invariants: the merged watermark is the least of all active channels and never
falls; idle and ended channels do not hold it back; where all are idle it is the greatest of theirs.
"""

from __future__ import annotations

__all__ = ["WatermarkMerge"]

_NONE_YET = -(2**63)


class WatermarkMerge:
    """Merges the watermarks of a task's channels.

    >>> merge = WatermarkMerge(2)
    >>> merge.rise(0, 5), merge.rise(1, 3), merge.rise(1, 9)
    (None, 3, 5)
    >>> merge.set_active(0, active=False), merge.idle
    (9, False)
    """

    def __init__(self, channels: int) -> None:
        self._marks = [_NONE_YET] * channels
        self._active = [True] * channels
        self._ended = [False] * channels
        self._merged = _NONE_YET

    @property
    def idle(self) -> bool:
        """Whether every channel that has not ended is idle, and there is one."""
        open_channels = [active for active, ended in zip(self._active, self._ended, strict=True) if not ended]
        return bool(open_channels) and not any(open_channels)

    def rise(self, channel: int, timestamp_ms: int) -> int | None:
        """A channel's watermark; the merged one, if that rises."""
        self._marks[channel] = max(self._marks[channel], timestamp_ms)
        return self._look()

    def set_active(self, channel: int, *, active: bool) -> int | None:
        """A channel takes part from now on, or does not; the merged watermark, if that rises."""
        self._active[channel] = active
        return self._look()

    def end(self, channel: int) -> int | None:
        """A channel has ended; the merged watermark, if that rises."""
        self._ended[channel] = True
        return self._look()

    def _look(self) -> int | None:
        still = [channel for channel, ended in enumerate(self._ended) if not ended]
        active = [self._marks[channel] for channel in still if self._active[channel]]
        # Where all are idle nobody will raise it for a while: the furthest counts.
        found = min(active) if active else max(self._marks[one] for one in still or range(len(self._marks)))
        if found <= self._merged:
            return None
        self._merged = found
        return found
