"""Sizes, times and settings survive being written and read again; no text breaks the readers."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.config import (
    SETTINGS,
    BufferTimeout,
    Duration,
    FlushMode,
    format_size,
    format_time,
    parse_size,
    parse_time,
)
from headgate.errors import ConfigError

SIZES = {"B": 1, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
COUNTS = st.one_of(
    st.integers(0, 2**50),
    st.builds(lambda n, unit: n * unit, st.integers(0, 1000), st.sampled_from([*SIZES.values(), *TIMES.values()])),
)


@given(COUNTS)
@example(0)
def test_sizes_round_trip(size: int):
    assert parse_size(format_size(size)) == size


@given(COUNTS)
@example(0)
def test_times_round_trip(time_ns: int):
    assert parse_time(format_time(time_ns)) == time_ns
    assert Duration.parse(str(Duration(time_ns))).ns == time_ns


@given(st.integers(0, 10**6), st.sampled_from(sorted(SIZES)), st.sampled_from(["", " ", "  "]))
def test_a_size_means_number_times_unit(number: int, unit: str, space: str):
    assert parse_size(f"{number}{space}{unit}") == number * SIZES[unit]


@given(st.integers(0, 10**6), st.sampled_from(sorted(TIMES)), st.sampled_from(["", " "]))
def test_a_time_means_number_times_unit(number: int, unit: str, space: str):
    assert parse_time(f"{number}{space}{unit}") == number * TIMES[unit]


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_decimals_are_exact(whole: int, thousandths: int):
    assert parse_time(f"{whole}.{thousandths:03} s") == (whole * 1000 + thousandths) * 10**6
    assert parse_size(f"{whole}.{thousandths:03} KB") == whole * 1000 + thousandths


@pytest.mark.parametrize(("parse", "text"), [(parse_size, "0.0001 KB"), (parse_size, "1.5"), (parse_time, "0.5 ns")])
def test_less_than_a_byte_or_a_nanosecond_is_refused(parse: Callable[[str], int], text: str):
    with pytest.raises(ConfigError, match="not a whole number"):
        parse(text)


@given(st.integers(1, 2**50))
def test_a_bare_number_is_bytes_but_never_a_time(number: int):
    assert parse_size(str(number)) == number
    with pytest.raises(ConfigError, match="needs its unit"):
        parse_time(str(number))


@given(st.sampled_from(list(FlushMode)), st.integers(1, 2**50))
def test_buffer_timeouts_round_trip(mode: FlushMode, interval_ns: int):
    interval_ns = {FlushMode.AUTO: 100_000_000, FlushMode.INTERVAL: interval_ns}.get(mode, 0)
    timeout = BufferTimeout(mode, interval_ns)
    assert BufferTimeout.parse(str(timeout)) == timeout


RAW = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,25})?\s?[a-zA-Z]{0,3}", fullmatch=True),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=2),
)


@given(st.sampled_from(SETTINGS), RAW)
def test_any_value_is_read_for_good_or_refused_as_config_error(setting, raw: object):
    try:
        value = setting.kind.read(raw)
    except ConfigError:
        return
    assert type(value) is type(setting.default)
    assert setting.kind.read(value) == value
    assert setting.kind.read(setting.kind.show(value)) == value
