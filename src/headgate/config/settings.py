"""All settings as one frozen object, and what can be said about each.

Made by `load_settings`, or straight from the sections of `table`; used by everything that has a limit.
Invariant: a `Settings` that exists is valid, however it was made: every value is within its limits and no
two contradict each other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple, get_args

from headgate.config.kinds import Kind
from headgate.config.table import (
    BackpressureSettings,
    BatchSettings,
    ExecutionSettings,
    MemorySettings,
    MetricsSettings,
    NetworkSettings,
    RecordSettings,
    Section,
)
from headgate.config.units import MIB, BufferTimeout, Duration, format_size
from headgate.errors import ConfigError

__all__ = ["SETTINGS", "Described", "NetworkMemory", "Setting", "Settings"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    >>> row = next(one for one in SETTINGS if one.key == "memory.segment_size")
    >>> row.environment, row.kind.allowed
    ('HEADGATE_MEMORY_SEGMENT_SIZE', 'a size from 16 B to 64 MiB')
    """

    key: str
    kind: Kind[object]
    default: object
    meaning: str

    @property
    def environment(self) -> str:
        """The environment variable that sets it."""
        return "HEADGATE_" + self.key.replace(".", "_").upper()


@dataclass(frozen=True, slots=True)
class Described:
    """A setting with its value and where that came from, for printing.

    >>> row = Settings().describe()[0]
    >>> row.setting.key, row.text, row.origin
    ('memory.segment_size', '32 KiB', 'default')
    """

    setting: Setting
    value: object
    origin: str

    @property
    def text(self) -> str:
        """The value in human units."""
        return self.setting.kind.show(self.value)


