"""The settings of headgate: their meaning, limits, defaults and values.

The driver calls `load_settings` once and sends the frozen `Settings` to the workers with the plan. All other packages
read their limits from it; this package imports none of them.
"""

from headgate.config.kinds import SettingKind
from headgate.config.load import load_settings
from headgate.config.settings import SETTINGS, Described, NetworkMemory, Setting, Settings
from headgate.config.table import (
    BackoffSettings,
    BackpressureSettings,
    BatchSettings,
    Compression,
    ExecutionSettings,
    FlowControl,
    MemorySettings,
    MetricsSettings,
    NetworkMemorySettings,
    NetworkSettings,
    RecordSettings,
    RuntimeMode,
)
from headgate.config.units import (
    BufferTimeout,
    Duration,
    FlushMode,
    format_size,
    format_time,
    parse_size,
    parse_time,
)

__all__ = [
    "SETTINGS",
    "BackoffSettings",
    "BackpressureSettings",
    "BatchSettings",
    "BufferTimeout",
    "Compression",
    "Described",
    "Duration",
    "ExecutionSettings",
    "FlowControl",
    "FlushMode",
    "MemorySettings",
    "MetricsSettings",
    "NetworkMemory",
    "NetworkMemorySettings",
    "NetworkSettings",
    "RecordSettings",
    "RuntimeMode",
    "Setting",
    "SettingKind",
    "Settings",
    "format_size",
    "format_time",
    "load_settings",
    "parse_size",
    "parse_time",
]
