"""What a bench report says about the machine it was made on; called once per run of a suite."""

import os
import platform
import sys
from importlib import metadata

from headgate.version import __version__

__all__ = ["machine"]

_LIBRARIES = ("numpy", "pyarrow", "msgspec")


def machine() -> dict[str, object]:
    """What a reader needs to know to judge the figures: hardware, interpreter, versions.

    >>> sorted(machine())
    ['cores', 'cpu', 'memory_bytes', 'platform', 'python', 'switch_interval_s', 'versions']
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "switch_interval_s": sys.getswitchinterval(),
        "versions": {"headgate": __version__, **{name: _version(name) for name in _LIBRARIES}},
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass  # not Linux: what the platform says will do
    return platform.processor() or platform.machine()
