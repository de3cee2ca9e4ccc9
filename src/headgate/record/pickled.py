"""Any Python object, by pickle. The only module that imports pickle to move data, since unpickling can run any code.

A `PickleSerializer` can be created only with an `AuthenticatedPeer`, so no byte of an unauthenticated peer reaches
`pickle.loads`. The registry chooses it if no other serializer fits. A batch is one pickle of a list.
"""

import pickle
from collections.abc import Sequence
from typing import TypeVar

from headgate.errors import SerializationError
from headgate.record.peer import AuthenticatedPeer
from headgate.record.serializer import Encoded, Serializer

__all__ = ["PickleSerializer"]

T = TypeVar("T")


class PickleSerializer(Serializer[T]):
    """Encodes everything that pickle can, to and from an authenticated peer.

    Slower than msgpack, but values of every class are decoded as they were. Records of one batch that share a mutable
    object share one again after decoding.

    >>> from headgate.record.peer import AuthenticatedPeer
    >>> anything = PickleSerializer[object](AuthenticatedPeer.this_process())
    >>> (data,) = anything.encode_batch([{1, 2}, 3j])
    >>> anything.decode_batch(memoryview(data))
    [{1, 2}, 3j]
    >>> anything.encode(lambda word: word)
    Traceback (most recent call last):
    headgate.errors.SerializationError: pickle cannot write a record of type function: ... emit plain data ...
    """

    name = "pickle"

    def __init__(self, peer: AuthenticatedPeer) -> None:
        if not isinstance(peer, AuthenticatedPeer):
            raise TypeError("PickleSerializer needs the AuthenticatedPeer that the handshake made")
        self._peer = peer

    def encode(self, value: T) -> bytes:
        """Return the pickle of one value."""
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:  # a class's own __reduce__ may raise anything
            raise self._refusal(value, f"{error}; {_ADVICE}") from error

    def decode(self, data: memoryview) -> T:
        """Return the value of one pickle."""
        value: T = self._load(data)  # type: ignore[assignment]
        return value

    def encode_batch(self, values: Sequence[T]) -> Encoded:
        """Return one pickle of a list of the values."""
        try:
            return (pickle.dumps(values if type(values) is list else list(values), protocol=5),)
        except Exception as error:
            for value in values:  # `encode` raises for the one that failed, with its type
                self.encode(value)
            raise SerializationError(f"pickle cannot write a batch of {len(values)}: {error}; {_ADVICE}") from error

    def decode_batch(self, data: memoryview) -> list[T]:
        """Return the values of a batch that `encode_batch` wrote."""
        values = self._load(data)
        if type(values) is not list:
            raise SerializationError("pickle cannot read these bytes: they are not a batch")
        return values

    def _load(self, data: memoryview) -> object:
        try:
            return pickle.loads(data)  # noqa: S301 - the peer is authenticated: see the module
        except Exception as error:  # a class's own __setstate__ may raise anything
            raise self._unreadable(error) from error


_ADVICE = "emit plain data instead of open resources and local functions, or register a serializer for the type"
