"""Runs the workloads on Bytewax, from an environment of its own, with two workers: as processes and as threads.

Bytewax is not among headgate's dependencies: `make bench-peers` installs it below `.bench` of the current directory.
When a call ends, its processes are dead and reaped.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from headgate.bench.harness import percentile
from headgate.bench.pipeline_flows import FIRST, LAST, MADE, SEEN, Tally
from headgate.bench.workloads import LINE_WORDS
from headgate.errors import HeadgateError

__all__ = ["HOW_TO_GET", "PeerFailed", "bytewax_delays_ms", "bytewax_per_second", "find_bytewax"]

HOW_TO_GET: Final = "no rows beside Bytewax: it is not in .bench/bytewax here; `make bench-peers` installs it"
"""The note of a report without Bytewax."""

_LAYOUTS: Final = ((2, 1), (1, 2))  # processes, and workers of each: the better layout counts
_LIMIT_S: Final = 120.0  # to start, and to end after the sources
_SCRIPT: Final = Path(__file__).parent / "peers" / "bytewax_flows.py"


class PeerFailed(HeadgateError):
    """A peer's process failed, or did not end in time."""


def find_bytewax(directory: Path | None = None) -> Path | None:
    """Return the interpreter that has Bytewax, None without one."""
    python = (directory if directory is not None else Path.cwd()) / ".bench" / "bytewax" / "bin" / "python"
    return python if python.exists() else None


def bytewax_per_second(python: Path, case: str, seconds: float) -> float:
    """Return the records per second of a workload, timed as headgate's, in the faster layout."""
    each = LINE_WORDS if case == "word-count" else 1
    return max(Tally.of(_counters(_run(python, case, seconds, *layout)), each=each).per_second for layout in _LAYOUTS)


def bytewax_delays_ms(python: Path, seconds: float, skip: int, skip_s: float) -> list[float]:
    """Return the delay of each record but the first `skip` of each source, in the faster layout."""
    delays_ms = []
    for layout in _LAYOUTS:
        found = _run(python, "latency", seconds + skip_s, *layout)
        Tally.of(_counters(found))
        delays_ms.append([ns / 1e6 for one in found for number, ns in one["delays_ns"] if number >= skip])
    return min(delays_ms, key=lambda one: percentile(one, 99))


def _counters(found: list[dict[str, Any]]) -> list[dict[str, int]]:
    names = {"made": MADE, "seen": SEEN, "first_ns": FIRST, "last_ns": LAST}
    return [{names[key]: value for key, value in one.items() if key in names and value is not None} for one in found]


def _run(python: Path, case: str, seconds: float, count: int, workers: int) -> list[dict[str, Any]]:
    """Run the script in `count` processes and return the JSON object that each prints on its last line."""
    addresses = ";".join(f"127.0.0.1:{port}" for port in _free_ports(count)) if count > 1 else ""
    with ExitStack() as stack:
        outputs, processes = [], []
        for number in range(count):
            output = stack.enter_context(tempfile.TemporaryFile())
            options = [case, str(seconds), str(workers), str(number), addresses]
            arguments = [str(python), "-B", str(_SCRIPT), *options]
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603
            stack.callback(process.wait)
            stack.callback(process.kill)
            outputs.append(output)
            processes.append(process)
        deadline_s = time.monotonic() + _LIMIT_S + seconds
        while any(process.poll() is None for process in processes):
            failed = [number for number, process in enumerate(processes) if process.poll()]
            if failed or time.monotonic() > deadline_s:
                number = failed[0] if failed else 0
                how = f"ended with {processes[number].poll()}" if failed else "did not end"
                raise PeerFailed(f"{_SCRIPT.name} {case} {how}; it printed: {_text(outputs[number])}")
            time.sleep(0.05)
        return [_result(_text(output), case) for output in outputs]


def _result(text: str, case: str) -> dict[str, Any]:
    last = text.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise PeerFailed(f"{_SCRIPT.name} {case} printed no result; it printed: {text[-2000:]}")
    found: dict[str, Any] = json.loads(last)
    return found


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now: Bytewax requires addresses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
