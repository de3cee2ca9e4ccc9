"""What moves: values, the elements they travel in, and their bytes.

`serializer` (and `fixed`, `arrow`, `pickled`, chosen by `registry`) turns values into bytes, `element` says what
they are, `spanning` cuts them to fit buffers, `keys` (and `key_columns`) says which values belong together.
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
