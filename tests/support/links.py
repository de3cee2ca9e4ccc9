"""A slow link between workers: a proxy on loopback for all their data connections."""

import contextlib
import queue
import socket
import threading
import time

from tests.support.waiting import PATIENCE_S

from headgate.net import Address
from headgate.net.peers import Peers

_THIN_BYTES = 4096  # that a thin link takes at a time: what is more stays with the sender


class Link:
    """Forwards bytes between workers, each `delay_s` later, or at most `bytes_per_s` each way.

    `install` makes workers of this process connect to each other through it.
    """

    def __init__(self, *, delay_s=0.0, bytes_per_s=None):
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._listeners = {}  # by address: where to connect instead
        self._lock = threading.Lock()
        self._sockets = []
        self._threads = []

    def install(self, monkeypatch):
        know = Peers.set_address_locked
        monkeypatch.setattr(
            Peers, "set_address_locked", lambda peers, worker, address: know(peers, worker, self.to(address))
        )

    def to(self, address):
        """Return the address of the proxy for an address."""
        with self._lock:
            if address not in self._listeners:
                listener = self._keep(socket.socket())
                if self._bytes_per_s is not None:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _THIN_BYTES)
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                self._listeners[address] = listener
                self._start(self._accept, listener, address)
            return Address(*self._listeners[address].getsockname())

    def close(self):
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a link ends when its sockets do"
        for one in self._sockets:
            one.close()

    def _keep(self, one):
        self._sockets.append(one)
        return one

    def _start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, name="link", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener, address):
        with contextlib.suppress(OSError):  # closed
            while True:
                here = self._keep(listener.accept()[0])
                there = self._keep(socket.create_connection(address, timeout=PATIENCE_S))
                for source, sink in ((here, there), (there, here)):
                    sink.settimeout(None)
                    self._start(self._carry, source, sink)

    def _carry(self, source, sink):
        """Forward one direction of one connection."""
        under_way = queue.SimpleQueue()  # (when it arrives, bytes); no bytes: the end
        self._start(self._arrive, under_way, sink)
        data = None
        while data != b"":
            try:
                data = source.recv(1 << 16 if self._bytes_per_s is None else _THIN_BYTES)
            except OSError:
                data = b""
            if self._bytes_per_s is not None:
                time.sleep(len(data) / self._bytes_per_s)
            under_way.put((time.monotonic() + self._delay_s, data))

    @staticmethod
    def _arrive(under_way, sink):
        with contextlib.suppress(OSError):  # the other end is gone
            while True:
                at, data = under_way.get()
                time.sleep(max(0.0, at - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
