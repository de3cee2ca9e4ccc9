"""The hashes of `keys`, for whole Arrow columns at once.

The hash selector calls it on the producer's task thread for Arrow batches. Where a vectorized function exists for the
type of a column, no Python code runs per row; other columns are hashed value by value with `stable_hash`.

Invariant: `hash_array(pa.array(values))[i] == stable_hash(values[i])` for every type, so that equal keys of rows and of
batches are sent to the same subtask. NaN, which `stable_hash` refuses, has one hash in a column of floats: an Arrow
stream has no keyed state. Arrays must be valid: those received from a peer are validated by the serializer.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headgate.errors import UnstableKey
from headgate.record.keys import NAN_HASH, NONE_HASH, SPREAD, stable_hash

__all__ = ["hash_array", "hash_columns"]

Hashes = NDArray[np.uint32]

_MODULUS: Final = sys.hash_info.modulus
_LONGEST: Final = 64  # bytes of a row; above, zlib's own loop is faster than the table


def hash_array(array: pa.Array | pa.ChunkedArray) -> Hashes:
    """Return the stable hash of every value of a column; a null hashes as None, a struct as a tuple of its fields.

    >>> hash_array(pa.array(["user-1", None])).tolist() == [stable_hash("user-1"), stable_hash(None)]
    True

    Raises:
        UnstableKey: Values of this Arrow type have no stable hash (lists, maps, unions).
    """
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks != 1:
            return np.concatenate([np.empty(0, np.uint32), *map(hash_array, array.chunks)])
        array = array.chunk(0)
    hashes = _hasher_of(array.type)(array)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = NONE_HASH
    return hashes


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """Return the stable hash of every row of some columns: of the value if it is one column, otherwise of the tuple.

    >>> users, days = pa.array(["ann", "bob"]), pa.array([1, 2])
    >>> hash_columns([users, days]).tolist() == [stable_hash(("ann", 1)), stable_hash(("bob", 2))]
    True
    """
    assert columns, "a key has at least one column"
    if len(columns) == 1:
        return hash_array(columns[0])
    assert len({len(column) for column in columns}) == 1, "the columns of a key have the same length"
    return _hash_tuples(columns, len(columns[0]))


def _hash_tuples(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Hashes:
    """Return the CRC over the hashes of the columns, four bytes each."""
    _, _, low, high = _crc_word_tables()
    state = np.full(rows, 0xFFFF_FFFF, np.uint32)
    for column in columns:
        state ^= hash_array(column)
        state = low.take(state & 0xFFFF, mode="clip") ^ high.take(state >> 16, mode="clip")
    return _multiply(~state)


# -- Numbers, and values stored as numbers ---------------------------------------------------------------


def _spread(numbers: NDArray[np.int64]) -> Hashes:
    """Return `keys.spread` of every number."""
    words = numbers.astype("<i8", copy=False).view("<u2").reshape(-1, 4)
    hashes = np.full(len(numbers), crc32(bytes(8)), np.uint32)
    for position, table in enumerate(_crc_word_tables()):
        hashes ^= table.take(words[:, position], mode="clip")
    return _multiply(hashes)


def _multiply(checksums: Hashes) -> Hashes:
    product = checksums * np.uint64(SPREAD)
    product >>= np.uint64(16)
    return product.astype(np.uint32)


def _spread_number_hash(numbers: NDArray[np.int64]) -> Hashes:
    numbers[numbers == -1] = -2  # as hash(-1) does: CPython uses -1 for errors
    return _spread(numbers)


def _values(array: pa.Array, dtype: np.dtype) -> NDArray[np.generic]:
    """Return the fixed-width values of an array without a copy; a null has an arbitrary value."""
    values = array.buffers()[1]
    if len(array) == 0 or values is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)


def _hash_ints(array: pa.Array) -> Hashes:
    values = _values(array, np.dtype(array.type.to_pandas_dtype()))
    if values.dtype == np.uint64:
        return _spread((values.astype(np.uint64) % np.uint64(_MODULUS)).astype(np.int64))
    numbers = values.astype(np.int64)
    if values.dtype == np.int64 and len(numbers):
        smallest, largest = numbers.min(), numbers.max()
        if smallest <= -_MODULUS or largest >= _MODULUS:
            np.fmod(numbers, _MODULUS, out=numbers)  # as hash() does: the remainder has the number's sign
    return _spread_number_hash(numbers)


def _hash_bools(array: pa.Array) -> Hashes:
    return _hash_ints(array.cast(pa.int8()))


def _hash_floats(array: pa.Array) -> Hashes:
    values = _values(array, np.dtype(array.type.to_pandas_dtype())).astype(np.float64)
    special = ~np.isfinite(values)
    unusual = special.any()
    kept = np.where(special, 0.0, values) if unusual else values
    # hash(m * 2**e) is m * 2**e modulo 2**61 - 1, in which a multiplication by two is a rotation of 61 bits.
    fraction, exponent = np.frexp(kept)
    mantissa = np.abs(fraction * 2.0**53).astype(np.uint64)
    turn = ((exponent - 53) % 61).astype(np.uint64)
    rotated = (mantissa << turn) & np.uint64(_MODULUS) | mantissa >> (np.uint64(61) - turn)
    numbers = rotated.view(np.int64)
    np.negative(numbers, out=numbers, where=kept < 0)
    if unusual:
        numbers[values == np.inf] = sys.hash_info.inf
        numbers[values == -np.inf] = -sys.hash_info.inf
    hashes = _spread_number_hash(numbers)
    if unusual:
        hashes[np.isnan(values)] = NAN_HASH
    return hashes


_SCALES: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


def _hash_times(array: pa.Array) -> Hashes:
    """Return the hashes of timestamps, durations and times of day, as microseconds."""
    dtype = np.dtype(np.int32 if pa.types.is_time32(array.type) else np.int64)
    numbers = _values(array, dtype).astype(np.int64)
    times, over = _SCALES[array.type.unit]
    if times != 1:
        numbers *= times
    elif over != 1:
        numbers //= over
    return _spread(numbers)


def _hash_timestamps(array: pa.Array) -> Hashes:
    zone = array.type.tz
    if zone is not None and zone != "UTC" and zone[0] not in "+-":
        # In the hour that a clock repeats, Python treats both passes as equal: so the first is taken.
        local = pc.local_timestamp(array)
        array = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    return _hash_times(array)


def _hash_date32(array: pa.Array) -> Hashes:
    return _spread(_values(array, np.dtype(np.int32)).astype(np.int64))


def _hash_date64(array: pa.Array) -> Hashes:
    return _spread(_values(array, np.dtype(np.int64)).astype(np.int64) // 86_400_000)


# -- Bytes ---------------------------------------------------------------------------------------------------


@cache
def _crc_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return what a byte adds to the CRC by its distance from the end of the row, and the CRC of n zero bytes.

    A CRC is linear: that of a row is the exclusive or of the CRC of as many zero bytes and of one term per byte, which
    depends only on the byte and on the number of bytes after it.
    """
    zeros = np.array([crc32(bytes(n)) for n in range(_LONGEST + 1)], np.uint32)
    table = np.empty((_LONGEST, 256), np.uint32)
    table[0] = np.array([crc32(bytes([byte])) for byte in range(256)], np.uint32) ^ zeros[1]
    for distance in range(1, _LONGEST):
        before = table[distance - 1]
        table[distance] = table[0][before & 0xFF] ^ (before >> 8)
    return table, zeros


