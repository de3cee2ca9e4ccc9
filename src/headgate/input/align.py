"""One watermark out of many channels (K3), and one of the events that every channel carries (K4).

Used by a task's loop, on its thread. Invariants: the merged watermark is the least of all active channels and never
falls; idle and ended channels do not hold it back; where none is active it is the greatest of all, ended ones
included. A barrier or superstep's end is forwarded once, after it was received on every channel that has not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.record.element import CheckpointBarrier, EndOfSuperstep

if TYPE_CHECKING:
    from headgate.record.element import Event

__all__ = ["EventMerge", "WatermarkMerge"]

_NONE_YET = -(2**63)
_MOST_BARRIERS: Final = 100  # that have arrived on some channels only; as in Flink, the oldest is dropped beyond


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
        """True if there are channels that have not ended, and all of them are idle."""
        open_channels = [active for active, ended in zip(self._active, self._ended, strict=True) if not ended]
        return bool(open_channels) and not any(open_channels)

    def rise(self, channel: int, timestamp_ms: int) -> int | None:
        """Raise a channel's watermark. Return the merged watermark if that rises."""
        self._marks[channel] = max(self._marks[channel], timestamp_ms)
        return self._merge()

    def set_active(self, channel: int, *, active: bool) -> int | None:
        """Set whether a channel takes part. Return the merged watermark if that rises."""
        self._active[channel] = active
        return self._merge()

    def end(self, channel: int) -> int | None:
        """Note that a channel has ended. Return the merged watermark if that rises."""
        self._ended[channel] = True
        return self._merge()

    def _merge(self) -> int | None:
        each = zip(self._marks, self._active, self._ended, strict=True)
        active = [mark for mark, active, ended in each if active and not ended]
        # If none is active, no channel will raise it for a while: as in Flink, the greatest of all counts.
        found = min(active) if active else max(self._marks)
        if found <= self._merged:
            return None
        self._merged = found
        return found


class EventMerge:
    """Hands on events of a task's channels: barriers and supersteps once for all channels, users' own as they arrive.

    A channel does not wait for the others: its records after a barrier are read before the barrier has arrived on all
    channels. An ended channel counts as one on which every barrier and superstep's end has arrived. A barrier that is
    complete replaces earlier ones that are not.

    >>> merge = EventMerge(2)
    >>> first = CheckpointBarrier(checkpoint=1, timestamp_ms=0)
    >>> merge.arrived(0, first), merge.arrived(1, first) == [first]
    ([], True)
    """

    def __init__(self, channels: int) -> None:
        self._open = set(range(channels))
        self._barriers: dict[int, tuple[CheckpointBarrier, set[int]]] = {}  # and the channels it has arrived on
        self._last_checkpoint: int | None = None  # whose barrier was handed on
        self._supersteps = [0] * channels  # ends that have arrived
        self._superstep = 0  # ends that were handed on

    def arrived(self, channel: int, event: Event) -> list[Event]:
        """Return the events to hand on now that this one has arrived on a channel."""
        if isinstance(event, EndOfSuperstep):
            self._supersteps[channel] += 1
        elif isinstance(event, CheckpointBarrier):
            self._add_barrier(channel, event)
        else:
            return [event]
        return self._complete()

    def end(self, channel: int) -> list[Event]:
        """Return the events to hand on now that a channel has ended."""
        self._open.discard(channel)
        return self._complete()

    def _add_barrier(self, channel: int, event: CheckpointBarrier) -> None:
        if self._last_checkpoint is not None and event.checkpoint <= self._last_checkpoint:
            return
        self._barriers.setdefault(event.checkpoint, (event, set()))[1].add(channel)
        if len(self._barriers) > _MOST_BARRIERS:
            del self._barriers[min(self._barriers)]

    def _complete(self) -> list[Event]:
        found: list[Event] = []
        for checkpoint in sorted(self._barriers):
            barrier, channels = self._barriers[checkpoint]
            if self._open <= channels:
                found.append(barrier)
                self._last_checkpoint = checkpoint
        if found:
            last = self._last_checkpoint
            self._barriers = {one: held for one, held in self._barriers.items() if last is None or one > last}
        counts = [self._supersteps[one] for one in self._open] or self._supersteps
        reached = min(counts) if self._open else max(counts)
        found.extend([EndOfSuperstep()] * (reached - self._superstep))
        self._superstep = max(self._superstep, reached)
        return found
