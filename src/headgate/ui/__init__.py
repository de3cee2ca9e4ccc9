"""The web page of a job: its graph, its figures, and why it is not faster.

It reads jobs only through `observe.ObservedJob`: a running job, one of another process, or the file of a finished one.
The server needs the packages of `headgate[ui]`, which are imported when `UiServer` is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.ui.server import UiServer

__all__ = ["UiServer"]


def __getattr__(name: str) -> object:
    if name != "UiServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from headgate.ui.server import UiServer  # noqa: PLC0415 - imported on first use
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"prometheus_client", "starlette", "uvicorn", "h11"}:
            raise
        from headgate.errors import ConfigError  # noqa: PLC0415

        raise ConfigError(f"the page needs the package {error.name}: pip install 'headgate[ui]'") from None
    globals()[name] = UiServer
    return UiServer
