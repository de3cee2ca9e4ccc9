"""A function whose name ends in `_locked` is called with its lock held: checked on every call, in all tests.

`check_locked_methods` wraps each such method of the exchange whose object has a lock. With a `DebugLock` (all locks of
a `ThreadSync` are, in tests) the calling thread must hold it; with any other lock, some thread must. A call without the
lock raises, and is also kept in `violations`: a thread of headgate may catch and report what is raised on it.
"""

import functools
import importlib
import inspect
import pkgutil
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headgate.sync import DebugLock

PACKAGES = ("buffer", "output", "input", "wire", "net", "worker")

violations: list[str] = []


def check_locked_methods() -> None:
    """Wrap the `_locked` methods of all classes in `PACKAGES`. Called once per process, before any of them is used."""
    for package in PACKAGES:
        for module in _modules(f"headgate.{package}"):
            for one in vars(module).values():
                if inspect.isclass(one) and one.__module__ == module.__name__:
                    check_class(one)


def check_class(cls: type) -> None:
    """Wrap the `_locked` methods that a class defines."""
    for name, function in list(vars(cls).items()):
        if name.endswith("_locked") and inspect.isfunction(function):
            setattr(cls, name, _checked(function))


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        lock = getattr(self, "lock", None) or getattr(self, "_lock", None)
        held = lock._owner == threading.get_ident() if type(lock) is DebugLock else lock is None or lock.locked()
        if not held:
            text = f"{function.__qualname__} is called by {threading.current_thread().name} without the lock"
            violations.append(text)
            raise AssertionError(text)
        return function(self, *args, **kwargs)

    return call


def _modules(package: str) -> list[ModuleType]:
    root = importlib.import_module(package)
    found = [root]
    for one in pkgutil.walk_packages(root.__path__, f"{package}."):
        try:
            found.append(importlib.import_module(one.name))
        except ImportError:  # of an extra that is not installed
            continue
    return found
