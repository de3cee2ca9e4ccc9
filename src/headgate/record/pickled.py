"""Any Python object, by pickle: the only module that imports it, for reading a pickle runs what is in it.

Whoever wants a `PickleSerializer` must show an `AuthenticatedPeer`, which only the handshake makes: no byte
of a peer that has not proved itself reaches `pickle.loads`. The registry comes here when no safer serializer
fits. A batch is one pickle of a list.
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
    """Whatever pickle can carry, from and to a peer that has proved who it is.

    Slower than msgpack, but every class comes back as itself. Two records of one batch that share a mutable
    object share it after the journey, too.

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
        """The pickle of one value."""
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:  # a class's own __reduce__ may raise anything
            raise self._refusal(value, f"{error}; {_ADVICE}") from error

    def decode(self, data: memoryview) -> T:
        """The value of one pickle."""
        value: T = self._load(data)  # type: ignore[assignment]
        return value

    def encode_batch(self, values: Sequence[T]) -> Encoded:
        """One pickle of a list of the values."""
        try:
            return (pickle.dumps(values if type(values) is list else list(values), protocol=5),)
        except Exception as error:
            for value in values:  # which record was it? `encode` names its type
                self.encode(value)
            raise SerializationError(f"pickle cannot write a batch of {len(values)}: {error}; {_ADVICE}") from error

    def decode_batch(self, data: memoryview) -> list[T]:
        """The values of a batch that `encode_batch` wrote."""
        values = self._load(data)
        if type(values) is not list:
            raise SerializationError("pickle cannot read these bytes: they are not a batch")
        return values

    def _load(self, data: memoryview) -> object:
        try:
            return pickle.loads(data)  # noqa: S301 - the peer is authenticated: see the module
        except Exception as error:  # so may a class's own __setstate__
            raise self._unreadable(error) from error


_ADVICE = "emit plain data instead of open resources and local functions, or register a serializer for the type"
