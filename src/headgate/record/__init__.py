"""Records: values, the stream elements that carry them, their bytes, and the hash of their keys.

`serializer` (with `fixed`, `arrow` and `pickled`, chosen by `registry`) encodes values, `element` encodes stream
elements and events, `spanning` divides records over buffers, `keys` (with `key_columns`) assigns keys to subtasks.
"""

from headgate.record.element import (
    Batch,
    CheckpointBarrier,
    Element,
    EndOfPartition,
    EndOfSuperstep,
    Event,
    LatencyMarker,
    Record,
    StreamStatus,
    UserEvent,
    Watermark,
)
from headgate.record.fixed import StructSerializer
from headgate.record.keys import key_group, stable_hash
from headgate.record.peer import AuthenticatedPeer
from headgate.record.registry import SerializerRegistry
from headgate.record.serializer import BytesSerializer, MsgpackSerializer, Serializer, StrSerializer
from headgate.record.spanning import RecordLimits

__all__ = [
    "AuthenticatedPeer",
    "Batch",
    "BytesSerializer",
    "CheckpointBarrier",
    "Element",
    "EndOfPartition",
    "EndOfSuperstep",
    "Event",
    "LatencyMarker",
    "MsgpackSerializer",
    "Record",
    "RecordLimits",
    "Serializer",
    "SerializerRegistry",
    "StrSerializer",
    "StreamStatus",
    "StructSerializer",
    "UserEvent",
    "Watermark",
    "key_group",
    "stable_hash",
]
