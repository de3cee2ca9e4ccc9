"""Loads settings from all sources: defaults < TOML file < environment < Spark conf < code.

Called once, by the driver or the command line. Every source is checked by itself, so an error in one is reported even
if a later source overrides the value. `Settings.origins` records the source of each value.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import TypeVar

from headgate.config.settings import SETTINGS, Settings, nearest, read_value, setting_named
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
from headgate.errors import ConfigError

__all__ = ["load_settings"]

_FILE_VARIABLE = "HEADGATE_CONFIG"
_STATE_VARIABLE = "HEADGATE_STATE_DIR"  # read by attach.places: a directory of the user, not a setting of a job
_DEFAULT_FILE = "headgate.toml"
_VARIABLES = {setting.environment: setting.key for setting in SETTINGS}
_SPARK_PREFIX = "spark.headgate."

_Given = Iterator[tuple[str, object, str]]  # key, raw value, source
_S = TypeVar("_S", bound=Section)


def load_settings(
    *,
    code: Mapping[str, object] | None = None,
    spark_conf: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
    code_name: str = "code",
) -> Settings:
    """Return the settings of this process, each from the last source that sets it.

    Args:
        code: Values by dotted key, as text or typed.
        spark_conf: A Spark conf; only its `spark.headgate.<key>` entries are read.
        environ: Environment variables, instead of those of this process.
        file: A TOML file, instead of the one `HEADGATE_CONFIG` names or `headgate.toml` in the current
            directory.
        code_name: The origin that `Settings.origin` reports for values in `code`.

    >>> settings = load_settings(
    ...     code={"memory.segment_size": "4 KiB"},
    ...     spark_conf={"spark.app.name": "etl", "spark.headgate.network.connect_timeout": "5s"},
    ...     environ={"HEADGATE_RECORD_MAX_SIZE": "64 MiB"},
    ... )
    >>> settings.memory.segment_size, settings.network.connect_timeout.seconds, settings.record.max_size
    (4096, 5.0, 67108864)
    >>> settings.origin("record.max_size")
    'environment HEADGATE_RECORD_MAX_SIZE'
    """
    environ = os.environ if environ is None else environ
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for source in (
        _from_file(file, environ),
        _from_environment(environ),
        _from_spark(spark_conf or {}),
        ((key, raw, code_name) for key, raw in (code or {}).items()),
    ):
        for key, raw, name in source:
            values[key] = read_value(setting_named(key, name), raw, name)
            origins[key] = name
    return Settings(
        memory=_changed(MemorySettings(), "memory.", values),
        network=_changed(NetworkSettings(), "network.", values),
        execution=_changed(ExecutionSettings(), "execution.", values),
        batch=_changed(BatchSettings(), "batch.", values),
        record=_changed(RecordSettings(), "record.", values),
        backpressure=_changed(BackpressureSettings(), "backpressure.", values),
        metrics=_changed(MetricsSettings(), "metrics.", values),
        origins=origins,
    )


def _changed(section: _S, prefix: str, values: Mapping[str, object]) -> _S:
    """Return the section with those of `values` whose key is in it."""
    changes: dict[str, object] = {}
    for one in fields(section):
        key, old = prefix + one.name, getattr(section, one.name)
        if isinstance(old, Section):
            changes[one.name] = _changed(old, f"{key}.", values)
        elif key in values:
            changes[one.name] = values[key]
    return replace(section, **changes)


def _from_file(file: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> _Given:
    if file is None:
        named = environ.get(_FILE_VARIABLE)
        if not named and not os.path.exists(_DEFAULT_FILE):
            return
        file = named or _DEFAULT_FILE
    import tomllib  # noqa: PLC0415 - most processes read no file

    source = f"file {os.fspath(file)}"
    try:
        with open(file, "rb") as opened:
            tree = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"cannot read settings from {source}: {error.strerror or error}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{source} is not TOML: {error}") from error
    yield from _leaves(tree, "", source)


def _leaves(table: Mapping[str, object], prefix: str, source: str) -> _Given:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.", source)
        else:
            yield prefix + name, value, source


def _from_environment(environ: Mapping[str, str]) -> _Given:
    for variable, raw in environ.items():
        if variable in {_FILE_VARIABLE, _STATE_VARIABLE} or not variable.startswith("HEADGATE_"):
            continue
        if variable not in _VARIABLES:
            known = {**_VARIABLES, _FILE_VARIABLE: "", _STATE_VARIABLE: ""}
            raise ConfigError(f"unknown environment variable {variable}: {nearest(variable, known)}")
        yield _VARIABLES[variable], raw, f"environment {variable}"


def _from_spark(conf: Mapping[str, str]) -> _Given:
    for name, raw in conf.items():
        if name.startswith(_SPARK_PREFIX):
            yield name.removeprefix(_SPARK_PREFIX), raw, f"Spark conf {name}"
