"""The protocol between two workers, without a socket in sight.

`frames` are the messages, `codec` their bytes, `decoder` finds them in a stream; `credit` is the arithmetic of flow
control, `handshake` comes before all of it. Sessions and the drivers that move bytes come on top of these.
"""

from headgate.wire.codec import decode_frame, encode_frame
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

__all__ = [
    "CONNECTION",
    "AddCredit",
    "AnnounceBacklog",
    "Book",
    "CancelRequest",
    "Close",
    "Data",
    "Decoder",
    "Frame",
    "KeepAlive",
    "Ledger",
    "Payload",
    "ReportError",
    "RequestPartition",
    "SendTaskEvent",
    "decode_frame",
    "encode_frame",
]
