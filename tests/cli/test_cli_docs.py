"""docs/cli.md has every command and option."""

import re
from pathlib import Path

import pytest
import typer

from headgate.cli.app import app

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app).commands


def test_every_command_is_in_the_table():
    assert set(re.findall(r"^\| \[?`headgate (\w+)", DOCS, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("name", ["demo", "run", "jobs", "top", "why", "report", "ui", "examples", "bench", "doctor"])
def test_every_option_is_explained(name):
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", DOCS, re.MULTILINE | re.DOTALL)[1]
    for parameter in COMMANDS[name].params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            known = not option.startswith("--") or option == "--help" or option in section
            assert known or (option == "--no-progress" and name == "examples"), option


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_text(name):
    assert COMMANDS[name].help
    assert all(getattr(one, "help", None) for one in COMMANDS[name].params)
