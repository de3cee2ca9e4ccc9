"""Settings: the table, its sources, its limits, and what its errors say."""

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from headgate.config import (
    SETTINGS,
    BufferTimeout,
    Duration,
    FlowControl,
    FlushMode,
    MemorySettings,
    NetworkMemorySettings,
    Settings,
    load_settings,
)
from headgate.errors import ConfigError

# Every default of the published table, as a user would write it.
DEFAULTS = {
    "memory.segment_size": "32 KiB",
    "memory.network.fraction": "0.1",
    "memory.network.min": "64 MiB",
    "memory.network.max": "1 GiB",
    "network.buffers_per_channel": "2",
    "network.floating_buffers_per_gate": "8",
    "network.max_buffers_per_channel": "10",
    "network.max_overdraft_buffers": "5",
    "network.buffers_request_timeout": "30 s",
    "network.partition_request_backoff.initial": "100 ms",
    "network.partition_request_backoff.max": "10 s",
    "network.flow_control": "credit",
    "network.transport": "auto",
    "network.connect_timeout": "30 s",
    "network.handshake_timeout": "5 s",
    "network.idle_timeout": "1 min",
    "network.checksum": "false",
    "network.keepalive": "true",
    "network.send_buffer": "0 B",
    "network.receive_buffer": "0 B",
    "network.write_high_mark": "16",
    "network.write_low_mark": "1",
    "network.bind_address": "127.0.0.1",
    "network.port": "0",
    "network.max_half_open": "64",
    "network.max_channels_per_connection": "65536",
    "network.insecure_plaintext": "false",
    "execution.buffer_timeout": "auto",
    "execution.switch_interval": "100 us",
    "execution.object_reuse": "false",
    "execution.max_parallelism": "128",
    "execution.runtime_mode": "STREAMING",
    "batch.directories": "",
    "batch.disk_quota": "0 B",
    "batch.compression": "lz4",
    "batch.read_ahead": "8",
    "batch.group_memory": "256 MiB",
    "batch.attempts": "3",
    "batch.slots_timeout": "5 min",
    "record.batch_size": "1000",
    "record.max_size": "1 GiB",
    "record.spill_threshold": "5 MiB",
    "record.spill_directory": "",
    "backpressure.samples": "100",
    "backpressure.delay": "50 ms",
    "backpressure.refresh": "1 min",
    "metrics.interval": "100 ms",
    "metrics.history": "10 min",
    "metrics.latency_interval": "1 s",
    "metrics.hot_keys": "true",
    "metrics.keep": "20",
}

# For every setting, a value other than its default, within its limits and not against any other default.
OTHERS = {
    "memory.segment_size": "4 KiB",
    "memory.network.fraction": "0.25",
    "memory.network.min": "1 MiB",
    "memory.network.max": "2 GiB",
    "network.buffers_per_channel": "3",
    "network.floating_buffers_per_gate": "0",
    "network.max_buffers_per_channel": "11",
    "network.max_overdraft_buffers": "0",
    "network.buffers_request_timeout": "31 s",
    "network.partition_request_backoff.initial": "10 ms",
    "network.partition_request_backoff.max": "11 s",
    "network.flow_control": "tcp",
    "network.transport": "asyncio",
    "network.connect_timeout": "1 s",
    "network.handshake_timeout": "1 s",
    "network.idle_timeout": "1 h",
    "network.checksum": "true",
    "network.keepalive": "false",
    "network.send_buffer": "64 KiB",
    "network.receive_buffer": "1 MiB",
    "network.write_high_mark": "2",
    "network.write_low_mark": "16",
    "network.bind_address": "::1",
    "network.port": "7077",
    "network.max_half_open": "1",
    "network.max_channels_per_connection": "1",
    "network.insecure_plaintext": "true",
    "execution.buffer_timeout": "5 ms",
    "execution.switch_interval": "5 ms",
    "execution.object_reuse": "true",
    "execution.max_parallelism": "64",
    "execution.runtime_mode": "BATCH",
    "batch.directories": "/data1,/data2",
    "batch.disk_quota": "1 TiB",
    "batch.compression": "none",
    "batch.read_ahead": "1",
    "batch.group_memory": "64 KiB",
    "batch.attempts": "1",
    "batch.slots_timeout": "0 s",
    "record.batch_size": "1",
    "record.max_size": "4095 MiB",
    "record.spill_threshold": "1 KiB",
    "record.spill_directory": "/spill",
    "backpressure.samples": "10",
    "backpressure.delay": "1 ms",
    "backpressure.refresh": "0 s",
    "metrics.interval": "0 s",
    "metrics.history": "1 s",
    "metrics.latency_interval": "0 s",
    "metrics.hot_keys": "false",
    "metrics.keep": "0",
}


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No headgate.toml and no HEADGATE_* of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment, raising=False)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    return tmp_path


