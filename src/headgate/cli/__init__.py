"""The `headgate` command. One module per command; `main` is the entry point and imports the rest lazily."""

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 0, 1 (a check failed), 2 (bad use), 130 (Ctrl-C).

    >>> main(["--version"])
    headgate ...
    0
    """
    try:
        # Inside the block: Ctrl-C during these imports must not print a traceback.
        from headgate.cli.app import run  # noqa: PLC0415

        return run(arguments)
    except KeyboardInterrupt:
        return 130
