"""After every test: all segments are back, and no thread, socket or temporary file is left."""

import gc
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from tests.support import locks
from tests.support.leaks import describe, record_socket_origins, unnamed_files
from xdist.scheduler import LoadScopeScheduling

from headgate.buffer import NetworkPool
from headgate.sync import ThreadSync

pytest_plugins = ("tests.timing",)

collect_ignore_glob = [
    "src/headgate/bench/peers/*_flows.py",  # scripts for systems that are not installed
    "tests/*/conftest.py",  # collected for doctests, modules of one name would collide
    "tests/support/*",  # neither tests nor doctests
]


TOGETHER = ("tests/spark/", "tests/ui/")

# hypothesis fails an example that takes 200 ms, and a test that draws its examples slowly: any can, under load.
hypothesis.settings.register_profile("headgate", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("headgate")


def pytest_configure(config: pytest.Config) -> None:
    """Give the jobs of tests a state directory of their own, and switch the checks of sockets and locks on."""
    config.state_directory = tempfile.mkdtemp(prefix="headgate-test-")  # type: ignore[attr-defined] # ours
    os.environ["HEADGATE_STATE_DIR"] = config.state_directory  # type: ignore[attr-defined]
    record_socket_origins()
    ThreadSync.debug_by_default = True
    locks.check_locked_methods()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the state directory."""
    shutil.rmtree(config.state_directory, ignore_errors=True)  # type: ignore[attr-defined]


class Together(LoadScopeScheduling):
    """Distributes files over the processes of xdist; the files of a directory in `TOGETHER` go to one process.

    Each of these directories shares a Spark session or a browser.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((directory for directory in TOGETHER if file.startswith(directory)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Called by xdist, with `-n`."""
    return Together(config, log)


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection: the collection after each test is then fast."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def freeze_earlier_objects() -> None:
    """Exclude the objects that earlier test modules have imported, too."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def default_sigint_handler() -> None:
    """Handle SIGINT as Python does, also in a process in which a SparkContext was created.

    A SparkContext installs a handler that stays for the life of the process: it calls the JVM (`cancelAllJobs`), which
    opens a connection if PySpark has none for this thread. Later tests that interrupt the main thread would run it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare threads, segments, sockets and unnamed files after the test with those before it."""
    pools: list[NetworkPool] = []
    create = NetworkPool.__init__

    def create_and_record(self: NetworkPool, *args: object, **kwargs: object) -> None:
        create(self, *args, **kwargs)  # type: ignore[arg-type]
        pools.append(self)

    monkeypatch.setattr(NetworkPool, "__init__", create_and_record)
    threads, files = set(threading.enumerate()), unnamed_files()
    yield
    left = set(threading.enumerate()) - threads
    if pools or unnamed_files() - files or left:
        gc.collect()  # garbage is no leak
    for thread in left:  # before the rest: a thread gives back what it holds when it ends
        thread.join(timeout=10)
        assert not thread.is_alive(), f"thread leaked: {thread.name}"
    for pool in pools:
        statistics = pool.statistics()
        assert statistics.free == statistics.total, f"segments leaked: {statistics}"
        assert statistics.exclusive == 0, f"exclusive segments leaked: {statistics}"
    deadline_s = time.monotonic() + 2.0
    while (leaked := unnamed_files() - files) and time.monotonic() < deadline_s:
        time.sleep(0.02)  # a socket of PySpark has no port yet while one of PySpark's threads connects it
    assert not leaked, f"sockets or temporary files leaked:\n{describe(leaked)}"


@pytest.fixture(autouse=True)
def locks_are_held() -> Iterator[None]:
    """Fail a test in which a `_locked` method was called without its lock, on any thread."""
    yield
    found, locks.violations[:] = locks.violations[:], []
    assert not found
