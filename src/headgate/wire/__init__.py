"""The protocol between two workers, sans-IO.

`frames` are the messages, `codec` their bytes, `decoder` finds them in a stream; `handshake` precedes all of them.
`producer` and `consumer` are the two halves of a connection, `states` the steps they may take, `flow` their flow
control: start there.
"""

from headgate.wire.codec import decode_frame, encode_frame
from headgate.wire.consumer import Arrived, ConsumerSession, ConsumerStream
from headgate.wire.decoder import Decoder, Payload
from headgate.wire.flow import Book, Ledger, SendState, When
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
    "SendState",
    "SendTaskEvent",
    "Supply",
    "When",
    "decode_frame",
    "encode_frame",
]
