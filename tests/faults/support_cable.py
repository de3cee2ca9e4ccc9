"""A cable between two network namespaces that can be told to lose, delay, double and reorder packets.

Each end is a TUN device in its namespace; a thread of this process carries the packets from one to the other. So a bad
network can be had wherever there are namespaces, whatever the kernel's own shaping can do.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import time
from pathlib import Path

from tests.support.threads import Thread

_CLONE_NEWNET = 0x4000_0000
_TUNSETIFF = 0x4004_54CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES = 1 << 16
_TURN_S = 0.05


class Cable:
    """Carries packets until it is closed; how, may be changed at any time."""

    def __init__(self, namespaces: list[str], device: str) -> None:
        self.loss = 0.0  # share of the packets
        self.double = 0.0
        self.late_s = (0.0, 0.0)  # from, to: packets that take different times overtake one another
        self.carried = self.lost = 0
        self._chance = random.Random(1)
        self._device = device
        opened = Thread(lambda: [self._open(namespace) for namespace in namespaces])  # its namespace, not ours
        self._ends = opened.end()
        self._over = False
        self._late: list[tuple[float, int, int, bytes]] = []
        self._thread = Thread(self._carry)

    def _open(self, namespace: str) -> int:
        with Path("/run/netns", namespace).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", self._device.encode(), _IFF_TUN | _IFF_NO_PI))
        except OSError:
            os.close(end)
            raise
        return end

    def _carry(self) -> None:
        poll = select.poll()
        for end in self._ends:
            poll.register(end, select.POLLIN)
        while not self._over:
            wait_s = min(_TURN_S, self._late[0][0] - time.monotonic()) if self._late else _TURN_S
            for end, _ in poll.poll(max(0.0, wait_s) * 1000):
                self._take(end)
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, end, packet = heapq.heappop(self._late)
                self._put(end, packet)

    def _take(self, end: int) -> None:
        other = self._ends[1 - self._ends.index(end)]
        try:
            while True:
                packet = os.read(end, _PACKET_BYTES)
                self.carried += 1
                if self._chance.random() < self.loss:
                    self.lost += 1
                    continue
                for _ in range(2 if self._chance.random() < self.double else 1):
                    due = time.monotonic() + self._chance.uniform(*self.late_s)
                    heapq.heappush(self._late, (due, self.carried, other, packet))
        except BlockingIOError:
            pass
        except OSError:  # its device is down
            time.sleep(_TURN_S)

    @staticmethod
    def _put(end: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # its device is down: lost
            os.write(end, packet)

    def close(self) -> None:
        self._over = True
        try:
            self._thread.end()
        finally:
            for end in self._ends:
                os.close(end)
