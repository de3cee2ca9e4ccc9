"""What the tests of failing disks run in a process of its own: `python -m tests.faults.support_disk <what> <place>`."""

import os
import resource
import sys
import time

from headgate.config import BatchSettings, Compression
from headgate.errors import StorageError
from headgate.graph.plan import Partition
from headgate.ids import AttemptId, JobId
from headgate.worker.storage import Storage

SEGMENT = 32768
PARTITION = Partition(0, 0, 0)


def say(text):
    os.write(1, f"{text}\n".encode())


def storage_in(place, *, driver_here=True):
    settings = BatchSettings(directories=place, compression=Compression.NONE)
    return Storage(settings, JobId("child"), AttemptId(1), driver_here=driver_here)


def write_until_it_fails(place):
    """Says which error there was, what is left, and whether something fits again afterwards."""
    storage = storage_in(place)
    small = storage.writer(Partition(1, 0, 0), subpartitions=1, segment_size=SEGMENT)
    small.append([(0, memoryview(b"to be"), False)])
    small.finish().close()
    writer = storage.writer(PARTITION, subpartitions=1, segment_size=SEGMENT)
    block = memoryview(bytes(SEGMENT))
    try:
        for _ in range(1000):
            writer.append([(0, block, False)] * 8)
    except StorageError as error:
        say(f"{type(error).__name__} {error}")
    say(f"{sorted(os.listdir(os.path.dirname(writer.path)))} {storage.quota.used}")
    again = storage.writer(Partition(2, 0, 0), subpartitions=1, segment_size=SEGMENT)
    again.append([(0, block, False)])
    again.finish().close()
    say(str(sorted(os.path.basename(path) for path in storage.finished().values())))
    storage.close(remove=True)


def write_large_file(place):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    write_until_it_fails(place)


def write_for_ever(place):
    """One partition finished, one in the middle; killed by whoever reads the line."""
    storage = storage_in(place)
    done = storage.writer(Partition(1, 0, 0), subpartitions=1, segment_size=SEGMENT)
    done.append([(0, memoryview(b"to be"), False)])
    done.finish()
    writer = storage.writer(PARTITION, subpartitions=1, segment_size=SEGMENT)
    block = memoryview(bytes(SEGMENT))
    for number in range(10_000):
        writer.append([(0, block, False)])
        if number == 3:
            say("writing")
        time.sleep(0.001)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
