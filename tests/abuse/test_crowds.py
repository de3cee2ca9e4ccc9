"""Crowds of silent strangers at every port of a job: good workers get in beside them, and the log stays short."""

import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress

import pytest
from tests.abuse.support_abuse import Member, Stranger, closing_all
from tests.abuse.support_abuse import Site as WorkerSite
from tests.support.coordinator import Site as CoordinatorSite
from tests.support.coordinator import plan_of
from tests.support.waiting import PATIENCE_S, wait_until

import headgate as hg
from headgate.config import load_settings
from headgate.control.messages import Deploy
from headgate.net import Address

HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES = 50, 43, 38
LIMIT = 64  # the default of network.max_half_open
PATIENT = {"network.handshake_timeout": "10 min"}  # no stranger leaves because of time


def lines_about_refusals(caplog):
    return [one for one in caplog.records if one.levelno > logging.DEBUG and "refused" in one.getMessage()]


@pytest.mark.spec("N7", "N8")
@pytest.mark.parametrize("strangers", [LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT])
def test_a_worker_gets_in_beside_silent_strangers(strangers, caplog):
    with WorkerSite(caplog, network__handshake_timeout="10 min") as site:
        silent = [Stranger(site.address) for _ in range(strangers)]
        with closing_all(*silent):
            wait_until(lambda: site.producer.statistics().network.half_open == min(strangers, LIMIT), "the crowd")
            with Member(site.address) as member:
                assert member.handshake.done
            dropped = max(0, strangers + 1 - LIMIT)
            wait_until(lambda: site.refused == dropped, "the end of the oldest")
            for stranger in silent[:dropped]:
                assert stranger.hear() == b"", "the oldest are dropped"
            assert len(lines_about_refusals(caplog)) == min(dropped, 1)


class Besieged:
    """A port with silent strangers at it, before the first good connection is made and while it is."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._held = [Stranger(address) for _ in range(3 * LIMIT)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._come_again, daemon=True)
        self._thread.start()

    def _come_again(self) -> None:
        while not self._over.wait(0.001):
            with suppress(OSError):
                self._held.append(Stranger(self.address))
                self._held.pop(0).close()

    def close(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        for one in self._held:
            one.close()


@pytest.mark.spec("N7", "N8")
def test_a_transfer_begins_beside_silent_strangers(caplog):
    with WorkerSite(caplog, network__handshake_timeout="10 min", behind=Besieged) as site:
        wait_until(lambda: site.refused > 3 * LIMIT, "the crowd")


@pytest.mark.spec("N7", "N8")
@pytest.mark.parametrize("strangers", [LIMIT, 3 * LIMIT])
def test_the_coordinator_accepts_its_workers_beside_silent_strangers(strangers):
    with ExitStack() as crowd, CoordinatorSite(plan_of(settings=load_settings(code=PATIENT))) as site:
        for _ in range(strangers):
            crowd.enter_context(site.stranger())
        wait_until(lambda: site.coordinator._port.half_open == LIMIT, "the crowd")
        for worker in site.all_workers():
            worker.wait_heard(Deploy())


class Door:
    """A port before another one: it drops the first connections, at once or after the challenge, and lets others in."""

    def __init__(self, behind: Address, *, refuse: int, challenge: bool = False) -> None:
        self._behind = behind
        self._left = refuse
        self._challenge = challenge
        self.came = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._server.getsockname()[:2])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                came, _ = self._server.accept()
                self.came += 1
                refused = self._left > 0
                self._left -= refused
                if refused and not self._challenge:
                    reset(came)
                    continue
                onward = socket.create_connection(self._behind)
                if refused:
                    onward.sendall(came.recv(HELLO_BYTES, socket.MSG_WAITALL))
                    came.sendall(onward.recv(CHALLENGE_BYTES, socket.MSG_WAITALL))
                    came.recv(PROOF_BYTES, socket.MSG_WAITALL)
                    came.close()
                    onward.close()
                    continue
                self._open += [came, onward]
                threading.Thread(target=_pass_on, args=(came, onward), daemon=True).start()
                threading.Thread(target=_pass_on, args=(onward, came), daemon=True).start()

    def close(self) -> None:
        for one in (self._server, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.spec("N7")
@pytest.mark.parametrize("challenge", [False, True], ids=["before the challenge", "after the challenge"])
def test_a_worker_that_the_coordinator_drops_in_the_handshake_connects_again(challenge):
    with CoordinatorSite() as site:
        door = Door(site.address, refuse=2, challenge=challenge)
        try:
            behind, site.address = site.address, door.address
            first = site.worker(0)
            assert door.came == 3
            site.address = behind
            second = site.worker(1)
            for worker in (first, second):
                worker.wait_heard(Deploy())
        finally:
            door.close()


@pytest.mark.spec("N7")
@pytest.mark.parametrize("challenge", [False, True], ids=["before the challenge", "after the challenge"])
def test_a_worker_that_another_drops_in_the_handshake_connects_again(challenge, caplog):
    with WorkerSite(caplog, behind=lambda address: Door(address, refuse=2, challenge=challenge)) as site:
        pass
    assert site.door.came == 3


class Crowd:
    """A process whose connections to every port of this process say nothing, and come again when they are dropped."""

    def __init__(self) -> None:
        self.came = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CROWD, str(os.getpid()), str(LIMIT + 20)], stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        for line in self._process.stdout:
            self.came = int(line)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        self._process.stdout.close()


_CROWD = """
import os, socket, sys, time
from contextlib import suppress
from pathlib import Path

pid, each = int(sys.argv[1]), int(sys.argv[2])

def listening():
    own = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            own.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(one[1][9:], 16) for one in fields if one[3] == "0A" and f"socket:[{one[9]}]" in own}

held, came, over = {}, 0, time.monotonic() + 60
while time.monotonic() < over:
    for port in listening():
        here = held.setdefault(port, [])
        for _ in range(20):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            here.append(one)
            came += 1
            if len(here) > each:
                here.pop(0).close()
    print(came, flush=True)
    time.sleep(0.005)
"""

besieged: Crowd | None = None


def wait_for_the_crowd(value: int) -> int:
    if value == 0:
        wait_until(lambda: besieged.came > 20 * LIMIT, "the crowd")
    return value


@pytest.mark.spec("N7", "N8")
def test_a_job_under_siege_ends_with_every_record(caplog, monkeypatch):
    """Strangers come while workers register and connect, and while records move."""
    caplog.set_level(logging.INFO, logger="headgate")
    env = hg.environment(local=True, parallelism=3, settings={"network.handshake_timeout": "10 min"})
    keyed = env.from_collection(range(600)).rebalance().map(wait_for_the_crowd).key_by(lambda value: value % 7)
    with Crowd() as crowd:
        monkeypatch.setattr(sys.modules[__name__], "besieged", crowd)
        found = sorted(keyed.map(lambda value: value).execute_and_collect())
    assert found == list(range(600))
    ports = 5  # three workers, the driver's, the coordinator
    assert len(lines_about_refusals(caplog)) <= 2 * ports, "one at once, one at the end of the port"
