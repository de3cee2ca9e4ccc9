"""How a plan with the user's functions gets from the driver to the Python workers: as bytes in Spark's closure.

The driver makes a `Parcel`, workers open it before anything else. It is Spark that carries it, with the same trust as
any function of a PySpark job.

Classes of the driver's `__main__` (a script, a notebook) are rebuilt in each worker; so that their instances can be
sent from worker to worker by name, they are put where that name leads: into the worker's own `__main__`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle as _cloudpickle

from headgate.errors import ConfigError

__all__ = ["Parcel", "pack"]

_MAIN = "__main__"

cloudpickle: Any = _cloudpickle  # without types


@dataclass(frozen=True, slots=True)
class Parcel:
    """Something with functions in it, on its way to workers.

    >>> pack([str.upper], same_machine=True).open()[0]("to")
    'TO'
    """

    content: bytes
    classes: bytes  # those of __main__, by name
    paths: tuple[str, ...]  # where the driver finds modules; workers on the same machine look there too

    def open(self) -> Any:
        """What was packed."""
        for path in self.paths:
            if path not in sys.path:
                sys.path.append(path)
        content = cloudpickle.loads(self.content)
        main = sys.modules[_MAIN]
        for name, cls in cloudpickle.loads(self.classes).items():
            setattr(main, name, cls)
        return content


def pack(content: object, *, same_machine: bool) -> Parcel:
    """Make a parcel, in the driver.

    >>> pack({"double": lambda n: 2 * n}, same_machine=True).open()["double"](21)
    42

    Raises:
        ConfigError: something in it cannot be sent to another process.
    """
    try:
        dumped = cloudpickle.dumps(content)
        classes = cloudpickle.dumps(_main_classes())
    except Exception as error:
        raise ConfigError(
            f"the pipeline cannot be sent to its workers: {error}. A function of it refers to something that belongs "
            "to this process, such as a lock, a connection or a Spark session: make that in the function's open()"
        ) from error
    return Parcel(dumped, classes, tuple(path for path in sys.path if path) if same_machine else ())


def _main_classes() -> dict[str, type]:
    """The classes of __main__ that cloudpickle has sent by value, this time or before."""
    main = sys.modules[_MAIN]
    found: dict[str, type] = {}
    tracked: list[type] = list(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)
    for cls in tracked:
        if cls.__module__ == _MAIN and getattr(main, cls.__qualname__, None) is cls:
            found[cls.__qualname__] = cls
    return found
