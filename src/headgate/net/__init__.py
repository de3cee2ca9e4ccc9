"""The network: where sessions meet sockets on one side, and partitions and gates on the other.

`stream` says what a connection needs of the world; `sockets` (over a `loop`) and `memory` are two such worlds, `tls`
(with `certificates`) goes in between. A `connection` runs the handshake, then moves frames between its stream and its
`pump`, which alone knows both sessions and partitions. `peers` keeps one connection per worker and lane, `server` is
the port, `network` puts it all together.
"""

from headgate.net.certificates import Authority, Credentials
from headgate.net.network import Identity, Network, NetworkStatistics
from headgate.net.owner import ConnectionStatistics
from headgate.net.stream import Address, ListeningPort, PathStatistics, Stream, StreamHandler, Timer, Transport

__all__ = [
    "Address",
    "Authority",
    "ConnectionStatistics",
    "Credentials",
    "Identity",
    "ListeningPort",
    "Network",
    "NetworkStatistics",
    "PathStatistics",
    "Stream",
    "StreamHandler",
    "Timer",
    "Transport",
]
