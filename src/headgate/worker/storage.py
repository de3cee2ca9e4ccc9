"""The files of a worker for its job: finished partitions, partitions being written, and spilled groups.

One `Storage` per worker of a BATCH job, and one in the driver, which keeps the files while no worker runs between two
attempts. Any thread may use it, without the exchange lock. Files outlive the process, so another attempt finds finished
partitions; the last process that closes its storage after the job removes them.

Invariants: a partition has its name, `v<vertex>.<output>-<subtask>.partition`, only once it is complete; this worker's
files never exceed its quota; errors are `StorageError`s that name a path.
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
from headgate.ids import AttemptId
from headgate.output.disk.file import PartitionFile, PartitionFileWriter
from headgate.output.disk.folder import storage_error
from headgate.worker.job_directory import JobDirectory, sweep

if TYPE_CHECKING:
    from headgate.config import BatchSettings
    from headgate.graph.plan import Plan
    from headgate.ids import JobId

__all__ = ["Quota", "Storage", "directories_of", "open_job_storage", "remove_job_files"]

_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_FINISHED: Final = re.compile(rf"v{_NUMBER}\.{_NUMBER}-{_NUMBER}\.partition")
_UNFINISHED: Final = re.compile(r"\.v[0-9.-]+\.partition\.([0-9]{1,10})\.[0-9]+\.[0-9]+\.part")
_LOW_SPACE_BYTES: Final = 64 * 1024 * 1024  # a directory with less free space is used only if all have less

_numbers: Final = count()  # of unfinished files of this process


def directories_of(settings: BatchSettings) -> tuple[str, ...]:
    """Return the configured directories, or the system's temporary one.

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
    """The bytes that a worker has on disk, and their limit. Any thread.

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
        """Count bytes that are about to be written.

        Raises:
            StorageFull: they exceed the limit.
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
        """Count bytes that are on disk, also above the limit."""
        with self._lock:
            self.used += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Subtract bytes that were removed."""
        with self._lock:
            self.used -= size_bytes
            assert self.used >= 0, "no bytes are subtracted twice"


class Storage:
    """A worker's files. Directories are made when first needed.

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
        self._opened: tuple[JobDirectory, ...] = ()  # empty before the first use
        self._closed = False
        self._writers: dict[Partition, PartitionFileWriter] = {}
        self._files: dict[Partition, PartitionFile] = {}  # of other processes, opened here
        self._spills = count()
        self.quota = Quota(settings.disk_quota, ", ".join(self._directories))
        """Counts the bytes of all files of this worker."""

    def open(self) -> None:
        """Open the job's directories, and remove those of crashed jobs. May be repeated.

        Raises:
            StorageError: a directory cannot be made, or other users could write to it.
        """
        self._open_directories()

    def writer(self, partition: Partition, *, subpartitions: int, segment_size: int) -> PartitionFileWriter:
        """Return a writer of a new file for a partition. Files of earlier runs are removed.

        Raises:
            StorageError: the file cannot be made.
        """
        self.remove(partition)
        folder = self._directory_for(partition).folder
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
        """Return the finished partitions on disk, of any worker, and their paths. Their content is not read.

        Files from before the machine's last start are left out: they may be incomplete on the disk.
        """
        found = {}
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for place in self._open_directories():
            fd = place.folder.fd
            for name in _names(place):
                if match := _FINISHED.fullmatch(name):
                    with suppress(OSError):  # it was removed, or cannot be read
                        if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime >= started:
                            found[Partition(*map(int, match.groups()))] = place.folder.path_of(name)
        return found

    def open_partition(self, partition: Partition, *, segment_size: int) -> PartitionFile:
        """Open a finished partition for reading.

        Raises:
            StorageError: it is missing or damaged.
        """
        name = _name(partition)
        places = self._open_directories()
        place = next((one for one in places if name in _names(one)), places[0])
        file = PartitionFile.open(
            place.folder.path_of(name), segment_size=segment_size, folder=place.folder, quota=self.quota
        )
        with self._lock:
            self._files[partition] = file
        return file

    def remove(self, partition: Partition) -> None:
        """Remove a finished partition, if it exists. This worker must have no reader of it.

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
        for place in self._open_directories():
            try:
                place.folder.remove(name)
            except OSError as error:
                raise storage_error("removed", error, place.folder.path_of(name)) from error

    @property
    def spill_directory(self) -> str:
        """A directory for unnamed files; the directories in turn."""
        places = self._open_directories()
        return places[next(self._spills) % len(places)].folder.path

    def close(self, *, remove: bool) -> bool:
        """Release everything. With `remove`, remove this worker's files; the last worker removes the directories.

        May be repeated. Return True if all files of the job are removed: no other process uses them.
        """
        with self._lock:
            places, self._opened, self._closed = self._opened, (), True
            writers, files = list(self._writers.values()), list(self._files.values())
            self._writers.clear()
            self._files.clear()
        for writer in writers:
            writer.discard()
        for file in [*(writer.file for writer in writers if writer.file is not None), *files]:
            with suppress(StorageError):  # a later sweep removes it
                file.remove() if remove else file.close()
        removed = [place.leave(remove=remove) for place in places]
        return all(removed)

    @staticmethod
    def sweep(settings: BatchSettings) -> list[str]:
        """Remove the directories of crashed jobs. Return their paths. `open` does it as well."""
        return sweep(directories_of(settings))

    def _open_directories(self) -> tuple[JobDirectory, ...]:
        with self._lock:
            if self._closed:
                raise StorageError("is used after it was closed", path=self._directories[0])
            if not self._opened:
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
                self._opened = tuple(places)
            return self._opened

    def _remove_unfinished(self, place: JobDirectory) -> None:
        """Remove files that earlier attempts did not finish."""
        for name in _names(place):
            if (match := _UNFINISHED.fullmatch(name)) and int(match[1]) < self._attempt:
                with suppress(OSError):
                    place.folder.remove(name)

    def _directory_for(self, partition: Partition) -> JobDirectory:
        """Return the directory for a new file: they take turns, but not those with little free space."""
        places = self._open_directories()
        first = (partition.vertex + partition.output + partition.subtask) % len(places)
        for place in (rotated := places[first:] + places[:first]):
            if _free_bytes(place) >= _LOW_SPACE_BYTES:
                return place
        return max(rotated, key=_free_bytes)


def _name(partition: Partition) -> str:
    return f"v{partition.vertex}.{partition.output}-{partition.subtask}.partition"


def _names(place: JobDirectory) -> list[str]:
    try:
        return place.folder.names()
    except OSError as error:
        raise storage_error("read", error, place.folder.path) from error


def _free_bytes(place: JobDirectory) -> int:
    """Return the free bytes of the directory's file system."""
    try:
        found = os.statvfs(place.folder.fd if place.folder.fd is not None else place.folder.path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


_PAUSE_S: Final = 0.1


def open_job_storage(plan: Plan, attempt: AttemptId, *, driver_here: bool = True) -> Storage | None:
    """Open the storage of a BATCH job; its files are kept until it is closed. Return None for a STREAMING job.

    Each worker opens one, and the host opens one in the driver from the job's start to its end.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> open_job_storage(Plan("1", "nothing", (), (), workers=1, settings=Settings()), attempt=1) is None
    True

    Raises:
        StorageError: a directory cannot be made.
    """
    if not plan.batch:
        return None
    storage = Storage(plan.settings.batch, plan.job, attempt, driver_here=driver_here)
    storage.open()
    return storage


def remove_job_files(plan: Plan, storage: Storage, timeout_s: float) -> None:
    """Remove all files of an ended job from this machine; `storage` is the host's. Blocks up to `timeout_s`.

    A worker that was killed or has not left yet still holds its lock, so this tries again until `timeout_s`.

    >>> import tempfile
    >>> from headgate.config import load_settings
    >>> from headgate.graph.plan import Plan
    >>> with tempfile.TemporaryDirectory() as place:
    ...     settings = load_settings(code={"batch.directories": place})
    ...     plan = Plan("1", "nothing", (), (), workers=1, settings=settings, batch=True)
    ...     remove_job_files(plan, open_job_storage(plan, attempt=1), timeout_s=1.0)
    """
    deadline = time.monotonic() + timeout_s
    with suppress(StorageError):  # a later sweep removes the rest
        while not storage.close(remove=True) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            again = open_job_storage(plan, AttemptId(1))
            assert again is not None, "a BATCH job has one"
            storage = again
    storage.close(remove=True)
