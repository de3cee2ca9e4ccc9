"""The protocol between two workers, without a socket in sight.

`frames` are the messages, `codec` their bytes, `decoder` finds them in a stream; `handshake` comes before all of it.
`producer` and `consumer` are the two halves of a connection, `states` what may happen in them, `credit` the arithmetic
of their flow control.
"""

from headgate.wire.codec import decode_frame, encode_frame
from headgate.wire.consumer import Arrived, ConsumerSession, ConsumerStream
from headgate.wire.credit import Book, Ledger
from headgate.wire.decoder import Decoder, Payload
from headgate.wire.frames import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    Data,
    Frame,
    KeepAlive,
    ReportError,
    RequestPartition,
    SendTaskEvent,
)
from headgate.wire.producer import ProducerSession, ProducerStream
from headgate.wire.supply import Outgoing, Supply

__all__ = [
    "CONNECTION",
    "AddCredit",
    "AnnounceBacklog",
    "Arrived",
    "Book",
    "CancelRequest",
    "Close",
    "ConsumerSession",
    "ConsumerStream",
    "Data",
    "Decoder",
    "Frame",
    "KeepAlive",
    "Ledger",
    "Outgoing",
    "Payload",
    "ProducerSession",
    "ProducerStream",
    "ReportError",
    "RequestPartition",
    "SendTaskEvent",
    "Supply",
    "decode_frame",
    "encode_frame",
]
