"""A BATCH job on a cluster that loses a machine on its way, and gets it back much later."""

import os
import sys
import time
from pathlib import Path

import headgate as hg
from headgate.errors import HeadgateError
from headgate.spark import SparkHost


def main() -> None:
    host, notes = SparkHost(master=sys.argv[1]), Path(sys.argv[2])

    def wait_to_be_killed(value: int) -> int:
        (notes / f"pid-{os.getpid()}").touch()
        deadline = time.monotonic() + 120
        while not (notes / "go").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.02)  # so that the loss is known before the region has finished
        return value

    env = hg.environment(host=host, parallelism=2, runtime_mode="BATCH")
    stream = env.from_collection(range(60)).rebalance().map(wait_to_be_killed).key_by(lambda n: n % 7)
    stream.map(lambda n: n).for_each(lambda _: (notes / f"record-{time.time_ns()}").touch())
    job = env.execute_async()
    try:
        while not job.wait(0.1):
            if any("waiting up to" in event.text for event in job.events):
                (notes / "waits").touch()
        job.await_termination(240)
    except HeadgateError as error:
        sys.stdout.write(f"ended with {type(error).__name__}: {error}\n")
    for event in job.events:
        sys.stdout.write(f"{event.text}\n")
    sys.stdout.write(f"counted {len(list(notes.glob('record-*')))}, status {job.status}\n")
    host.session().stop()


if __name__ == "__main__":
    main()
