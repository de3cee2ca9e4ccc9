"""Functions that the tests of the benchmarks run in child processes; without pytest, so that a child starts fast."""

import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from headgate.bench import baselines
from headgate.bench.processes import START_S, Parent

if TYPE_CHECKING:
    from headgate.bench.workers import WorkerEnd


def double(parent: Parent) -> str:
    parent.send(2 * parent.receive(START_S))
    return "done"


def sleep(parent: Parent) -> None:
    parent.send("asleep")
    time.sleep(600)


def divide_by_zero(parent: Parent) -> float:
    return 1 / 0


def exit_at_once(parent: Parent, status: int) -> None:
    os.write(1, b"on stdout\n")
    os.write(2, b"last words\n")
    os._exit(status)


def die(parent: Parent) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_late(parent: Parent) -> None:
    time.sleep(0.1)
    raise ConnectionResetError("the other end is gone")


def return_a_function(parent: Parent) -> object:
    return lambda: None


def lose_some(parent: Parent, total: int, size: int) -> int:
    return baselines._receive_raw(parent, total, size) - 1


def die_halfway(parent: Parent, total: int, size: int) -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        parent.send(server.getsockname()[1])
        connection, _ = server.accept()
        connection.recv(total // 2, socket.MSG_WAITALL)
    os.write(2, b"out of luck\n")
    os._exit(7)


def raise_at_once(parent: Parent, total: int, size: int) -> int:
    parent.receive(START_S)
    raise RuntimeError("no mood to send")


def send_one_less(parent: Parent, rate_hz: float, count: int, work_s: float) -> None:
    baselines._send_messages(parent, rate_hz, count - 1, work_s)


def receive_conditions(parent: Parent, *args: float) -> tuple[float, set[str]]:
    """Return the switch interval and the threads of the receiving process."""
    found = []

    def note(connection: socket.socket, work_s: float) -> list[float]:
        found.append((sys.getswitchinterval(), {thread.name for thread in threading.enumerate()}))
        return []

    baselines._read_delays_ms = note
    baselines._receive_messages(parent, *args)
    return found[0]


def exchange(message: object, parent: Parent) -> tuple[object, int]:
    """Send the other process a message; return its message, and the id of this process."""
    parent.send(message)
    return parent.receive(START_S), os.getpid()


def echo_end(parent: Parent, end: "WorkerEnd") -> "WorkerEnd":
    return end
