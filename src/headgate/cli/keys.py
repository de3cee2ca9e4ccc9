"""Reading single keys from the terminal, without echo.

Used by commands that draw on the whole terminal, on their main thread. Invariant: after the block the terminal has its
former mode; Ctrl-C and Ctrl-Z still send signals.
"""

import os
import select
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["KeyReader", "read_keys"]

_SEQUENCES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "escape",  # backspace
}
_SEQUENCE_S: Final = 0.05  # within which the rest of a sequence follows


class KeyReader:
    """Reads keys one by one."""

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal
        self._buffered = b""

    def read(self, timeout_s: float) -> str | None:
        """Return the name or letter of the next key, or None if no key was pressed in time."""
        if not self._buffered and not self._more(timeout_s):
            return None
        if self._buffered == b"\x1b":
            self._more(_SEQUENCE_S)
        for length in (4, 3):
            name = _SEQUENCES.get(self._buffered[:length])
            if name is not None and len(self._buffered) >= length:
                self._buffered = self._buffered[length:]
                return name
        if self._buffered[:2] in {b"\x1b[", b"\x1bO"}:  # skip the sequence of an unknown key
            end = next((i for i, byte in enumerate(self._buffered[2:], 2) if 0x40 <= byte <= 0x7E), len(self._buffered))
            self._buffered = self._buffered[end + 1 :]
            return ""
        one, self._buffered = self._buffered[:1], self._buffered[1:]
        return _SEQUENCES.get(one) or one.decode("ascii", "replace")

    def _more(self, timeout_s: float) -> bool:
        if self._terminal is None:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select([self._terminal], [], [], timeout_s)
        if not ready:
            return False
        some = os.read(self._terminal, 64)
        if not some:  # the terminal was closed
            raise EOFError
        self._buffered += some
        return True


@contextmanager
def read_keys(terminal: int | None) -> Iterator[KeyReader]:
    """Yield a reader of a terminal's keys; None: there is no terminal, and no key."""
    if terminal is None:
        yield KeyReader(None)
        return
    before = termios.tcgetattr(terminal)
    changed = termios.tcgetattr(terminal)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, changed)
        yield KeyReader(terminal)
    finally:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
