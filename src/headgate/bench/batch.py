"""The suite `batch`: blocking partitions beside plain files, and word count in BATCH, STREAMING and plain PySpark.

The runs are in `batch_files` and `batch_words`, each in processes of its own; docs/benchmarks.md describes each case.
All files go to a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.bench.batch_files import Load, carry_local, carry_plain, carry_remote
from headgate.bench.batch_words import WAYS, count_words
from headgate.bench.harness import Case, Contest
from headgate.bench.processes import ProcessPair
from headgate.config import Compression, load_settings
from headgate.config.units import MIB
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.bench.batch_files import Moved
    from headgate.bench.batch_words import WordCount
    from headgate.bench.harness import Bench, Row

__all__ = ["BatchAmounts", "batch"]

_PLAIN, _LOCAL, _REMOTE = "plain file", "blocking partition", "remote reader"
_LINE_BYTES: Final = 400  # on disk, at most: ten words, each with a count
_SPARE: Final = 1.1  # for indices and other files


class BatchAmounts(NamedTuple):
    """How much one run of each case does."""

    total: int  # bytes through disk
    lines: int  # of ten words


_FULL: Final = BatchAmounts(total=4_000_000_000, lines=2_000_000)
_QUICK: Final = BatchAmounts(total=512_000_000, lines=200_000)


def batch(bench: Bench, amounts: BatchAmounts | None = None, *, local: bool = False) -> Iterable[Row]:
    """Run all cases; see the module. With `--quick` each is run once. `local` counts words without Spark."""
    amounts = amounts if amounts is not None else bench.pick(full=_FULL, quick=_QUICK)
    if bench.quick:
        bench.repeats = 1
    place = _directory(bench.directory)
    with ProcessPair() as pair, tempfile.TemporaryDirectory(prefix="headgate-bench-", dir=place) as directory:
        carried = [_carry(pair, Load(directory, codec, amounts.total)) for codec in Compression]
        on_disk = amounts.total if any(map(bench.wanted, carried)) else amounts.lines * _LINE_BYTES
        _require_space(place, on_disk)
        bench.notes.append(f"files are in {place}, which is on {_file_system(place)}")
        yield from bench.run(carried, [_count(amounts.lines, directory, local=local)], after_group=pair.close)


def _carry(pair: ProcessPair, load: Load) -> Contest[Moved]:
    def case(what: str, run: str, figure: str, unit: str = "GB/s", goal: float | None = None) -> Case[Moved]:
        against, baseline = (None, ()) if run == _PLAIN else (_PLAIN, (_PLAIN,))
        name = f"disk, {load.compression}, {what}"
        return Case(name, unit, run, attrgetter(figure), against=against, baseline=baseline, goal=goal)

    return Contest(
        name=f"disk, {load.compression}",
        runs={
            _PLAIN: partial(carry_plain, load),
            _LOCAL: partial(carry_local, load),
            _REMOTE: partial(carry_remote, pair, load),
        },
        cases=[
            case("plain file", _PLAIN, "gb_per_s"),
            case("blocking partition", _LOCAL, "gb_per_s", goal=0.7),
            case("blocking partition, write", _LOCAL, "written_gb_per_s"),
            case("blocking partition, read", _LOCAL, "read_gb_per_s"),
            case("blocking partition, processor", _LOCAL, "cpu_s", "s"),
            case("blocking partition, on disk", _LOCAL, "stored_percent", "% of its bytes"),
            case("blocking partition, remote reader", _REMOTE, "gb_per_s"),
            case("blocking partition, remote reader, processor", _REMOTE, "cpu_s", "s"),
        ],
    )


def _count(lines: int, directory: str, *, local: bool) -> Contest[WordCount]:
    ways = [way for way in WAYS if not (local and way == "PySpark")]

    def rate(way: str, beside: str | None = None) -> Case[WordCount]:
        name = f"word count, {way}" + (f", beside {beside}" if beside else "")
        baseline = (beside,) if beside else ()
        return Case(name, "words/s", way, attrgetter("per_second"), against=beside, baseline=baseline)

    def peak(way: str, what: str, figure: str) -> Case[WordCount]:
        name = f"word count, {way}, peak memory{what}"
        return Case(name, "MiB", way, lambda counted: getattr(counted.resident, figure) / MIB)

    return Contest(
        name="word count",
        runs={way: partial(count_words, way, lines, directory, local=local) for way in ways},
        cases=[
            *map(rate, ways),
            *(rate("BATCH", other) for other in ways if other != "BATCH"),
            *(peak(way, "", "total") for way in ways),
            *(peak(way, " without the JVM", "python") for way in ways),
        ],
    )


# The directory ---------------------------------------------------------------------------------------------------


def _directory(given: Path | None) -> Path:
    """Return the directory of the command, the first of the settings, or the system's temporary one.

    Raises:
        ConfigError: It is no directory.
    """
    configured = load_settings().batch.directories.split(",")[0].strip()
    place = given if given is not None else Path(configured or tempfile.gettempdir())
    if not place.is_dir():
        whose = "--directory" if given is not None else "batch.directories"
        raise ConfigError(f"{whose}: {place} is no directory")
    return place.resolve()


def _require_space(place: Path, most_bytes: int) -> None:
    """Raise ConfigError if so much cannot be written there."""
    free, needed = shutil.disk_usage(place).free, round(most_bytes * _SPARE)
    if free < needed:
        raise ConfigError(
            f"the suite batch writes up to {needed / 1e9:.1f} GB at once to {place}, where {free / 1e9:.1f} GB are "
            "free: choose another place by --directory, or do less by --quick"
        )


def _file_system(place: Path) -> str:
    """Return the kind of file system of a directory: figures of one in memory (tmpfs) are not those of a disk."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return "an unknown file system"
    above = [(where, kind) for where, kind in mounts if place.is_relative_to(where)]
    return max(above, key=lambda mount: len(mount[0]))[1]