def refusal(**sources: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(**{"environ": {}, **sources})
    return str(caught.value)


def test_defaults_are_those_of_the_published_table():
    assert {row.setting.key: row.text for row in load_settings(environ={}).describe()} == DEFAULTS


def test_every_default_reads_back_from_its_own_text():
    assert load_settings(environ={}, code=DEFAULTS) == Settings()


def test_every_setting_has_a_sentence_and_a_variable_of_its_own():
    assert all(one.meaning.endswith(".") and one.kind.allowed for one in SETTINGS)
    assert len({one.environment for one in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize("key", OTHERS)
def test_each_setting_can_be_set_from_each_source(key: str, tmp_path: Path):
    text, variable = OTHERS[key], f"HEADGATE_{key.replace('.', '_').upper()}"
    path = tmp_path / "some.toml"
    path.write_text(f"{key} = '{text}'\n", encoding="utf-8")
    for origin, settings in {
        f"file {path}": load_settings(environ={}, file=path),
        f"environment {variable}": load_settings(environ={variable: text}),
        f"Spark conf spark.headgate.{key}": load_settings(environ={}, spark_conf={f"spark.headgate.{key}": text}),
        "code": load_settings(environ={}, code={key: text}),
    }.items():
        changed = [row for row in settings.describe() if row.text != DEFAULTS[row.setting.key]]
        assert [(row.setting.key, row.text, row.origin) for row in changed] == [(key, text, origin)]


def test_the_tests_name_every_setting():
    assert list(DEFAULTS) == list(OTHERS) == [one.key for one in SETTINGS]


def test_later_sources_win_and_each_value_knows_its_source(tmp_path: Path):
    path = tmp_path / "some.toml"
    path.write_text(
        "[network]\nbuffers_per_channel = 3\nfloating_buffers_per_gate = 3\n"
        "max_buffers_per_channel = 3\nmax_overdraft_buffers = 3\n",
        encoding="utf-8",
    )
    settings = load_settings(
        file=path,
        environ={
            "HEADGATE_NETWORK_FLOATING_BUFFERS_PER_GATE": "4",
            "HEADGATE_NETWORK_MAX_BUFFERS_PER_CHANNEL": "4",
            "HEADGATE_NETWORK_MAX_OVERDRAFT_BUFFERS": "4",
            "PATH": "/bin",
        },
        spark_conf={
            "spark.headgate.network.max_buffers_per_channel": "5",
            "spark.headgate.network.max_overdraft_buffers": "5",
            "spark.master": "local[2]",
        },
        code={"network.max_overdraft_buffers": 6},
    )
    network = settings.network
    assert (network.buffers_per_channel, network.floating_buffers_per_gate) == (3, 4)
    assert (network.max_buffers_per_channel, network.max_overdraft_buffers) == (5, 6)
    assert settings.origin("network.buffers_per_channel") == f"file {path}"
    assert settings.origin("network.max_overdraft_buffers") == "code"
    assert settings.origin("memory.segment_size") == "default"


def test_file_with_typed_values(tmp_path: Path):
    path = tmp_path / "typed.toml"
    path.write_text(
        "memory.segment_size = 4096\nexecution.object_reuse = true\nexecution.buffer_timeout = -1\n"
        "[memory.network]\nfraction = 1\n[backpressure]\nrefresh = 0\n",
        encoding="utf-8",
    )
    settings = load_settings(environ={}, file=path)
    assert settings.memory.segment_size == 4096
    assert settings.execution.object_reuse is True
    assert settings.execution.buffer_timeout.mode is FlushMode.NEVER
    assert settings.memory.network.fraction == 1.0
    assert settings.backpressure.refresh == Duration(0)


def test_file_is_found_by_variable_then_in_the_current_directory(empty_directory: Path):
    (empty_directory / "headgate.toml").write_text("record.batch_size = 7\n", encoding="utf-8")
    (empty_directory / "other.toml").write_text("record.batch_size = 8\n", encoding="utf-8")
    here = load_settings(environ={})
    assert (here.record.batch_size, here.origin("record.batch_size")) == (7, "file headgate.toml")
    assert load_settings(environ={"HEADGATE_CONFIG": "other.toml"}).record.batch_size == 8
    assert load_settings(environ={"HEADGATE_CONFIG": ""}).record.batch_size == 7
    assert load_settings(environ={"HEADGATE_CONFIG": "missing"}, file="other.toml").record.batch_size == 8


def test_own_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADGATE_RECORD_BATCH_SIZE", "9")
    assert load_settings().record.batch_size == 9
    assert load_settings(environ={}).record.batch_size == 1000


@pytest.mark.parametrize("content", [b"[memory", b"\xff = 1", None])
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path):
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in refusal(file=path)


def test_a_table_where_a_value_belongs_is_refused(tmp_path: Path):
    path = tmp_path / "bad.toml"
    path.write_text("[memory.segment_size]\nbytes = 4096\n", encoding="utf-8")
    assert "unknown setting memory.segment_size.bytes" in refusal(file=path)
    path.write_text("memory = 3\n", encoding="utf-8")
    assert "unknown setting memory (" in refusal(file=path)


@pytest.mark.parametrize(
    ("sources", "named", "near"),
    [
        ({"code": {"memory.segmentsize": 1}}, "memory.segmentsize (code)", "memory.segment_size"),
        ({"environ": {"HEADGATE_RECORD_MAXSIZE": "1"}}, "HEADGATE_RECORD_MAXSIZE", "HEADGATE_RECORD_MAX_SIZE"),
        ({"environ": {"HEADGATE_CONFG": "x"}}, "HEADGATE_CONFG", "HEADGATE_CONFIG"),
        (
            {"spark_conf": {"spark.headgate.network.transprt": "x"}},
            "Spark conf spark.headgate.network.transprt",
            "network.transport",
        ),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_named(sources: dict[str, object], named: str, near: str):
    message = refusal(**sources)
    assert named in message
    assert f"did you mean {near}?" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory.segment_size", "15"),
        ("memory.segment_size", "65 MiB"),
        ("memory.segment_size", True),
        ("memory.segment_size", 4096.0),
        ("memory.segment_size", "32 kib"),
        ("memory.segment_size", "-1"),
        ("memory.segment_size", ""),
        ("memory.network.fraction", "1.1"),
        ("memory.network.fraction", -0.1),
        ("memory.network.fraction", float("nan")),
        ("memory.network.fraction", "nan"),
        ("network.buffers_per_channel", "0"),
        ("network.buffers_per_channel", "2.0"),
        ("network.buffers_per_channel", "1_0"),
        ("network.buffers_per_channel", True),
        ("network.connect_timeout", "30"),
        ("network.connect_timeout", 30),
        ("network.connect_timeout", "0"),
        ("network.connect_timeout", "-1"),
        ("network.connect_timeout", "2 h"),
        ("network.connect_timeout", None),
        ("network.flow_control", "Credit"),
        ("network.transport", "../x"),
        ("execution.buffer_timeout", "-2"),
        ("execution.buffer_timeout", 10),
        ("execution.buffer_timeout", "2 h"),
        ("execution.buffer_timeout", False),
        ("execution.object_reuse", "maybe"),
        ("execution.object_reuse", 1),
        ("execution.max_parallelism", 32_769),
        ("record.max_size", "4 GiB"),
        ("record.batch_size", 100_001),
        ("record.spill_directory", 3),
        ("backpressure.samples", []),
    ],
)
def test_a_bad_value_is_refused_with_key_value_source_and_allowed_values(key: str, value: object):
    message = refusal(code={key: value})
    allowed = next(one.kind.allowed for one in SETTINGS if one.key == key)
    assert message.startswith(f"{key} = ")
    assert str(value) in message
    assert "(code)" in message
    assert message.endswith(f"allowed: {allowed}")


def test_the_error_of_a_time_without_a_unit_proposes_units():
    assert "write '30 ms' or '30 s'" in refusal(environ={"HEADGATE_NETWORK_CONNECT_TIMEOUT": "30"})


def test_a_mistake_is_reported_even_where_a_later_source_overrides_it():
    message = refusal(environ={"HEADGATE_RECORD_BATCH_SIZE": "many"}, code={"record.batch_size": 1})
    assert "environment HEADGATE_RECORD_BATCH_SIZE" in message


@pytest.mark.parametrize(
    ("code", "lower", "upper"),
    [
        ({"memory.network.min": "2 GiB"}, "memory.network.min = 2 GiB (code)", "max = 1 GiB (default)"),
        (
            {"memory.segment_size": "2 MiB", "memory.network.max": "1 MiB", "memory.network.min": "1 MiB"},
            "memory.segment_size = 2 MiB (code)",
            "memory.network.max = 1 MiB (code)",
        ),
        (
            {"network.partition_request_backoff.initial": "11 s"},
            "network.partition_request_backoff.initial = 11 s (code)",
            "network.partition_request_backoff.max = 10 s (default)",
        ),
        (
            {"network.write_low_mark": 3, "network.write_high_mark": 2},
            "network.write_low_mark = 3 (code)",
            "network.write_high_mark = 2 (code)",
        ),
    ],
)
def test_contradicting_settings_are_refused_by_both_names(code: dict[str, object], lower: str, upper: str):
    message = refusal(code=code)
    assert message.startswith(lower)
    assert upper in message


def test_settings_made_by_hand_are_checked_too():
    with pytest.raises(ConfigError, match=r"memory\.segment_size = 8"):
        Settings(memory=MemorySettings(segment_size=8))
    with pytest.raises(ConfigError, match=r"memory\.network\.min"):
        Settings(memory=MemorySettings(network=NetworkMemorySettings(max=32 * 1024)))
    with pytest.raises(ConfigError, match="give a int, or let load_settings"):
        Settings(memory=MemorySettings(segment_size="32 KiB"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        replace(Settings(), memory=MemorySettings(segment_size=8))


def test_settings_are_frozen_compare_by_value_and_travel():
    settings = load_settings(environ={}, code={"execution.buffer_timeout": "10ms", "network.flow_control": "tcp"})
    with pytest.raises(FrozenInstanceError):
        settings.memory.segment_size = 1  # type: ignore[misc]
    arrived = pickle.loads(pickle.dumps(settings))
    assert arrived == settings != Settings()
    assert hash(arrived) == hash(settings)
    assert arrived.network.flow_control is FlowControl.TCP
    assert arrived.origin("network.flow_control") == "code"


def test_asking_for_an_unknown_key_is_an_error():
    with pytest.raises(ConfigError, match="did you mean memory"):
        Settings().value("memory.segment")
    with pytest.raises(ConfigError, match="did you mean memory"):
        Settings().origin("memory.segment")


@pytest.mark.parametrize(
    ("raw", "mode", "interval_ns"),
    [
        ("auto", FlushMode.AUTO, 100_000_000),
        ("100ms", FlushMode.INTERVAL, 100_000_000),
        ("0", FlushMode.ALWAYS, 0),
        ("0 ms", FlushMode.ALWAYS, 0),
        (0, FlushMode.ALWAYS, 0),
        (-1, FlushMode.NEVER, 0),
        (BufferTimeout(FlushMode.INTERVAL, 5), FlushMode.INTERVAL, 5),
    ],
)
@pytest.mark.spec("W4")
def test_buffer_timeout(raw: object, mode: FlushMode, interval_ns: int):
    timeout = load_settings(environ={}, code={"execution.buffer_timeout": raw}).execution.buffer_timeout
    assert (timeout.mode, timeout.interval_ns) == (mode, interval_ns)


@pytest.mark.parametrize(
    ("mode", "interval_ns"), [(FlushMode.INTERVAL, 0), (FlushMode.NEVER, 1), (FlushMode.INTERVAL, -1)]
)
def test_a_buffer_timeout_without_sense_cannot_be_made(mode: FlushMode, interval_ns: int):
    with pytest.raises(ConfigError):
        BufferTimeout(mode, interval_ns)


GIB = 2**30


@pytest.mark.parametrize(
    ("memory", "expected", "capped"),
    [
        (100 * 2**20, 64 * 2**20, False),  # 10 MiB asked for: raised to min
        (4 * GIB, int(0.1 * 4 * GIB), False),
        (10 * GIB, GIB, False),  # exactly max: nothing was taken away
        (11 * GIB, GIB, True),
    ],
)
@pytest.mark.spec("M2")
def test_network_memory(memory: int, expected: int, capped: bool):
    size, warning = load_settings(environ={}).network_memory_bytes(memory)
    assert size == expected
    assert (warning is not None) == capped
    if warning is not None:
        assert "memory.network.max = 1 GiB (default) caps the 1,126.4 MiB" in warning
        assert "memory.network.fraction = 0.1" in warning


def test_importing_settings_reads_no_toml_and_no_other_part():
    script = (
        "import sys, headgate.config; "
        "print(sorted({'tomllib', 'difflib', 'rich', 'numpy', 'pyarrow', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("address", ["localhost", "", "127.0.0", "300.0.0.1", "[::1]", "127.0.0.1:80", 2130706433])
def test_a_worker_listens_on_an_address_not_on_a_name(address: object):
    """What a name means may change, and whether it is loopback decides over encryption."""
    message = refusal(code={"network.bind_address": address})
    assert "network.bind_address" in message
    assert "an IP address such as 127.0.0.1 or ::1" in message


def test_an_address_is_written_in_one_way():
    written = load_settings(environ={}, code={"network.bind_address": " 0:0:0:0:0:0:0:1 "})
    assert written.network.bind_address == "::1"