@cache
def _crc_word_tables() -> NDArray[np.uint32]:
    """Return what each of the four 16-bit words of an eight-byte little-endian number adds to its CRC."""
    table, words = _crc_tables()[0], np.arange(65_536)
    low, high = words & 0xFF, words >> 8
    return np.stack([table[7 - 2 * word][low] ^ table[6 - 2 * word][high] for word in range(4)])


def _crc32_rows(data: pa.Buffer | None, offsets: NDArray[np.int64]) -> Hashes:
    """Return zlib.crc32 of every row; row i is `data[offsets[i]:offsets[i + 1]]`."""
    rows, lengths = len(offsets) - 1, np.diff(offsets)
    if rows == 0 or data is None or data.size == 0:
        return np.zeros(rows, np.uint32)  # crc32(b"") == 0
    table, zeros = _crc_tables()
    # The loop costs rows x reach: if few rows are long, those are hashed one by one.
    longest, mean = int(lengths.max()), int(offsets[-1] - offsets[0]) // rows
    reach = min(longest, _LONGEST, 2 * mean + 8)
    shortest = int(lengths.min())
    source = np.frombuffer(data, np.uint8)
    position = offsets[1:].copy()
    hashes = zeros.take(lengths, mode="clip")
    for distance in range(reach):
        position -= 1
        byte = source.take(position, mode="clip")
        if distance >= shortest:
            byte *= lengths > distance  # the row is shorter: a zero byte adds nothing
        hashes ^= table[distance].take(byte, mode="clip")
    if longest > reach:
        view = memoryview(data)
        for row in np.flatnonzero(lengths > reach).tolist():
            hashes[row] = crc32(view[offsets[row] : offsets[row + 1]])
    return hashes


