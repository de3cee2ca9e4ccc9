"""Every setting of headgate: what it is, what it may be, and where its value came from.

The driver calls `load_settings` once; the frozen `Settings` it gets then travel to the workers with the
plan. Everything else takes its numbers from them. Nothing here knows the parts that use a setting.
"""

from headgate.config.kinds import Kind
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
    "Kind",
    "MemorySettings",
    "MetricsSettings",
    "NetworkMemory",
    "NetworkMemorySettings",
    "NetworkSettings",
    "RecordSettings",
    "RuntimeMode",
    "Setting",
    "Settings",
    "format_size",
    "format_time",
    "load_settings",
    "parse_size",
    "parse_time",
]
