"""Runs the workloads on a peer, in an environment of its own: with two workers, as processes and as threads.

Called in the driver by the suite. Peers are not among headgate's dependencies: `make bench-peers` installs them, below
`.bench` of the directory it is run in, and what is measured beside them is left out where they are not.

Invariant: when a call returns or raises, its processes are dead and reaped.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headgate.bench._ping import percentile
from headgate.bench._pipeline_flows import FIRST, LAST, MADE, SEEN
from headgate.bench._pipeline_run import Outcome
from headgate.bench._workloads import LINE_WORDS
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HOW_TO_GET", "PeerFailed", "bytewax_delays_ms", "bytewax_per_second", "find_bytewax"]

HOW_TO_GET = "no rows beside Bytewax: it is not in .bench/bytewax here; `make bench-peers` puts it there"
"""What a report says where the peer is missing."""

_LAYOUTS = ((2, 1), (1, 2))  # processes, and workers of each: what is better counts
_LIMIT_S = 120.0  # to start, and to end after the sources have
_POLL_S = 0.05
_SCRIPT = Path(__file__).parent / "peers" / "bytewax_flows.py"
_LAST_WORDS_BYTES = 2000


class PeerFailed(HeadgateError):
    """A peer's process has failed, or said nothing in time.

    >>> raise PeerFailed("bytewax ended with exit status 1")
    Traceback (most recent call last):
    headgate.bench._pipeline_peers.PeerFailed: bytewax ended with exit status 1
    """


def find_bytewax(directory: Path | None = None) -> Path | None:
    """The interpreter that has Bytewax, if there is one.

    >>> find_bytewax(Path("/nonesuch")) is None
    True
    """
    python = (directory if directory is not None else Path.cwd()) / ".bench" / "bytewax" / "bin" / "python"
    return python if python.exists() else None


def bytewax_per_second(python: Path, case: str, seconds: float) -> float:
    """Records a second of a workload, timed as our own are, in the layout that does more."""
    each = LINE_WORDS if case == "word-count" else 1
    return max(outcome(_run(python, case, seconds, *layout), each=each).per_second for layout in _LAYOUTS)


def bytewax_delays_ms(python: Path, seconds: float, skip: int, skip_s: float) -> list[float]:
    """How long each record was under way, but for the first `skip` of each source, in the layout that is quicker."""
    delays_ms = []
    for layout in _LAYOUTS:
        found = _run(python, "latency", seconds + skip_s, *layout)
        outcome(found)
        delays_ms.append([ns / 1e6 for one in found for number, ns in one["delays_ns"] if number >= skip])
    return min(delays_ms, key=lambda one: percentile(one, 99))


def outcome(found: list[dict[str, Any]], *, each: int = 1) -> Outcome:
    """What all processes have found, together.

    >>> outcome([{"made": 2, "seen": 3, "first_ns": 5, "last_ns": 9}, {"made": 1, "seen": 0, "first_ns": 4}])
    Outcome(made=3, seen=3, first_ns=4, last_ns=9)
    """
    names = {"made": MADE, "seen": SEEN, "first_ns": FIRST, "last_ns": LAST}
    counters: list[Mapping[str, int]] = [
        {counter: one[name] for name, counter in names.items() if one.get(name) is not None} for one in found
    ]
    return Outcome.of(counters, each=each)


def _run(python: Path, case: str, seconds: float, count: int, workers: int) -> list[dict[str, Any]]:
    addresses = ";".join(f"127.0.0.1:{port}" for port in _free_ports(count)) if count > 1 else ""
    with ExitStack() as stack:
        outputs, processes = [], []
        for number in range(count):
            output = stack.enter_context(tempfile.TemporaryFile())
            told = [case, str(seconds), str(workers), str(number), addresses]
            arguments = [str(python), "-B", str(_SCRIPT), *told]
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603
            stack.callback(_end, process)
            outputs.append(output)
            processes.append(process)
        deadline_s = time.monotonic() + _LIMIT_S + seconds
        while any(process.poll() is None for process in processes):
            failed = [number for number, process in enumerate(processes) if process.poll()]
            if failed or time.monotonic() > deadline_s:
                number = failed[0] if failed else 0
                how = f"ended with {processes[number].poll()}" if failed else "did not end"
                raise PeerFailed(f"{_SCRIPT.name} {case} {how}; it printed: {_text(outputs[number])}")
            time.sleep(_POLL_S)
        return [read_result(_text(output), case) for output in outputs]


def read_result(text: str, case: str) -> dict[str, Any]:
    r"""What a process has found, from all that it printed.

    >>> read_result("worker 1: retrying\n{\"made\": 3}\n", "shuffle")
    {'made': 3}
    """
    last = text.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise PeerFailed(f"{_SCRIPT.name} {case} said nothing of its result; it printed: {text[-_LAST_WORDS_BYTES:]}")
    found: dict[str, Any] = json.loads(last)
    return found


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago: the peer wants to be told."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
