"""Names given by users, made safe to show in terminals, logs, error texts, `explain` and the page."""

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Return the text with every character escaped that a terminal would interpret instead of showing it.

    These are control characters, line ends, marks that change the direction of writing, and spaces other than U+0020,
    escaped in Python's notation. Idempotent.

    >>> print(printable("map(\x1b[31mred)\n\u202e"))
    map(\x1b[31mred)\n\u202e
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
