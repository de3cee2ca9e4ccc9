"""Tables of commands: drawn in a terminal, plain text in a pipe.

Invariant: no text is cut; a terminal wraps it, a pipe has it on one line.
"""

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["plain_table", "show_table"]


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return padded columns, two spaces apart; an empty cell is `-`, so that columns can be split.

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
    """Print a table on stdout; a narrow terminal wraps all but the first `whole` columns.

    Args:
        header: The columns' names.
        rows: Their cells.
        whole: The number of columns that are never wrapped.
        styles: The style of a cell by its text.

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
        )  # as Text: a value is not parsed as markup
    Console().print(table)
