"""`headgate config`: every setting, its value, and the source of that value."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.tables import show_table
from headgate.config import Described, load_settings
from headgate.errors import ConfigError

__all__ = ["assignment", "config"]


def config(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Show only these settings or sections, such as `network`."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A value that overrides all sources. Repeatable."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Settings file, instead of $HEADGATE_CONFIG or ./headgate.toml."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """Show every setting: its value, the source of that value, and its meaning.

    Sources, later over earlier: defaults, TOML file, HEADGATE_* environment, Spark conf, code.
    """
    settings = load_settings(code=dict(assignment(one) for one in changes or []), file=file, code_name="--set")
    rows = _selected(settings.describe(), keys)
    if as_json:
        print(json.dumps([_as_json(row) for row in rows], indent=2))
        return
    show_table(
        ["setting", "value", "from", "meaning"],
        [[row.setting.key, row.text or "(empty)", row.origin, row.setting.meaning] for row in rows],
        whole=2,
    )


def assignment(text: str) -> tuple[str, object]:
    """Return the key and the value of an option `--set`.

    >>> assignment("memory.segment_size=64KiB")
    ('memory.segment_size', '64KiB')
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write it as KEY=VALUE, such as --set memory.segment_size=64KiB")
    return key.strip(), value


def _selected(rows: Sequence[Described], wanted: Sequence[str] | None) -> list[Described]:
    """Return the rows that match a section or a whole key, else any part of a key."""
    if not wanted:
        return list(rows)
    found: set[str] = set()
    for one in wanted:
        keys = [row.setting.key for row in rows]
        matches = [key for key in keys if f"{key}.".startswith(f"{one}.")] or [key for key in keys if one in key]
        if not matches:
            raise ConfigError(f"no setting matches {one!r}: `headgate config` lists all")
        found.update(matches)
    return [row for row in rows if row.setting.key in found]


def _as_json(row: Described) -> dict[str, object]:
    kind = row.setting.kind
    return {
        "key": row.setting.key,
        "value": kind.plain(row.value),
        "unit": kind.unit,
        "text": row.text,
        "default": kind.show(row.setting.default),
        "origin": row.origin,
        "allowed": kind.allowed,
        "environment": row.setting.environment,
        "meaning": row.setting.meaning,
    }
