"""One Spark session on this machine for all tests that take `spark`, and what those may leave behind.

PySpark keeps threads and connections to its JVM as long as it likes; everything else must be gone after each test.
"""

import gc
import threading
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.leaks import own_tcp_sockets

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
    sockets = own_tcp_sockets()
    yield
    deadline = time.monotonic() + GONE_S
    while (left := own_threads() + sorted(own_tcp_sockets() - sockets)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    gc.collect()
    for pool in pools:
        statistics = pool.statistics()
        assert statistics.free == statistics.total, f"segments leaked: {statistics}"


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("headgate")]
