"""What a worker keeps on disk for its job: finished partitions, those being written, and room for spilled groups.

One per worker of a BATCH job, and one in the driver; used on any thread, with the exchange lock not held. Files outlive
the process, so that another try at the job finds what was finished; who closes it last, after the job, removes them.

Invariants: a partition has its name, `v<vertex>.<output>-<subtask>.partition`, only once it is whole; what this worker
writes never exceeds its quota; errors are `StorageError`s that name a path.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from headgate.errors import ConfigError, StorageError, StorageFull
from headgate.graph.plan import Partition
from headgate.output.folder import storage_error
from headgate.output.partition_file import PartitionFile, PartitionFileWriter
from headgate.worker.job_directory import JobDirectory, sweep

if TYPE_CHECKING:
    from headgate.config import BatchSettings
    from headgate.ids import AttemptId, JobId

__all__ = ["Quota", "Storage", "directories_of"]

_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_FINISHED: Final = re.compile(rf"v{_NUMBER}\.{_NUMBER}-{_NUMBER}\.partition")
_UNFINISHED: Final = re.compile(r"\.v[0-9.-]+\.partition\.([0-9]{1,10})\.[0-9]+\.[0-9]+\.part")
_LITTLE_BYTES: Final = 64 * 1024 * 1024  # where there is less room, nothing new is begun if there is more elsewhere

_numbers: Final = count()  # of unfinished files of this process


def directories_of(settings: BatchSettings) -> tuple[str, ...]:
    """Where files go, without what headgate adds.

    >>> from headgate.config import BatchSettings
    >>> directories_of(BatchSettings(directories="/data1, /data2"))
    ('/data1', '/data2')

    Raises:
        ConfigError: one is not an absolute path.
    """
    given = tuple(dict.fromkeys(one.strip() for one in settings.directories.split(",") if one.strip()))
    for one in given:
        if not os.path.isabs(one):
            raise ConfigError(f"batch.directories: {one!r} is no absolute path, and workers run anywhere: begin with /")
    return given or (tempfile.gettempdir(),)


class Quota:
    """How many bytes a worker has on disk, and may have. Any thread.

    >>> quota = Quota(100, "/data")
    >>> quota.take(60); quota.used
    60
    >>> quota.take(60)
    Traceback (most recent call last):
    headgate.errors.StorageFull: /data: 120 bytes would be on disk; a worker may keep 100 (batch.disk_quota)
    """

    __slots__ = ("_lock", "_path", "limit", "used")

    def __init__(self, limit: int, path: str) -> None:
        self.limit = limit  # 0: none
        self.used = 0
        self._path = path
        self._lock = threading.Lock()

    def take(self, size_bytes: int, path: str | None = None) -> None:
        """So many more are going to be there.

        Raises:
            StorageFull: they may not.
        """
        with self._lock:
            used = self.used + size_bytes
            if self.limit and used > self.limit:
                raise StorageFull(
                    f"{used} bytes would be on disk; a worker may keep {self.limit} (batch.disk_quota)",
                    path=path or self._path,
                )
            self.used = used

    def count(self, size_bytes: int) -> None:
        """So many more are there, whether they may or not."""
        with self._lock:
            self.used += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """So many are gone."""
        with self._lock:
            self.used -= size_bytes
            assert self.used >= 0, "nothing is given back twice"


class Storage:
    """A worker's place on disk. Nothing is made before it is needed.

    >>> import tempfile
    >>> from headgate.config import BatchSettings
    >>> from headgate.ids import AttemptId, JobId
    >>> with tempfile.TemporaryDirectory() as place:
    ...     storage = Storage(BatchSettings(directories=place), JobId("etl"), AttemptId(1), driver_here=True)
    ...     file = storage.writer(Partition(0, 0, 3), subpartitions=8, segment_size=32768).finish()
    ...     file.close()
    ...     [str(one) for one in storage.finished()], os.path.basename(storage.finished()[Partition(0, 0, 3)])
    ...     storage.close(remove=True)
    ...     os.path.exists(file.path)
    (['Partition(vertex=0, output=0, subtask=3)'], 'v0.0-3.partition')
    True
    False
    """

    def __init__(self, settings: BatchSettings, job: JobId, attempt: AttemptId, *, driver_here: bool) -> None:
        self._directories = directories_of(settings)
        self._compression = settings.compression
        self._job = job
        self._attempt = attempt
        self._driver_here = driver_here
        self._lock = threading.Lock()
        self._places: tuple[JobDirectory, ...] = ()  # empty: not opened yet
        self._closed = False
        self._writers: dict[Partition, PartitionFileWriter] = {}
        self._files: dict[Partition, PartitionFile] = {}  # of other processes, opened here
        self._spills = count()
        self.quota = Quota(settings.disk_quota, ", ".join(self._directories))
        """What all files of this worker are taken from."""

    def open(self) -> None:
        """Use the job's directories, and remove what other jobs have left behind. May be repeated.

        Raises:
            StorageError: one cannot be made, or is not safe.
        """
        self._opened()

    def writer(self, partition: Partition, *, subpartitions: int, segment_size: int) -> PartitionFileWriter:
        """A new file for a partition. What an earlier run has left of it is removed.

        Raises:
            StorageError: it cannot be made.
        """
        self.remove(partition)
        folder = self._roomiest(partition).folder
        name = _name(partition)
        temporary = f".{name}.{self._attempt}.{os.getpid()}.{next(_numbers)}.part"
        writer = PartitionFileWriter(
            folder.path_of(name),
            temporary=folder.path_of(temporary),
            subpartitions=subpartitions,
            segment_size=segment_size,
            compression=self._compression,
            quota=self.quota,
            folder=folder,
        )
        with self._lock:
            self._writers[partition] = writer
        return writer

    def finished(self) -> dict[Partition, str]:
        """The partitions that are on disk, by whomever, and their paths. Their content is not looked at.

        What is older than the machine's last start is left out: nobody knows whether all of it got to the disk.
        """
        found = {}
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for place in self._opened():
            fd = place.folder.fd
            for name in _names(place):
                if match := _FINISHED.fullmatch(name):
                    with suppress(OSError):  # it has gone, or is not to be read
                        if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime >= started:
                            found[Partition(*map(int, match.groups()))] = place.folder.path_of(name)
        return found

    def open_partition(self, partition: Partition, *, segment_size: int) -> PartitionFile:
        """A finished partition, to read it.

        Raises:
            StorageError: it is not there, or damaged.
        """
        name = _name(partition)
        places = self._opened()
        place = next((one for one in places if name in _names(one)), places[0])
        file = PartitionFile.open(
            place.folder.path_of(name), segment_size=segment_size, folder=place.folder, quota=self.quota
        )
        with self._lock:
            self._files[partition] = file
        return file

    def remove(self, partition: Partition) -> None:
        """Remove a finished partition, if it is there. Nobody may be reading it through this worker.

        Raises:
            StorageError: it cannot be removed.
        """
        with self._lock:
            writer, file = self._writers.pop(partition, None), self._files.pop(partition, None)
        if writer is not None:
            writer.discard()
        for one in (writer.file if writer is not None else None, file):
            if one is not None:
                one.remove()
        name = _name(partition)
        for place in self._opened():
            try:
                place.folder.remove(name)
            except OSError as error:
                raise storage_error("removed", error, place.folder.path_of(name)) from error

    @property
    def spill_directory(self) -> str:
        """Where to make files that have no name; one place after the other."""
        places = self._opened()
        return places[next(self._spills) % len(places)].folder.path

    def close(self, *, remove: bool) -> bool:
        """Use it no more. With `remove` the job is over: what this worker has made goes, and all with the last worker.

        May be repeated. Whether all of the job's files are gone by this: not if others still use them.
        """
        with self._lock:
            places, self._places, self._closed = self._places, (), True
            writers, files = list(self._writers.values()), list(self._files.values())
            self._writers.clear()
            self._files.clear()
        for writer in writers:
            writer.discard()
        for file in [*(writer.file for writer in writers if writer.file is not None), *files]:
            with suppress(StorageError):  # what cannot be removed now is removed by a sweep
                file.remove() if remove else file.close()
        removed = [place.leave(remove=remove) for place in places]
        return all(removed)

    @staticmethod
    def sweep(settings: BatchSettings) -> list[str]:
        """Remove what jobs have left behind that are over; where that was. `open` does so too."""
        return sweep(directories_of(settings))

    def _opened(self) -> tuple[JobDirectory, ...]:
        with self._lock:
            if self._closed:
                raise StorageError("is used after it was closed", path=self._directories[0])
            if not self._places:
                places: list[JobDirectory] = []
                try:
                    for directory in self._directories:
                        place = JobDirectory(directory, self._job, driver_here=self._driver_here)
                        places.append(place)
                        self._remove_unfinished(place)
                except BaseException:
                    for place in places:
                        place.leave(remove=False)
                    raise
                sweep(self._directories)
                self._places = tuple(places)
            return self._places

    def _remove_unfinished(self, place: JobDirectory) -> None:
        """What earlier attempts were writing when they ended: nobody is going to finish it."""
        for name in _names(place):
            if (match := _UNFINISHED.fullmatch(name)) and int(match[1]) < self._attempt:
                with suppress(OSError):
                    place.folder.remove(name)

    def _roomiest(self, partition: Partition) -> JobDirectory:
        """Partitions are spread over the places, but not to where there is hardly any room."""
        places = self._opened()
        first = (partition.vertex + partition.output + partition.subtask) % len(places)
        for place in (turned := places[first:] + places[:first]):
            if _room(place) >= _LITTLE_BYTES:
                return place
        return max(turned, key=_room)


def _name(partition: Partition) -> str:
    return f"v{partition.vertex}.{partition.output}-{partition.subtask}.partition"


def _names(place: JobDirectory) -> list[str]:
    try:
        return place.folder.names()
    except OSError as error:
        raise storage_error("read", error, place.folder.path) from error


def _room(place: JobDirectory) -> int:
    """How many bytes are free where a directory is."""
    try:
        found = os.statvfs(place.folder.fd if place.folder.fd is not None else place.folder.path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
