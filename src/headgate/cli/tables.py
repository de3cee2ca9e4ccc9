"""Tables for people: drawn in a terminal, plain and complete in a pipe.

Used by the commands. Invariant: no text is ever cut; a terminal wraps it, a pipe gets it on one line.
"""

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["plain_table", "show_table"]


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to one width, two spaces apart; empty cells as `-`, so that columns can be told apart.

    >>> print(plain_table(["key", "value"], [["a", "1"], ["long", ""]]))
    key   value
    a     1
    long  -
    """
    lines = [list(header), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def show_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, whole: int = 1, styles: Mapping[str, str] | None = None
) -> None:
    """Print a table on stdout; a terminal too narrow wraps all but the first `whole` columns.

    Args:
        header: The columns' names.
        rows: Their cells.
        whole: How many columns are never wrapped.
        styles: How a cell with exactly this text looks in a terminal.

    >>> show_table(["key"], [["a"]])
    key
    a
    """
    if not sys.stdout.isatty():
        print(plain_table(header, rows))
        return
    table = Table(header_style="bold")
    for number, name in enumerate(header):
        table.add_column(name, no_wrap=number < whole, overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(cell, style=(styles or {}).get(cell, "")) for cell in row)
        )  # Text: a value is never read as markup
    Console().print(table)
