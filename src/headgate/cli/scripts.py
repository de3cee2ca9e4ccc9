"""Running a user's script as `__main__`, with defaults for its environments.

Exit codes: that of the script, else 0; 1 if its code raises, here or in a worker; 2 (by `app`) for errors of headgate;
130 after Ctrl-C. Invariant: no job of the script runs after its end.
"""

import logging
import re
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from headgate.api.running import showing_activity, stop, unfinished_jobs
from headgate.config.defaults import Defaults, use_defaults
from headgate.errors import ConfigError, HeadgateError, UserCodeError

__all__ = ["ending_jobs", "run_script", "users_part"]

_FRAME = re.compile(r'^ *File "(?P<file>[^"]*)", line \d+.*\n(?:^    .*\n)*', re.MULTILINE)
# By name, not by this machine's path: a traceback may be from another machine. `examples` count as user code.
_PARTS = "api|cli|coordinator|graph|input|local|output|record|spark|task|worker"
_OURS = re.compile(rf"<frozen runpy>|[/\\]headgate[/\\](?:{_PARTS})[/\\]")


def users_part(trace: str) -> str:
    r"""Return a traceback without headgate's own frames; all of it if it has no others.

    >>> print(users_part('''Traceback (most recent call last):
    ...   File "/lib/headgate/task/basic.py", line 84, in _called
    ...     return self.answers(self._call, values)
    ...            ^^^^^^^^^^^^
    ...   File "/home/me/job.py", line 3, in reciprocal
    ...     return 1 / n
    ... ZeroDivisionError: division by zero'''))
    Traceback (most recent call last):
      File "/home/me/job.py", line 3, in reciprocal
        return 1 / n
    ZeroDivisionError: division by zero
    """
    if all(_OURS.search(frame["file"]) for frame in _FRAME.finditer(trace)):
        return trace
    return _FRAME.sub(lambda frame: "" if _OURS.search(frame["file"]) else frame[0], trace)


def run_script(file: Path, arguments: Sequence[str], chosen: Defaults) -> None:
    """Run a file as `python file arguments` would.

    Raises:
        typer.Exit: The script has failed, and the error is printed.
        HeadgateError: an error of headgate.
    """
    if not file.is_file():
        raise ConfigError(f"{file} is not a file")
    argv, path = sys.argv, sys.path[:]
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with ending_jobs(), use_defaults(chosen):
            runpy.run_path(str(file), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int | None):
            raise
        _print(str(end.code))
        raise typer.Exit(1) from None
    except (typer.Exit, BrokenPipeError):  # the latter: the reader of a pipe has closed it
        raise
    except UserCodeError as error:
        text = str(error)
        _print(f"headgate: {text.replace(error.trace, users_part(error.trace)) if error.trace else text}")
        raise typer.Exit(1) from None
    except HeadgateError:
        raise
    except Exception as error:  # noqa: BLE001 - any error of the user's code
        _print(users_part("".join(traceback.format_exception(error))).rstrip())
        raise typer.Exit(1) from None
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def ending_jobs() -> Iterator[None]:
    """Cancel all jobs of the block at its end; Ctrl-C ends the command."""
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    try:
        yield
        _report_unfinished()
    except SystemExit:
        _report_unfinished()
        raise
    except KeyboardInterrupt:
        _stop_all()
        _print("headgate: interrupted; its jobs are cancelled")
        raise typer.Exit(130) from None
    finally:
        _stop_all()
        root.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Return False for tracebacks that Py4J logs on Ctrl-C; it raises KeyboardInterrupt as well.

    It logs one while it waits for the JVM, and one when PySpark's handler calls the JVM during that wait.
    """
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    reentrant = error is not None and "reentrant call" in str(error.__context__)
    return not (
        text.startswith("KeyboardInterrupt while sending command")
        or (text.startswith("Exception while sending command") and reentrant)
    )


def _report_unfinished() -> None:
    if names := ", ".join(job.name for job in unfinished_jobs()):
        _print(f"headgate: the script ends before its jobs: {names} cancelled. job.await_termination() waits for a job")


def _stop_all() -> None:
    with showing_activity("cancelling"):
        for job in unfinished_jobs():
            stop(job)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
