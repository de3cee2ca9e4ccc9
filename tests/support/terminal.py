"""A command in a terminal of its own: a test sends keys to it, and reads its screen."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

from tests.support.commands import HEADGATE, PATIENCE_S


class Terminal:
    """A terminal of 80 x 24 in which `headgate` runs, as in a shell: Ctrl-C and Ctrl-Z are keys."""

    def __init__(self, *arguments, **environ):
        self._master, self._slave = pty.openpty()
        self.data = b""
        self.before = termios.tcgetattr(self._slave)
        settings = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **environ}
        self.process = subprocess.Popen(
            [HEADGATE, *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**os.environ, **settings},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - it only asks the system
        )

    def press(self, keys):
        os.write(self._master, keys.encode())

    def read(self, timeout_s=0.05):
        if select.select([self._master], [], [], timeout_s)[0]:
            self.data += os.read(self._master, 65536)

    @property
    def screen(self):
        """Return the last complete screen."""
        frames = self.data.decode(errors="replace").split("\x1b[H")
        if frames and frames[-1].count("\n") < 23:  # it is being drawn
            frames.pop()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frames[-1] if frames else "").replace("\r", "")

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"it has ended:\n{self.data.decode(errors='replace')}"
            assert time.monotonic() < deadline, f"it did not happen:\n{self.screen}"
            self.read()

    def see(self, *texts):
        """Block until these texts are on the screen."""
        self.wait_until(lambda: all(text in self.screen for text in texts))

    @property
    def stopped(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "T"

    def modes(self):
        return termios.tcgetattr(self._slave)

    def end(self):
        deadline = time.monotonic() + PATIENCE_S
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, "it does not end"
            self.read()
        self.read(0)
        return code

    @property
    def is_restored(self):
        """True if the terminal is restored: its modes, the main screen, a visible cursor."""
        text = self.data.decode(errors="replace")
        return (
            self.modes() == self.before
            and text.count("\x1b[?1049h") == text.count("\x1b[?1049l")
            and text.rfind("\x1b[?25l") < text.rfind("\x1b[?25h")
        )

    def close(self):
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@contextlib.contextmanager
def terminal(*arguments, **environ):
    one = Terminal(*arguments, **environ)
    try:
        yield one
    finally:
        one.close()