class NetworkMemory(NamedTuple):
    """The memory for buffers, and what the user should know about how it came about.

    >>> Settings().network_memory_bytes(4 * 2**30)
    NetworkMemory(bytes=429496729, warning=None)
    """

    bytes: int
    warning: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Section):
    """All settings. `load_settings` makes one from files, environment, Spark conf and code.

    >>> Settings(memory=MemorySettings(segment_size=4096)).origin("memory.segment_size")
    'code'
    >>> Settings(memory=MemorySettings(segment_size=8))
    Traceback (most recent call last):
    headgate.errors.ConfigError: memory.segment_size = 8 (code): too small; allowed: a size from 16 B ...
    """

    memory: MemorySettings = field(default_factory=MemorySettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
    backpressure: BackpressureSettings = field(default_factory=BackpressureSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where values came from, by key; what is not in it is a default or was set in code."""

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            value = self.value(setting.key)
            read = read_value(setting, value, self.origin(setting.key))
            if type(read) is not type(value):
                raise ConfigError(
                    f"{setting.key} = {value!r} ({self.origin(setting.key)}): give a "
                    f"{type(setting.default).__name__}, or let load_settings read it"
                )
        network, backoff = self.memory.network, self.network.partition_request_backoff
        self._refuse(network.min > network.max, "memory.network.min", "memory.network.max")
        self._refuse(self.memory.segment_size > network.max, "memory.segment_size", "memory.network.max")
        self._refuse(
            backoff.initial > backoff.max,
            "network.partition_request_backoff.initial",
            "network.partition_request_backoff.max",
        )

    def value(self, key: str) -> object:
        """The value of a setting by its dotted key.

        >>> Settings().value("network.max_overdraft_buffers")
        5
        """
        found: object = self
        for name in setting_named(key).key.split("."):
            found = getattr(found, name)
        return found

    def origin(self, key: str) -> str:
        """Where the value of a setting came from.

        >>> Settings().origin("network.flow_control")
        'default'
        """
        setting = setting_named(key)
        if key in self.origins:
            return self.origins[key]
        return "default" if self.value(key) == setting.default else "code"

    def describe(self) -> tuple[Described, ...]:
        """Every setting with value and origin, in the order of the table.

        >>> [row.text for row in Settings().describe() if row.setting.key.startswith("backpressure.")]
        ['100', '50 ms', '1 min']
        """
        return tuple(Described(one, self.value(one.key), self.origin(one.key)) for one in SETTINGS)

    def network_memory_bytes(self, memory_bytes: int) -> NetworkMemory:
        """The memory for buffers in a worker that has `memory_bytes`; logs the warning it returns.

        >>> size, warning = Settings().network_memory_bytes(64 * 2**30)
        >>> size, warning
        (1073741824, 'memory.network.max = 1 GiB (default) caps ...')
        """
        assert memory_bytes > 0, "a worker has some memory"
        limits = self.memory.network
        asked = int(limits.fraction * memory_bytes)
        size = min(limits.max, max(limits.min, asked))
        if asked <= limits.max:
            return NetworkMemory(size, None)
        warning = (
            f"memory.network.max = {format_size(limits.max)} ({self.origin('memory.network.max')}) caps the "
            f"{asked / MIB:,.1f} MiB that memory.network.fraction = {limits.fraction} "
            f"({self.origin('memory.network.fraction')}) asks for: a larger fraction changes nothing unless "
            "memory.network.max is raised together with it"
        )
        import logging  # noqa: PLC0415 - this module is in every start's way; most starts warn of nothing

        logging.getLogger("headgate.config").warning("%s", warning)
        return NetworkMemory(size, warning)

    def _refuse(self, above: bool, *keys: str) -> None:
        """Where the first of two settings is above the second and must not be."""
        if above:
            lower, upper = (
                f"{key} = {setting_named(key).kind.show(self.value(key))} ({self.origin(key)})" for key in keys
            )
            raise ConfigError(f"{lower} is more than {upper}: lower the first or raise the second")


def _rows(section: type[Section], prefix: str) -> Iterator[Setting]:
    for one in fields(section):
        match get_args(one.type):
            case (_, kind, str(meaning)):
                yield Setting(prefix + one.name, kind, one.default, meaning)
            case _ if isinstance(one.type, type) and issubclass(one.type, Section):
                yield from _rows(one.type, f"{prefix}{one.name}.")


SETTINGS: tuple[Setting, ...] = tuple(_rows(Settings, ""))
"""The whole table, in the order it is printed.

>>> len({setting.environment for setting in SETTINGS}) == len(SETTINGS)
True
"""

_BY_KEY = {setting.key: setting for setting in SETTINGS}


def setting_named(key: str, source: str | None = None) -> Setting:
    """The row of a key; an unknown one is an error naming the nearest, and the source it came from.

    >>> setting_named("memory.segmentsize", "code")
    Traceback (most recent call last):
    headgate.errors.ConfigError: unknown setting memory.segmentsize (code): did you mean memory...? (...)
    """
    if key in _BY_KEY:
        return _BY_KEY[key]
    where = f" ({source})" if source else ""
    raise ConfigError(f"unknown setting {key}{where}: {nearest(key, _BY_KEY)}")


def nearest(name: str, known: Mapping[str, object]) -> str:
    """What to say about a name that is not known.

    >>> nearest("recrod.max_size", {"record.max_size": 1})
    'did you mean record.max_size? (`headgate config` lists all)'
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only needed to explain an error

    close = get_close_matches(name, known, n=1, cutoff=0.0)
    return f"did you mean {close[0]}? (`headgate config` lists all)"


def read_value(setting: Setting, raw: object, source: str) -> object:
    """The typed value of `raw`, or an error that names key, value, source and what is allowed.

    >>> read_value(SETTINGS[0], "1g", "code")
    Traceback (most recent call last):
    headgate.errors.ConfigError: memory.segment_size = '1g' (code): unknown size unit 'g': write GiB ...
    """
    try:
        return setting.kind.read(raw)
    except ConfigError as error:
        shown = raw if isinstance(raw, int | float | Duration | BufferTimeout) else repr(raw)
        raise ConfigError(f"{setting.key} = {shown} ({source}): {error}; allowed: {setting.kind.allowed}") from None
