"""After every test: all segments are back, and no thread, socket or temporary file is left."""

import gc
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import unnamed_files
from xdist.scheduler import LoadScopeScheduling

from headgate.buffer import NetworkPool

collect_ignore_glob = [
    "src/headgate/bench/peers/*_flows.py",  # scripts for systems that are not installed here
    "tests/*/conftest.py",  # as modules with doctests they would be in each other's way
]


TOGETHER = ("tests/spark/", "tests/ui/")


def pytest_configure(config: pytest.Config) -> None:
    """Jobs of tests, and of processes that they start, are offered and kept where the user's are not."""
    config.state_directory = tempfile.mkdtemp(prefix="headgate-test-")  # type: ignore[attr-defined] # ours
    os.environ["HEADGATE_STATE_DIR"] = config.state_directory  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing of them stays."""
    shutil.rmtree(config.state_directory, ignore_errors=True)  # type: ignore[attr-defined]


class Together(LoadScopeScheduling):
    """Where several processes share the tests: a file stays in one, and so do all that share a session or a browser."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((directory for directory in TOGETHER if file.startswith(directory)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Called by xdist, with `-n`."""
    return Together(config, log)


def pytest_collection_finish() -> None:
    """What was imported stays: the collections after each test need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def what_came_before_stays() -> None:
    """Nor at what the tests of other modules have imported, which can be much."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare what the test leaves behind with what it found."""
    pools: list[NetworkPool] = []
    made = NetworkPool.__init__

    def remember(self: NetworkPool, *args: object, **kwargs: object) -> None:
        made(self, *args, **kwargs)  # type: ignore[arg-type]
        pools.append(self)

    monkeypatch.setattr(NetworkPool, "__init__", remember)
    threads, files = set(threading.enumerate()), unnamed_files()
    yield
    left = set(threading.enumerate()) - threads
    if pools or unnamed_files() - files or left:
        gc.collect()  # what is garbage has not leaked
    for thread in left:  # the first of all: what they have, they give back before they end
        thread.join(timeout=10)
        assert not thread.is_alive(), f"thread leaked: {thread.name}"
    for pool in pools:
        statistics = pool.statistics()
        assert statistics.free == statistics.total, f"segments leaked: {statistics}"
        assert statistics.exclusive == 0, f"exclusive segments leaked: {statistics}"
    assert unnamed_files() <= files, "sockets or temporary files leaked"
