"""The hashes of keys, written down. They decide which subtask owns which saved state: a change here is a
change of format, and old state is lost with it."""

import datetime as dt
import uuid
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest

from headgate.record.key_columns import hash_array, hash_columns
from headgate.record.keys import key_group, stable_hash

pytestmark = pytest.mark.spec("W2")

UTC = dt.UTC
VECTORS = [
    ("", 0x00000000),
    ("user-1", 0x7E264614),
    ("é", 0x0E048D3E),
    ("\ud800", 0x1DC4A528),
    (b"", 0x00000000),
    (b"user-1", 0x7E264614),
    (None, 0x6E6F6E65),
    (0, 0x70743644),
    (1, 0x3739798F),
    (True, 0x3739798F),
    (-1, 0xFD5EAABA),
    (-2, 0xFD5EAABA),
    (-3, 0xECCF50C3),
    (2**31, 0x5874EDAC),
    (2**61 - 1, 0x70743644),
    (2**64, 0xE74DDF6F),
    (-(10**30), 0x0375450A),
    (0.1, 0x992B11B4),
    (-0.5, 0x2F39FCAD),
    (1e300, 0x1850165D),
    (float("inf"), 0x28F0503F),
    (Decimal("0.1"), 0x8D259F1E),
    (Fraction(1, 3), 0xCF90EBE8),
    ((), 0x00000000),
    (("user-1", 7), 0xF39E139D),
    ((7, "user-1"), 0xDC49FBC9),
    ((1,), 0xE223BE04),
    (((1,), None), 0xD19BFC47),
    (dt.date(1970, 1, 1), 0x70743644),
    (dt.date(2024, 2, 29), 0x573CA79A),
    (dt.datetime(2024, 2, 29, 12, 30, 0, 1), 0xB8CE1CF0),  # noqa: DTZ001
    (dt.datetime(2024, 2, 29, 12, 30, 0, 1, UTC), 0xB8CE1CF0),
    (dt.time(12, 30), 0x5EC2729B),
    (dt.timedelta(days=-1, microseconds=5), 0xE17D1877),
    (uuid.UUID(int=2**127 + 5), 0xC02C522E),
]


@pytest.mark.parametrize(("key", "expected"), VECTORS, ids=repr)
def test_the_hash_of_a_key_never_changes(key: object, expected: int) -> None:
    assert stable_hash(key) == expected


def test_the_hash_of_a_column_never_changes() -> None:
    assert hash_array(pa.array(["user-1", None, ""])).tolist() == [0x7E264614, 0x6E6F6E65, 0]
    assert hash_array(pa.array([1, -3, 2**31])).tolist() == [0x3739798F, 0xECCF50C3, 0x5874EDAC]
    assert hash_array(pa.array([0.1, -0.5, 1e300])).tolist() == [0x992B11B4, 0x2F39FCAD, 0x1850165D]
    assert hash_columns([pa.array(["user-1"]), pa.array([7])]).tolist() == [0xF39E139D]


@pytest.mark.parametrize(("key", "group"), [("user-1", 20), (1, 15), (("user-1", 7), 29), (None, 101)])
def test_the_group_of_a_key_never_changes(key: object, group: int) -> None:
    assert key_group(key, 128) == group


def crc_by_hand(data: bytes) -> int:
    """CRC-32 as in IEEE 802.3, bit by bit."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0xEDB88320 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def mixed(checksum: int) -> int:
    return (checksum * 0x9E3779B1 >> 16) % 2**32


def number(value: int) -> int:
    return mixed(crc_by_hand(value.to_bytes(8, "little", signed=True)))


def test_the_format_can_be_computed_without_headgate() -> None:
    assert stable_hash("user-1") == crc_by_hand(b"user-1")
    assert stable_hash(7) == number(7)
    assert stable_hash(0.5) == number(2**60)  # 2**61 is 1 modulo 2**61 - 1, so a half is 2**60
    assert stable_hash(dt.date(1970, 1, 11)) == number(10)
    assert stable_hash(dt.datetime(1970, 1, 1, 0, 0, 1)) == number(1_000_000)  # noqa: DTZ001
    parts = crc_by_hand(b"user-1").to_bytes(4, "little") + number(7).to_bytes(4, "little")
    assert stable_hash(("user-1", 7)) == mixed(crc_by_hand(parts))
