"""Arrow record batches, decoded without a copy from the buffer that received them.

The element codec uses it for streams of `pyarrow.RecordBatch`. One batch, little-endian:

    u32 length of the schema | u32 flags | schema | zeros up to a multiple of 64 | IPC message

so that each can be decoded by itself. With flag 1 (dictionary-encoded columns) the schema is empty and the message is
a complete IPC stream. Invariants: any bytes decode to batches that are safe to read, or raise `SerializationError`;
decoding allocates no more than `len(data)`, so compressed messages, which claim their own size, are refused.
"""

import struct
from collections.abc import Sequence

import pyarrow as pa

from headgate.errors import SerializationError
from headgate.record.fidelity import type_name
from headgate.record.serializer import Encoded, Serializer

__all__ = ["ArrowSerializer"]

_ALIGNMENT = 64
_HEAD = struct.Struct("<II")
_STREAM = 1  # flag: the batch has dictionaries, so the message is a complete IPC stream
_KNOWN_FLAGS = _STREAM
_MAX_SCHEMAS = 64  # a stream has one schema; a hostile peer could send a new one with each batch
_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, EOFError, OverflowError, struct.error)


class ArrowSerializer(Serializer[pa.RecordBatch]):
    """Record batches with their schema; the columns that arrive lie in the received buffer.

    Every received value is validated (offsets, UTF-8), for a wrong one could read any memory: about as much
    work as one copy. `validate_fully=False` checks only lengths, for data that has not left this process.
    A slice is sent as that slice, except that a dictionary, and the text of a string_view column, travel whole.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"word": ["to", "be"], "count": [1, 1]})
    >>> arrow = ArrowSerializer()
    >>> data = arrow.encode(batch)
    >>> arrow.decode(memoryview(data)).equals(batch)
    True
    """

    name = "arrow"
    alignment = _ALIGNMENT
    lends = True

    def __init__(self, *, validate_fully: bool = True) -> None:
        self._validate_fully = validate_fully
        self._written: tuple[pa.Schema, bytes] | None = None  # the last schema, and its encoded header
        self._read: dict[bytes, pa.Schema] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return _make, (self._validate_fully,)

    def records_in(self, value: pa.RecordBatch) -> int:
        """Return the number of rows."""
        return int(value.num_rows)

    def pieces(self, value: pa.RecordBatch) -> Encoded:
        """Return the bytes of one batch, as `encode` returns them, but not joined.

        >>> import pyarrow as pa
        >>> head, message = ArrowSerializer().pieces(pa.record_batch({"n": [1]}))
        >>> len(head) % 64
        0
        """
        if not isinstance(value, pa.RecordBatch):
            raise self._refusal(value, "it carries pyarrow.RecordBatch only")
        try:
            head = self._head(value.schema)
            if head is not _STREAM_HEAD:
                return head, memoryview(value.serialize()).cast("B")
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as writer:
                writer.write_batch(value)
            return head, memoryview(sink.getvalue()).cast("B")
        except _ERRORS as error:
            raise self._refusal(value, _text(error)) from error

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Return the bytes of one batch."""
        return b"".join(self.pieces(value))

    def decode(self, data: memoryview) -> pa.RecordBatch:
        """Return the batch in these bytes; its columns refer to them."""
        size = len(data)
        if size < _HEAD.size:
            raise SerializationError(f"arrow: {size} bytes are too few for a record batch")
        schema_bytes, flags = _HEAD.unpack_from(data)
        start = _aligned(_HEAD.size + schema_bytes)
        if flags & ~_KNOWN_FLAGS or start > size or (flags & _STREAM and schema_bytes):
            raise SerializationError(f"arrow: bad header (schema of {schema_bytes} bytes, flags {flags:#x}, {size})")
        try:
            buffer = pa.py_buffer(data)
            # Arrow requires 8. Copying is slow, and right for a record that the reader could not align.
            message = buffer.slice(start) if buffer.address % 8 == 0 else pa.py_buffer(bytes(data[start:]))
            if flags & _STREAM:
                batch = _read_stream(message)
            else:
                schema = self._schema(bytes(data[_HEAD.size : _HEAD.size + schema_bytes]))
                read = pa.ipc.read_message(message)
                batch = pa.ipc.read_record_batch(_uncompressed(read) if self._validate_fully else read, schema)
            batch.validate(full=self._validate_fully)
        except _ERRORS as error:
            raise SerializationError(f"arrow cannot read these bytes: {_text(error)}") from error
        return batch

    def encode_batch(self, values: Sequence[pa.RecordBatch]) -> Encoded:
        """Return several batches: u32 count, u32 length of each, then each at a multiple of 64."""
        found = [self.pieces(value) for value in values]
        lengths = [sum(map(len, pieces)) for pieces in found]
        if max(lengths, default=0) > 0xFFFF_FFFF:
            raise SerializationError("arrow: a record batch of 4 GiB or more cannot be written; slice it first")
        pieces: list[bytes | bytearray | memoryview] = [struct.pack(f"<I{len(lengths)}I", len(lengths), *lengths)]
        before = len(pieces[0])
        for one, length in zip(found, lengths, strict=True):
            if padding := _aligned(before) - before:
                pieces.append(bytes(padding))
            pieces.extend(one)
            before = length
        return tuple(pieces)

    def decode_batch(self, data: memoryview) -> list[pa.RecordBatch]:
        """Return the batches that `encode_batch` wrote; their columns refer to `data`."""
        size = len(data)
        count = int.from_bytes(data[:4], "little")
        end = 4 + 4 * count
        if size < 4 or end > size:
            raise SerializationError(f"arrow: {size} bytes cannot hold {count} record batches")
        batches = []
        for length in struct.unpack_from(f"<{count}I", data, 4):
            start = _aligned(end)
            end = start + length
            if end > size:
                raise SerializationError(f"arrow: a record batch ends at {end} of {size} bytes")
            batches.append(self.decode(data[start:end]))
        if end != size:
            raise SerializationError(f"arrow: {size - end} bytes after the last record batch")
        return batches

    def _head(self, schema: pa.Schema) -> bytes:
        """Return the encoded header for a schema; cached, since the schema of a stream hardly ever changes."""
        last = self._written
        if last is not None and last[0].equals(schema, check_metadata=True):
            return last[1]
        if any(_has_dictionary(field.type) for field in schema):
            head = _STREAM_HEAD
        else:
            written = schema.serialize().to_pybytes()
            head = _HEAD.pack(len(written), 0) + written
            head += bytes(_aligned(len(head)) - len(head))
        self._written = schema, head
        return head

    def _schema(self, written: bytes) -> pa.Schema:
        schema = self._read.get(written)
        if schema is None:
            if len(self._read) >= _MAX_SCHEMAS:
                self._read.clear()
            schema = self._read[written] = _with_names(pa.ipc.read_schema(pa.py_buffer(written)))
        return schema


def _aligned(offset: int) -> int:
    return offset + -offset % _ALIGNMENT


_STREAM_HEAD = _HEAD.pack(0, _STREAM) + bytes(_ALIGNMENT - _HEAD.size)


def _make(validate_fully: bool) -> ArrowSerializer:
    return ArrowSerializer(validate_fully=validate_fully)


def _text(error: Exception) -> str:
    return str(error)[:200] or type_name(error)


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return pa.types.is_dictionary(kind) or any(_has_dictionary(field.type) for field in _fields(kind))


def _with_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema if all its names are valid UTF-8; Arrow validates values, but not names."""
    ahead = list(schema)
    while ahead:
        field = ahead.pop()
        _ = field.name  # raises UnicodeDecodeError
        ahead.extend(_fields(field.type))
    return schema


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _read_stream(buffer: pa.Buffer) -> pa.RecordBatch:
    """Return the only batch of an IPC stream."""
    for message in pa.MessageReader.open_stream(buffer):
        _uncompressed(message)
    with pa.ipc.open_stream(buffer) as reader:
        _with_names(reader.schema)
        batches = list(reader)
    if len(batches) != 1:
        raise ValueError(f"{len(batches)} batches where there should be one")
    return batches[0]


def _uncompressed(message: pa.Message) -> pa.Message:
    """Return the message, or raise ValueError if it is compressed: Arrow would allocate the size that it claims.

    Arrow has verified the flatbuffer, but offers no way to read this field, so it is read here: Message.header is
    field 2, DictionaryBatch.data field 1, RecordBatch.compression field 3.
    """
    if message.type not in {"record batch", "dictionary"}:
        return message
    metadata = memoryview(message.metadata)
    table = _follow(metadata, _field(metadata, _follow(metadata, 0), 2))
    if message.type == "dictionary":
        table = _follow(metadata, _field(metadata, table, 1))
    if _field(metadata, table, 3):
        raise ValueError("compressed record batches are not accepted")
    return message


def _follow(data: memoryview, at: int) -> int:
    return at + int.from_bytes(data[at : at + 4], "little")


def _field(data: memoryview, table: int, index: int) -> int:
    """Return the offset of a field in a flatbuffer table; 0 if the table does not have it."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    size = int.from_bytes(data[vtable : vtable + 2], "little")
    entry = vtable + 4 + 2 * index
    if vtable < 0 or entry + 2 > vtable + size:
        return 0
    offset = int.from_bytes(data[entry : entry + 2], "little")
    return table + offset if offset else 0
