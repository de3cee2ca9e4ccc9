"""What the tests of the benchmarks run in child processes: a module without pytest, so that a child starts soon."""

import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from headgate.bench import _peers, _ping
from headgate.bench._children import START_S, Parent

if TYPE_CHECKING:
    from headgate.bench._wire_ends import Place


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


def hear_that_the_other_is_gone(parent: Parent) -> None:
    time.sleep(0.1)
    raise ConnectionResetError("the other end is gone")


def return_a_function(parent: Parent) -> object:
    return lambda: None


def lose_some(parent: Parent, total: int, size: int) -> int:
    return _peers._receive_raw(parent, total, size) - 1


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
    _ping._send(parent, rate_hz, count - 1, work_s)


def receive_conditions(parent: Parent, *args: float) -> tuple[float, set[str]]:
    """What the receiving thread finds in its process."""
    found = []

    def look(connection: socket.socket, work_s: float) -> list[float]:
        found.append((sys.getswitchinterval(), {thread.name for thread in threading.enumerate()}))
        return []

    _ping._delays_ms = look
    _ping._receive(parent, *args)
    return found[0]


def pass_on(message: object, parent: Parent, place: "Place") -> tuple[object, int]:
    """Tell the other end something; what it tells, and who this is."""
    parent.send(message)
    return parent.receive(START_S), os.getpid()


def echo_place(parent: Parent, place: "Place") -> "Place":
    return place


def divide_by_zero_there(parent: Parent, place: "Place") -> float:
    return 1 / 0
