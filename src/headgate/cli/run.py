"""`headgate run`: run a user's script, with options for its environment."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.config import assignment
from headgate.cli.scripts import run_script
from headgate.config import RuntimeMode, load_settings
from headgate.config.defaults import Defaults, Page
from headgate.errors import ConfigError
from headgate.ui.process_page import close_page, keep_page

__all__ = ["Local", "Mode", "Parallelism", "Progress", "chosen_defaults", "chosen_page", "run_file"]

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master of the session to start: local[4], spark://host:7077 ... Default: this machine.",
    ),
]
Parallelism = Annotated[
    int | None, typer.Option("--parallelism", min=1, help="Subtasks of each operator; default: one per task slot.")
]
Local = Annotated[bool, typer.Option("--local", help="Run in threads of this process, without Spark.")]
Mode = Annotated[
    RuntimeMode | None,
    typer.Option(
        "--mode",
        case_sensitive=False,
        help="How jobs run: STREAMING, all tasks at once; BATCH, one after another through disk; AUTO, BATCH where all"
        " sources end.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; `headgate config` lists all. Repeatable."),
]
Progress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show progress on stderr; default: if that is a terminal."),
]

Ui = Annotated[
    bool, typer.Option("--ui", help="Show its jobs on a web page, and print the address; needs headgate[ui].")
]
UiPort = Annotated[
    int | None, typer.Option("--ui-port", metavar="N", min=1, max=65535, help="The page's port; default: a free one.")
]
AllowControl = Annotated[bool, typer.Option("--allow-control", help="Let the page cancel jobs.")]
KeepUi = Annotated[bool, typer.Option("--keep-ui", help="Keep the page after the script, until Enter or Ctrl-C.")]


def chosen_page(ui: bool, port: int | None, allow_control: bool, keep: bool) -> Page | None:
    """Return the checked options of the page, or None if there is no page.

    >>> chosen_page(True, 8080, False, False)
    Page(port=8080, allow_control=False)
    """
    if not ui:
        for name, given in {"--ui-port": port is not None, "--allow-control": allow_control, "--keep-ui": keep}.items():
            if given:
                raise ConfigError(f"{name} needs the page: add --ui")
        return None
    return Page(port=port or 0, allow_control=allow_control)


def chosen_defaults(
    master: str | None = None,
    parallelism: int | None = None,
    local: bool = False,
    settings: list[str] | None = None,
    progress: bool | None = None,
    *,
    mode: RuntimeMode | None = None,
) -> Defaults:
    """Return the checked options as defaults of environments.

    >>> chosen_defaults(settings=["network.buffers_per_channel=4"]).settings
    {'network.buffers_per_channel': '4'}
    """
    if local and master is not None:
        raise ConfigError("--local runs without Spark: give --master or --local, not both")
    code = dict(assignment(one) for one in settings or [])
    load_settings(code=code, environ={}, code_name="--set")
    return Defaults(
        master=master, parallelism=parallelism, local=local, settings=code, progress=progress, runtime_mode=mode
    )


def run_file(  # noqa: PLR0917 - the command's options
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python script that builds a pipeline and executes it.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Arguments of the script; after `--` if they begin with a dash."),
    ] = None,
    master: Master = None,
    parallelism: Parallelism = None,
    local: Local = False,
    mode: Mode = None,
    settings: Set = None,
    progress: Progress = None,
    ui: Ui = False,
    ui_port: UiPort = None,
    allow_control: AllowControl = False,
    keep_ui: KeepUi = False,
) -> None:
    """Run a script; these options are the defaults of its environments.

    Example: headgate run word_count.py --parallelism 4 --set execution.buffer_timeout=10ms -- --top 20

    Exits with 1 if the script's code fails, with 2 if headgate does, with 130 after Ctrl-C, which cancels its jobs.
    """
    page = chosen_page(ui, ui_port, allow_control, keep_ui)
    chosen = replace(chosen_defaults(master, parallelism, local, settings, progress, mode=mode), page=page)
    interrupted = False
    try:
        run_script(file, arguments or [], chosen)
    except typer.Exit as end:
        interrupted = end.exit_code == 130
        raise
    finally:
        if keep_ui and not interrupted:
            keep_page()
        close_page()
