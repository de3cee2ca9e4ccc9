"""How much a process grows while a slow reader holds a fast writer back.

Run as a process of its own (`measure`), so that what ran before does not hide the growth.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.output import Forward
from headgate.record import BytesSerializer
from headgate.worker import Environment

__all__ = ["measure"]

_RECORDS = [b"x" * 100] * 1000
_FULL_SPEED_S = 0.2  # how long the reader's full speed is measured before it slows down


def measure(memory_bytes: int, seconds: float) -> dict[str, float]:
    """Run the experiment in a new process: growth in bytes, and what reader and writer did."""
    arguments = [sys.executable, "-m", "headgate.bench._memory", str(memory_bytes), str(seconds)]
    ended = subprocess.run(arguments, check=True, capture_output=True, text=True)  # noqa: S603 - our own module
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures


def _resident_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def _experiment(memory_bytes: int, seconds: float) -> dict[str, float]:
    stop = threading.Event()
    with Environment(memory_bytes=memory_bytes) as environment:
        partition = environment.partition(PartitionId(JobId("memory"), AttemptId(1), 0, 0, 0), subpartitions=1)
        gate = environment.gate("slow", channels=1)
        gate.connect(0, environment.local_source(partition.id, SubpartitionIndex(0)))
        writer = environment.writer(partition, Forward(), BytesSerializer())
        reader = environment.reader(gate, BytesSerializer())

        def produce() -> None:
            while not stop.is_set():
                writer.emit_batch(_RECORDS)
            writer.finish()

        before = _resident_bytes("VmRSS")
        producer = threading.Thread(target=produce)
        producer.start()
        started = time.perf_counter()
        batches = 0
        while time.perf_counter() < started + _FULL_SPEED_S:
            reader.read()
            batches += 1
        pause_s = 99 * _FULL_SPEED_S / batches  # 1 % of that speed
        while time.perf_counter() < started + seconds:
            reader.read()
            time.sleep(pause_s)
        peak = _resident_bytes("VmHWM")
        stop.set()
        for _ in reader:
            pass
        producer.join()
        written = writer.statistics().records_out
        writer.close()
        reader.close()
    return {"growth_bytes": peak - before, "records": written}


if __name__ == "__main__":
    print(json.dumps(_experiment(int(sys.argv[1]), float(sys.argv[2]))))  # noqa: T201 - its caller reads it
