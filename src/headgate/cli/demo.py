"""`headgate demo`: a slow reader slows its writer down at once, and memory stays flat.

A writer thread at full speed and a reader thread that is slowed down and released, over a real exchange, drawn
once every quarter of a second: live in a terminal, line by line in a pipe.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headgate.errors import Cancelled
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.meters import Rate, TaskTimer
from headgate.output import Forward
from headgate.record import Batch, MsgpackSerializer
from headgate.worker import Environment

__all__ = ["demo"]

_MEMORY_BYTES = 64 * 1024 * 1024
_EVERY_S = 0.25
_PHASES = (("full speed", 1.0), ("reader slowed to 10 %", 0.1), ("released", 1.0))
_WORDS = [(word, 1) for word in ("a", "slow", "reader", "slows", "its", "writer", "at", "once")] * 70
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class _Sample:
    """What one look at the exchange showed."""

    phase: str
    written_per_s: float
    read_per_s: float
    back_pressured: float  # share of the writer's time
    buffers_used: int
    buffers_size: int
    overdraft: int  # what the writer may take past the size to finish a batch it has begun
    resident_bytes: int


class _Scene:
    """The exchange, its two threads, and a way to look at them."""

    def __init__(self) -> None:
        self.environment = Environment(memory_bytes=_MEMORY_BYTES)
        clock = self.environment.clock
        self._timer = TaskTimer(clock.now_ns)
        words = MsgpackSerializer(tuple[str, int])
        partition_id = PartitionId(JobId("demo"), AttemptId(1), 0, 0, 0)
        self.partition = self.environment.partition(partition_id, subpartitions=1, timer=self._timer)
        gate = self.environment.gate("count", channels=1)
        gate.connect(0, self.environment.local_source(partition_id, SubpartitionIndex(0)))
        self.writer = self.environment.writer(self.partition, Forward(), words)
        self.reader = self.environment.reader(gate, words)
        self.share = 1.0  # of its full speed that the reader takes
        self.counts: dict[str, int] = {}
        self.errors: list[BaseException] = []
        self._written = Rate(self.writer.records_out, clock.now_ns)
        self._read = Rate(self.reader.records_in, clock.now_ns)
        self._waited_ns = self._looked_ns = 0
        self._threads = [threading.Thread(target=self._guard, args=(run,)) for run in (self._write, self._consume)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.environment.release_job(JobId("demo"))
        for thread in self._threads:
            thread.join()
        self.writer.close()
        self.reader.close()
        self.environment.close()

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Cancelled:
            pass  # the demo is over
        except BaseException as error:  # noqa: BLE001 - raised again by `look`
            self.errors.append(error)

    def _write(self) -> None:
        while True:
            self.writer.emit_batch(_WORDS)

    def _consume(self) -> None:
        counts = self.counts
        while True:
            started = time.perf_counter()
            element = self.reader.read()
            if isinstance(element, Batch):
                for word, count in element.values:
                    counts[word] = counts.get(word, 0) + count
            if self.share < 1:
                time.sleep((time.perf_counter() - started) * (1 / self.share - 1))

    def look(self, phase: str) -> _Sample:
        if self.errors:
            raise self.errors[0]
        spent, now_ns = self._timer.statistics(), self.environment.clock.now_ns()
        waited_ns, elapsed_ns = spent.back_pressured_ns - self._waited_ns, now_ns - self._looked_ns
        self._waited_ns, self._looked_ns = spent.back_pressured_ns, now_ns
        pool = self.partition.pool.statistics()
        return _Sample(
            phase=phase,
            written_per_s=self._written.per_second(),
            read_per_s=self._read.per_second(),
            back_pressured=min(1.0, waited_ns / elapsed_ns),
            buffers_used=pool.held - pool.available,
            buffers_size=pool.size,
            overdraft=self.partition.pool.overdraft,
            resident_bytes=_resident_bytes(),
        )


def _resident_bytes() -> int:
    """This process's memory; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * 4096


def _samples(scene: _Scene, seconds: float) -> Iterator[_Sample]:
    """A look every quarter of a second, through all phases."""
    scene.look("")  # from here on
    for phase, share in _PHASES:
        scene.share = share
        until = time.monotonic() + seconds / len(_PHASES)
        while time.monotonic() < until:
            time.sleep(_EVERY_S)
            yield scene.look(phase)


def _spark(values: list[float]) -> str:
    top = max([*values, 1e-9])
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in values)


def _picture(samples: deque[_Sample], width: int) -> Panel:
    last, shown = samples[-1], list(samples)[-max(10, width - 40) :]
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column(justify="right", min_width=18)
    table.add_column()
    start = samples[0].resident_bytes
    for name, value, history, style in (
        ("written", f"{last.written_per_s:,.0f} /s", [one.written_per_s for one in shown], "cyan"),
        ("read", f"{last.read_per_s:,.0f} /s", [one.read_per_s for one in shown], "green"),
        ("writer held back", f"{last.back_pressured:.0%}", [one.back_pressured for one in shown], "red"),
        (
            "buffers in use",
            f"{last.buffers_used} of {last.buffers_size}+{last.overdraft}",
            [one.buffers_used / (one.buffers_size + one.overdraft) for one in shown],
            "yellow",
        ),
        (
            "memory since start",
            f"{(last.resident_bytes - start) / 2**20:+.1f} MiB",
            [float(one.resident_bytes) for one in shown],
            "magenta",
        ),
    ):
        table.add_row(name, value, Text(_spark(history), style=style))
    return Panel(Group(Text(last.phase, style="bold"), table), title="headgate: one writer, one reader", expand=False)


def _line(one: _Sample, start_bytes: int) -> str:
    return (
        f"{one.phase:<22}  written {one.written_per_s:>12,.0f}/s  read {one.read_per_s:>12,.0f}/s  "
        f"writer held back {one.back_pressured:>4.0%}  "
        f"buffers {one.buffers_used:>2} of {one.buffers_size}+{one.overdraft}  "
        f"memory {(one.resident_bytes - start_bytes) / 2**20:+.1f} MiB"
    )


def demo(
    seconds: Annotated[float, typer.Option(min=1.5, max=3600, help="How long it runs, all phases together.")] = 12.0,
) -> None:
    """See a slow reader slow its writer down at once, while memory stays flat."""
    console = Console()
    samples: deque[_Sample] = deque(maxlen=4 * 3600)
    with _Scene() as scene:
        if console.is_terminal:
            with Live(console=console, refresh_per_second=8) as live:
                for one in _samples(scene, seconds):
                    samples.append(one)
                    live.update(_picture(samples, console.width))
        else:
            for number, one in enumerate(_samples(scene, seconds)):
                samples.append(one)
                if number % 4 == 0:
                    print(_line(one, samples[0].resident_bytes), flush=True)
    _summary(samples)


def _summary(samples: deque[_Sample]) -> None:
    print()
    for phase, _ in _PHASES:
        of = [one for one in samples if one.phase == phase][1:] or [one for one in samples if one.phase == phase]
        if not of:
            continue
        written = sum(one.written_per_s for one in of) / len(of)
        read = sum(one.read_per_s for one in of) / len(of)
        print(f"{phase:<22}  written {written:>12,.0f}/s  read {read:>12,.0f}/s  ratio {written / max(read, 1):.2f}")
    grown = max(one.resident_bytes for one in samples) - samples[0].resident_bytes
    print(
        f"memory grew by {grown / 2**20:.1f} MiB; the exchange owns {_MEMORY_BYTES / 2**20:.0f} MiB.",
    )
