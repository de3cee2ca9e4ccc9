"""Jobs by pull: blocking partitions beside plain files, and word count in BATCH beside STREAMING and plain PySpark.

The contests' runs are in `_batch_files` and `_batch_words`; each is in processes of its own. docs/benchmarks.md says
what each case does and how to read it. All files go to a directory of the suite's own, which is gone afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from headgate.bench._batch_files import Load, Moved, carry_local, carry_plain, carry_remote
from headgate.bench._batch_words import HOWS, Counted, count_words
from headgate.bench._wire_ends import Ends
from headgate.bench.harness import Bench, Case, Contest, Rows, suite
from headgate.config import Compression, load_settings
from headgate.config.units import MIB
from headgate.errors import ConfigError

__all__ = ["Amounts", "batch"]

_GOAL = 0.7
_PLAIN, _LOCAL, _REMOTE = "plain file", "blocking partition", "remote reader"
_LINE_BYTES = 400  # on disk, at most: ten words, each with a count
_SPARE = 1.1  # indices, and what else is written meanwhile


class Amounts(NamedTuple):
    """How much one run of each case does.

    >>> Amounts(total=2**20, lines=100).total
    1048576
    """

    total: int  # bytes through disk
    lines: int  # of ten words


_FULL = Amounts(total=4_000_000_000, lines=2_000_000)
_QUICK = Amounts(total=512_000_000, lines=200_000)


@suite("batch", "Jobs by pull: blocking partitions beside plain files, word count beside PySpark.", disk=True)
def batch(bench: Bench, amounts: Amounts | None = None, *, local: bool = False) -> Rows:
    """All cases; see the module. With `--quick` each is run once. `local` counts words without Spark.

    >>> from headgate.bench.harness import find_suite
    >>> find_suite("batch").disk
    True
    """
    amounts = amounts if amounts is not None else bench.pick(full=_FULL, quick=_QUICK)
    if bench.quick:
        bench.repeats = 1
    place = _place(bench.directory)
    with Ends() as ends, tempfile.TemporaryDirectory(prefix="headgate-bench-", dir=place) as directory:
        carried = [_carry(ends, Load(directory, codec, amounts.total)) for codec in Compression]
        counted = _count(amounts.lines, directory, local=local)
        there_and_back = sum(map(bench.steps, carried))
        bench.expect(there_and_back + bench.steps(counted))
        _require_space(place, amounts.total if there_and_back else amounts.lines * _LINE_BYTES)
        bench.notes.append(f"files are in {place}, which is on {_file_system(place)}")
        for contest in carried:
            yield from bench.contest(contest)
        ends.close()  # two processes less
        yield from bench.contest(counted)


# Through disk -----------------------------------------------------------------------------------------------


def _carry(ends: Ends, load: Load) -> Contest[Moved]:
    codec = load.compression

    def case(what: str, run: str, figure: str, unit: str, *, goal: float | None = None) -> Case[Moved]:
        return Case(
            case=f"disk, {codec}, {what}",
            unit=unit,
            run=run,
            figure=attrgetter(figure),
            against=None if run == _PLAIN else _PLAIN,
            baseline=() if run == _PLAIN else (_PLAIN,),
            goal=goal,
        )

    return Contest(
        name=f"disk, {codec}",
        runs={
            _PLAIN: partial(carry_plain, load),
            _LOCAL: partial(carry_local, load),
            _REMOTE: partial(carry_remote, ends, load),
        },
        cases=[
            case("plain file", _PLAIN, "gb_per_s", "GB/s"),
            case("blocking partition", _LOCAL, "gb_per_s", "GB/s", goal=_GOAL),
            case("blocking partition, write", _LOCAL, "written_gb_per_s", "GB/s"),
            case("blocking partition, read", _LOCAL, "read_gb_per_s", "GB/s"),
            case("blocking partition, processor", _LOCAL, "cpu_s", "s"),
            case("blocking partition, on disk", _LOCAL, "stored_percent", "% of its bytes"),
            case("blocking partition, remote reader", _REMOTE, "gb_per_s", "GB/s"),
            case("blocking partition, remote reader, processor", _REMOTE, "cpu_s", "s"),
        ],
    )


# Word count -------------------------------------------------------------------------------------------------


def _count(lines: int, directory: str, *, local: bool) -> Contest[Counted]:
    hows = [how for how in HOWS if not (local and how == "PySpark")]

    def rate(how: str, beside: str | None = None) -> Case[Counted]:
        return Case(
            case=f"word count, {how}" + (f", beside {beside}" if beside else ""),
            unit="words/s",
            run=how,
            figure=attrgetter("per_second"),
            against=beside,
            baseline=(beside,) if beside else (),
        )

    def peak(how: str, what: str, figure: str) -> Case[Counted]:
        return Case(
            case=f"word count, {how}, peak memory{what}",
            unit="MiB",
            run=how,
            figure=lambda counted: getattr(counted.held, figure) / MIB,
        )

    return Contest(
        name="word count",
        runs={how: partial(count_words, how, lines, directory, local=local) for how in hows},
        cases=[
            *map(rate, hows),
            *(rate("BATCH", other) for other in hows if other != "BATCH"),
            *(peak(how, "", "total") for how in hows),
            *(peak(how, " without the JVM", "python") for how in hows),
        ],
    )


# The directory ----------------------------------------------------------------------------------------------


def _place(given: Path | None) -> Path:
    """Where files go: what the command says, the first of those that the settings say, or the system's place.

    Raises:
        ConfigError: there is no such directory.
    """
    set_to = load_settings().batch.directories.split(",")[0].strip()
    place = given if given is not None else Path(set_to or tempfile.gettempdir())
    if not place.is_dir():
        whose = "--directory" if given is not None else "batch.directories"
        raise ConfigError(f"{whose}: {place} is no directory")
    return place.resolve()


def _require_space(place: Path, most_bytes: int) -> None:
    """See that so much can be written there.

    Raises:
        ConfigError: it does not fit.
    """
    free, needed = shutil.disk_usage(place).free, round(most_bytes * _SPARE)
    if free < needed:
        raise ConfigError(
            f"the suite batch writes up to {needed / 1e9:.1f} GB at once to {place}, where {free / 1e9:.1f} GB are "
            "free: choose another place by --directory, or do less by --quick"
        )


def _file_system(place: Path) -> str:
    """The kind of file system that a directory is on: in memory (tmpfs), the figures are not those of a disk."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return "an unknown file system"
    above = [(where, kind) for where, kind in mounts if place.is_relative_to(where)]
    return max(above, key=lambda mount: len(mount[0]))[1]
