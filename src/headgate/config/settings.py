"""All settings as one frozen object, and the description of each setting.

Created by `load_settings`, or directly from the sections of `table`. Invariant: every `Settings` object is valid,
however it was created: each value is within its limits, and no two contradict each other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple, get_args

from headgate.config.kinds import SettingKind
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
    """The description of one setting: a row of the table.

    >>> row = next(one for one in SETTINGS if one.key == "memory.segment_size")
    >>> row.environment, row.kind.allowed
    ('HEADGATE_MEMORY_SEGMENT_SIZE', 'a size from 16 B to 64 MiB')
    """

    key: str
    kind: SettingKind[object]
    default: object
    meaning: str

    @property
    def environment(self) -> str:
        """The environment variable that sets it."""
        return "HEADGATE_" + self.key.replace(".", "_").upper()


@dataclass(frozen=True, slots=True)
class Described:
    """A setting with its value and the origin of the value, for printing.

    >>> row = Settings().describe()[0]
    >>> row.setting.key, row.text, row.origin
    ('memory.segment_size', '32 KiB', 'default')
    """

    setting: Setting
    value: object
    origin: str

    @property
    def text(self) -> str:
        """The value with its unit."""
        return self.setting.kind.show(self.value)


class NetworkMemory(NamedTuple):
    """The size of the network memory, and a warning to log if a setting limits it unexpectedly.

    >>> Settings().network_memory_bytes(4 * 2**30)
    NetworkMemory(bytes=429496729, warning=None)
    """

    bytes: int
    warning: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Section):
    """All settings. `load_settings` creates one from files, environment, Spark conf and code.

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
    """The origin of values, by key; a value without an entry is the default or was set in code."""

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
        marks = self.network
        self._refuse(marks.write_low_mark > marks.write_high_mark, "network.write_low_mark", "network.write_high_mark")

    def value(self, key: str) -> object:
        """Return the value of a setting by its dotted key.

        >>> Settings().value("network.max_overdraft_buffers")
        5
        """
        found: object = self
        for name in setting_named(key).key.split("."):
            found = getattr(found, name)
        return found

    def origin(self, key: str) -> str:
        """Return the origin of a setting's value.

        >>> Settings().origin("network.flow_control")
        'default'
        """
        setting = setting_named(key)
        if key in self.origins:
            return self.origins[key]
        return "default" if self.value(key) == setting.default else "code"

    def describe(self) -> tuple[Described, ...]:
        """Return every setting with value and origin, in the order of the table.

        >>> [row.text for row in Settings().describe() if row.setting.key.startswith("backpressure.")]
        ['100', '50 ms', '1 min']
        """
        return tuple(Described(one, self.value(one.key), self.origin(one.key)) for one in SETTINGS)

    def network_memory_bytes(self, memory_bytes: int) -> NetworkMemory:
        """Return the memory for buffers in a worker that has `memory_bytes`: min(max, max(min, fraction x memory)).

        If `memory.network.max` limits the fraction, the result has a warning for the caller to log.

        >>> size, warning = Settings().network_memory_bytes(64 * 2**30)
        >>> size, warning
        (1073741824, 'memory.network.max = 1 GiB (default) caps ...')
        """
        assert memory_bytes > 0, "the memory of a worker is a positive number"
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
        return NetworkMemory(size, warning)

    def _refuse(self, above: bool, *keys: str) -> None:
        """Raise ConfigError if the first of two settings is larger than the second (`above`)."""
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
"""All rows of the table, in the order in which they are printed.

>>> len({setting.environment for setting in SETTINGS}) == len(SETTINGS)
True
"""

_BY_KEY = {setting.key: setting for setting in SETTINGS}


def setting_named(key: str, source: str | None = None) -> Setting:
    """Return the row of a key; raise ConfigError with the nearest key, and the source, if it is unknown.

    >>> setting_named("memory.segmentsize", "code")
    Traceback (most recent call last):
    headgate.errors.ConfigError: unknown setting memory.segmentsize (code): did you mean memory...? (...)
    """
    if key in _BY_KEY:
        return _BY_KEY[key]
    where = f" ({source})" if source else ""
    raise ConfigError(f"unknown setting {key}{where}: {nearest(key, _BY_KEY)}")


def nearest(name: str, known: Mapping[str, object]) -> str:
    """Return a hint for an unknown name: the most similar known one.

    >>> nearest("recrod.max_size", {"record.max_size": 1})
    'did you mean record.max_size? (`headgate config` lists all)'
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only needed to explain an error

    close = get_close_matches(name, known, n=1, cutoff=0.0)
    return f"did you mean {close[0]}? (`headgate config` lists all)"


def read_value(setting: Setting, raw: object, source: str) -> object:
    """Return the typed value of `raw`, or raise ConfigError with key, value, source and the allowed values.

    >>> read_value(SETTINGS[0], "1g", "code")
    Traceback (most recent call last):
    headgate.errors.ConfigError: memory.segment_size = '1g' (code): unknown size unit 'g': write GiB ...
    """
    try:
        return setting.kind.read(raw)
    except ConfigError as error:
        shown = raw if isinstance(raw, int | float | Duration | BufferTimeout) else repr(raw)
        raise ConfigError(f"{setting.key} = {shown} ({source}): {error}; allowed: {setting.kind.allowed}") from None
