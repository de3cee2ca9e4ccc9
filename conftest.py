"""After every test: all segments are back, and no thread, socket or temporary file is left."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from headgate.buffer import NetworkPool


def _open_files() -> set[str]:
    """Sockets and unnamed temporary files of this process."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:") or target.endswith("(deleted)"):
            found.add(f"{fd} -> {target}")
    return found


@pytest.fixture(autouse=True)
def nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare what the test leaves behind with what it found."""
    pools: list[NetworkPool] = []
    made = NetworkPool.__init__

    def remember(self: NetworkPool, *args: object, **kwargs: object) -> None:
        made(self, *args, **kwargs)  # type: ignore[arg-type]
        pools.append(self)

    monkeypatch.setattr(NetworkPool, "__init__", remember)
    threads, files = set(threading.enumerate()), _open_files()
    yield
    gc.collect()
    for pool in pools:
        statistics = pool.statistics()
        assert statistics.free == statistics.total, f"segments leaked: {statistics}"
        assert statistics.exclusive == 0, f"exclusive segments leaked: {statistics}"
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10)
        assert not thread.is_alive(), f"thread leaked: {thread.name}"
    assert _open_files() <= files, "sockets or temporary files leaked"
