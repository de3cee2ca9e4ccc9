"""What an environment is made with where its maker says nothing: how `headgate run` steers a user's script.

Set around the script on its thread; read when an environment is made.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Defaults", "Page", "defaults", "use_defaults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Options of the web page.

    >>> Page(port=8080).allow_control
    False
    """

    port: int = 0  # 0: one that is free
    allow_control: bool = False  # whether jobs can be cancelled from it


@dataclass(frozen=True, slots=True)
class Defaults:
    """Options of an environment.

    >>> Defaults(parallelism=4).local
    False
    """

    master: str | None = None  # of a Spark session that has to be started
    parallelism: int | None = None
    local: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    progress: bool | None = None  # None: where there is a terminal
    page: Page | None = None  # None: only if `execute` is told so
    runtime_mode: str | None = None  # None: as the settings say


_current: ContextVar[Defaults] = ContextVar("headgate_defaults", default=Defaults())  # noqa: B039 - it is frozen


def defaults() -> Defaults:
    """Those that hold here.

    >>> defaults().parallelism is None
    True
    """
    return _current.get()


@contextmanager
def use_defaults(chosen: Defaults) -> Iterator[None]:
    """Let these hold inside.

    >>> with use_defaults(Defaults(local=True, parallelism=3)):
    ...     defaults().parallelism
    3
    """
    token = _current.set(chosen)
    try:
        yield
    finally:
        _current.reset(token)
