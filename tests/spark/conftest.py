"""One Spark session on this machine for all tests that take `spark`, and what those may leave behind.

PySpark keeps threads and connections to its JVM as long as it likes; everything else must be gone after each test.
"""

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headgate.buffer import NetworkPool
from headgate.spark.session import local_session

GONE_S = 15.0
"""How long a test waits for what should be gone."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session(4, master="local[4]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of the fixture of all other tests, which would count PySpark's own."""
    pools: list[NetworkPool] = []
    made = NetworkPool.__init__

    def remember(self: NetworkPool, *args: object, **kwargs: object) -> None:
        made(self, *args, **kwargs)  # type: ignore[arg-type]
        pools.append(self)

    monkeypatch.setattr(NetworkPool, "__init__", remember)
    sockets = own_sockets()
    yield
    deadline = time.monotonic() + GONE_S
    while (left := own_threads() + sorted(own_sockets() - sockets)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    gc.collect()
    for pool in pools:
        statistics = pool.statistics()
        assert statistics.free == statistics.total, f"segments leaked: {statistics}"


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("headgate")]


def pyspark_ports() -> set[str]:
    """The JVM's port, and the one that PySpark has for accumulators."""
    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    ports = set() if gateway is None else {gateway.java_parameters.port}
    if context is not None:
        ports.add(context._accumulatorServer.server_address[1])
    return {f"{port:04X}" for port in ports}


def own_sockets() -> set[str]:
    """The TCP sockets of this process that are not PySpark's: `local -> remote`, as the kernel writes them."""
    inodes = set()
    for one in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(one)
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = pyspark_ports()
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, remote, inode = (line.split()[column] for column in (1, 2, 9))
            if inode in inodes and not {local.rpartition(":")[2], remote.rpartition(":")[2]} & ports:
                found.add(f"{local} -> {remote}")
    return found