def _hash_binary(array: pa.Array) -> Hashes:
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return np.zeros(len(array), np.uint32)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if wide else np.int32)
    ends = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return _crc32_rows(data, ends.astype(np.int64, copy=False))


def _hash_fixed_binary(array: pa.Array) -> Hashes:
    width = array.type.byte_width
    offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
    return _crc32_rows(array.buffers()[1], offsets)


# -- Nested and encoded columns, and all other types -----------------------------------------------------------


def _hash_dictionary(array: pa.DictionaryArray) -> Hashes:
    if len(array.dictionary) > len(array):  # a slice of a larger batch: hashes of most values would not be used
        return hash_array(array.dictionary_decode())
    hashes = hash_array(array.dictionary)
    if not len(hashes):
        return np.zeros(len(array), np.uint32)
    indices: NDArray[np.integer] = array.indices.fill_null(0).to_numpy()
    return hashes.take(indices)


def _hash_structs(array: pa.StructArray) -> Hashes:
    return _hash_tuples(array.flatten(), len(array))


def _hash_nulls(array: pa.Array) -> Hashes:
    return np.full(len(array), NONE_HASH, np.uint32)


def _hash_one_by_one(array: pa.Array) -> Hashes:
    return np.fromiter(map(stable_hash, array.to_pylist()), np.uint32, len(array))


def _hash_extension(array: pa.ExtensionArray) -> Hashes:
    if array.type.extension_name == "arrow.uuid":
        return hash_array(array.storage)
    return _hash_one_by_one(array)


_HASHERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Hashes]], ...]] = (
    (lambda kind: isinstance(kind, pa.BaseExtensionType), _hash_extension),
    (pa.types.is_string, _hash_binary),
    (pa.types.is_large_string, _hash_binary),
    (pa.types.is_binary, _hash_binary),
    (pa.types.is_large_binary, _hash_binary),
    (pa.types.is_integer, _hash_ints),
    (pa.types.is_floating, _hash_floats),
    (pa.types.is_dictionary, _hash_dictionary),
    (pa.types.is_timestamp, _hash_timestamps),
    (pa.types.is_duration, _hash_times),
    (pa.types.is_time, _hash_times),
    (pa.types.is_date32, _hash_date32),
    (pa.types.is_date64, _hash_date64),
    (pa.types.is_boolean, _hash_bools),
    (pa.types.is_fixed_size_binary, _hash_fixed_binary),
    (pa.types.is_struct, _hash_structs),
    (pa.types.is_run_end_encoded, _hash_one_by_one),
    (pa.types.is_null, _hash_nulls),
)


def _hasher_of(kind: pa.DataType) -> Callable[[pa.Array], Hashes]:
    for matches, hasher in _HASHERS:
        if matches(kind):
            return hasher
    if pa.types.is_nested(kind):
        raise UnstableKey(f"an Arrow column of type {kind} has no stable hash: use a struct or plain columns")
    return _hash_one_by_one
