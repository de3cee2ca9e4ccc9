"""`headgate examples`: list, print or run the example pipelines."""

import ast
import difflib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.run import Local, Mode, Parallelism, Progress, chosen_defaults
from headgate.cli.scripts import run_script
from headgate.cli.tables import show_table
from headgate.errors import ConfigError
from headgate.examples import EXAMPLES

__all__ = ["examples", "find_example"]

_NEEDS_SPARK = "Needs Spark"  # in the docstring of examples that need it


def examples(  # noqa: PLR0917 - the command's options
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The example to run; without it, all are listed.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Arguments of the example: see its first lines."),
    ] = None,
    source: Annotated[bool, typer.Option("--source", help="Print its source instead, to read or to copy.")] = False,
    local: Local = False,
    parallelism: Parallelism = None,
    mode: Mode = None,
    progress: Progress = None,
) -> None:
    """List the pipelines that come with headgate, run one, or print its source.

    Example: headgate examples word_count --local
    """
    if name is None:
        show_table(["example", "what it shows"], [[one, _about(find_example(one))[0]] for one in EXAMPLES])
        return
    file = find_example(name)
    if source:
        print(file.read_text("utf-8"), end="")
        return
    if local and _NEEDS_SPARK in _about(file)[1]:
        raise ConfigError(f"{name} reads or creates Spark DataFrames: run it without --local")
    chosen = chosen_defaults(parallelism=parallelism, local=local, progress=progress, mode=mode)
    run_script(file, arguments or [], chosen)


def find_example(name: str) -> Path:
    """Return the file of an example.

    >>> find_example("word_count").name
    'word_count.py'
    """
    module = EXAMPLES.get(name.replace("-", "_"))
    if module is None:
        near = difflib.get_close_matches(name, EXAMPLES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EXAMPLES)}"
        raise ConfigError(f"there is no example {name!r}: {hint}")
    spec = find_spec(module)
    assert spec is not None, "it is part of headgate"
    assert spec.origin is not None, "it is a file"
    return Path(spec.origin)


def _about(file: Path) -> tuple[str, str]:
    """Return the first line of its docstring, and all of it, without importing it, which may take a second."""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return text.partition("\n")[0], text
