"""The `headgate` command as a process of its own: in a pipe or in a terminal, and interrupted as Ctrl-C does."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HEADGATE = Path(sys.executable).with_name("headgate")
PATIENCE_S = 100.0
"""The limit of every wait: far more than any command takes, so that reaching it means a hang."""


class Command:
    """A running command, in a session of its own. `out` and `err` collect its output; a terminal has both in `out`."""

    def __init__(self, *arguments: object, terminal: bool = False, **environ: str) -> None:
        self._data: list[bytearray] = [bytearray(), bytearray()]
        master, out = pty.openpty() if terminal else os.pipe()
        other, err = (None, out) if terminal else os.pipe()
        settings = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", "PYTHONUNBUFFERED": "1", **environ}
        self.process = subprocess.Popen(
            [HEADGATE, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **settings},
            start_new_session=True,
        )
        os.close(out)
        if err != out:
            os.close(err)
        ends = [master] if other is None else [master, other]
        self._readers = [
            threading.Thread(target=self._read, args=(end, data), daemon=True)
            for end, data in zip(ends, self._data, strict=False)
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(end: int, data: bytearray) -> None:
        with contextlib.suppress(OSError):  # the other end of a terminal is closed
            while some := os.read(end, 65536):
                data += some
        os.close(end)

    @property
    def out(self) -> str:
        return self._data[0].decode(errors="replace").replace("\r\n", "\n")

    @property
    def err(self) -> str:
        return self._data[1].decode(errors="replace")

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"it has ended:\n{self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"it did not happen:\n{self.out}\n{self.err}"
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Send SIGINT to all processes of its group, as Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Return its exit code, after all output is read."""
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def left(self) -> list[str]:
        """Return the processes of its session that are still alive."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, fields = stat.read_text().rpartition(")")
                state, _, _, session = fields.split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found.append(name)
        return found


@contextlib.contextmanager
def command(*arguments: object, terminal: bool = False, **environ: str) -> Iterator[Command]:
    """Run `headgate` with some arguments; at the end, it and its group are killed if they are alive."""
    one = Command(*arguments, terminal=terminal, **environ)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
        one.end()
