"""Keys, as they are pressed: the terminal gives them at once and unseen, until the block is left.

Used by commands that draw on the whole terminal, on their main thread. Invariant: whatever ends the block, the terminal
is afterwards as it was; Ctrl-C and Ctrl-Z are signals still.
"""

import os
import select
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["Keys", "pressed_keys"]

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
    b"\x7f": "escape",  # backspace: one back
}
_SEQUENCE_S: Final = 0.05  # within which the rest of a sequence follows its first byte


class Keys:
    """What was pressed, one by one.

    >>> Keys(None).read(timeout_s=0) is None
    True
    """

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal
        self._waiting = b""

    def read(self, timeout_s: float) -> str | None:
        """The next key by its name or letter; None: nobody has pressed any."""
        if not self._waiting and not self._more(timeout_s):
            return None
        if self._waiting == b"\x1b":
            self._more(_SEQUENCE_S)
        for length in (4, 3):
            name = _SEQUENCES.get(self._waiting[:length])
            if name is not None and len(self._waiting) >= length:
                self._waiting = self._waiting[length:]
                return name
        if self._waiting[:2] in {b"\x1b[", b"\x1bO"}:  # a key that nobody wants, whole
            end = next((i for i, byte in enumerate(self._waiting[2:], 2) if 0x40 <= byte <= 0x7E), len(self._waiting))
            self._waiting = self._waiting[end + 1 :]
            return ""
        one, self._waiting = self._waiting[:1], self._waiting[1:]
        return _SEQUENCES.get(one) or one.decode("ascii", "replace")

    def _more(self, timeout_s: float) -> bool:
        if self._terminal is None:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select([self._terminal], [], [], timeout_s)
        if not ready:
            return False
        some = os.read(self._terminal, 64)
        if not some:  # nobody is there any more
            raise EOFError
        self._waiting += some
        return True


@contextmanager
def pressed_keys(terminal: int | None) -> Iterator[Keys]:
    """Read keys from a terminal as long as the block lasts; None: there is no terminal, and no keys.

    >>> with pressed_keys(None) as keys:
    ...     keys.read(timeout_s=0)
    """
    if terminal is None:
        yield Keys(None)
        return
    before = termios.tcgetattr(terminal)
    changed = termios.tcgetattr(terminal)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, changed)
        yield Keys(terminal)
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
