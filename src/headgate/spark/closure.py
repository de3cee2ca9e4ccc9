"""How a plan with the user's functions gets from the driver to the Python workers: as bytes in Spark's closure.

The driver makes a `PackedPlan`, and each worker opens it first. Spark carries it, with the same trust as any function
of a PySpark job.

Classes of the driver's `__main__` (a script, a notebook) are rebuilt in each worker and put into the worker's own
`__main__`, so that their instances can be sent between workers by name.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle as _cloudpickle

from headgate.errors import ConfigError

__all__ = ["PackedPlan", "pack"]

_MAIN = "__main__"

cloudpickle: Any = _cloudpickle  # it has no types


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """An object with functions, as bytes for the workers.

    >>> pack([str.upper], same_machine=True).open()[0]("to")
    'TO'
    """

    content: bytes
    classes: bytes  # classes of __main__, by name
    paths: tuple[str, ...]  # the driver's sys.path, for workers on the same machine

    def open(self) -> Any:
        """Return the object."""
        for path in self.paths:
            if path not in sys.path:
                sys.path.append(path)
        content = cloudpickle.loads(self.content)
        main = sys.modules[_MAIN]
        for name, cls in cloudpickle.loads(self.classes).items():
            setattr(main, name, cls)
        return content


def pack(content: object, *, same_machine: bool) -> PackedPlan:
    """Pack an object; in the driver.

    >>> pack({"double": lambda n: 2 * n}, same_machine=True).open()["double"](21)
    42

    Raises:
        ConfigError: a part of it cannot be sent to another process.
    """
    try:
        dumped = cloudpickle.dumps(content)
        classes = cloudpickle.dumps(_main_classes())
    except Exception as error:
        raise ConfigError(
            f"the pipeline cannot be sent to its workers: {error}. One of its functions refers to an object of this "
            "process, such as a lock, a connection or a Spark session: make that object in the function's open()"
        ) from error
    return PackedPlan(dumped, classes, tuple(path for path in sys.path if path) if same_machine else ())


def _main_classes() -> dict[str, type]:
    """Return the classes of __main__ that cloudpickle has sent by value, now or earlier."""
    main = sys.modules[_MAIN]
    found: dict[str, type] = {}
    tracked: list[type] = list(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)
    for cls in tracked:
        if cls.__module__ == _MAIN and getattr(main, cls.__qualname__, None) is cls:
            found[cls.__qualname__] = cls
    return found
