"""How commands run a user's script: as `__main__`, with defaults for its environments, and how that ends.

Exit codes: what the script says, else 0; 1 if its code raises, here or in a worker; 2 (by `app`) if headgate refuses or
fails; 130 after Ctrl-C. Invariant: no job that the script has started goes on after it.
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

from headgate.api.defaults import Defaults, use_defaults
from headgate.api.running import saying, stop, unfinished
from headgate.errors import ConfigError, HeadgateError, UserCodeError

__all__ = ["ending_jobs", "run_script", "users_part"]

_FRAME = re.compile(r'^ *File "(?P<file>[^"]*)", line \d+.*\n(?:^    .*\n)*', re.MULTILINE)
# By name, not by this machine's path: a traceback may come from another one. `examples` are a user's code.
_PARTS = "api|cli|coordinator|graph|input|local|output|record|spark|task|worker"
_OURS = re.compile(rf"<frozen runpy>|[/\\]headgate[/\\](?:{_PARTS})[/\\]")


def users_part(trace: str) -> str:
    r"""A traceback without headgate's own frames; whole, if it has no others.

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
        typer.Exit: It has ended otherwise than well; everything is said.
        HeadgateError: headgate refuses something, or has failed.
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
        _say(str(end.code))
        raise typer.Exit(1) from None
    except (typer.Exit, BrokenPipeError):  # the latter: whoever reads what the script prints has seen enough
        raise
    except UserCodeError as error:
        text = str(error)
        _say(f"headgate: {text.replace(error.trace, users_part(error.trace)) if error.trace else text}")
        raise typer.Exit(1) from None
    except HeadgateError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's, whatever it is
        _say(users_part("".join(traceback.format_exception(error))).rstrip())
        raise typer.Exit(1) from None
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def ending_jobs() -> Iterator[None]:
    """Leave no job of the block running after it, and end a command that Ctrl-C interrupts.

    >>> with ending_jobs():
    ...     pass
    """
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    try:
        yield
        _tell_of_unfinished()
    except SystemExit:
        _tell_of_unfinished()
        raise
    except KeyboardInterrupt:
        _stop_all()
        _say("headgate: interrupted; its jobs are cancelled")
        raise typer.Exit(130) from None
    finally:
        _stop_all()
        root.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J logs a traceback when Ctrl-C comes while it waits for the JVM; it raises KeyboardInterrupt as well.

    Likewise when PySpark, on Ctrl-C, wants to tell the JVM of it while Py4J waits for another answer.
    """
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    reentrant = error is not None and "reentrant call" in str(error.__context__)
    return not (
        text.startswith("KeyboardInterrupt while sending command")
        or (text.startswith("Exception while sending command") and reentrant)
    )


def _tell_of_unfinished() -> None:
    if names := ", ".join(job.name for job in unfinished()):
        _say(f"headgate: the script ends before its jobs: {names} cancelled. job.await_termination() waits for one")


def _stop_all() -> None:
    with saying("cancelling"):
        for job in unfinished():
            stop(job)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
