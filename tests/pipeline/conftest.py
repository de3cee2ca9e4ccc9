"""After every job: besides what every test must leave as it was, no file and no trace of a bug is left."""

import logging
import os
from collections.abc import Iterator

import pytest


def nameless() -> set[str]:
    """Sockets, pipes, epolls and the like."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if not target.startswith("/"):
            found.add(f"{fd} -> {target}")
    return found


@pytest.fixture(autouse=True)
def the_process_is_as_before(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    files = nameless()
    caplog.set_level(logging.INFO, logger="headgate")
    yield
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert errors == [], "what is the user's fault is not a bug in headgate"
    assert nameless() <= files, "files leaked"
