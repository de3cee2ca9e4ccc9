"""The choice of a serializer for an exchange: by the type of its records, by name, or pickle if nothing else fits.

Called once per exchange, by the planner for `explain()` and by the worker when it sets up a task. pyarrow and pickle
are imported only if they are chosen. Invariant: a serializer that is chosen by type decodes every value of exactly the
declared type as it was; a type that cannot guarantee this gets pickle, or needs a choice by name.
"""

from collections.abc import Hashable
from typing import Any, TypeGuard

from headgate.errors import ConfigError
from headgate.record.fidelity import closed_to, doubt
from headgate.record.fixed import StructSerializer
from headgate.record.peer import AuthenticatedPeer
from headgate.record.serializer import (
    BytesSerializer,
    MsgpackSerializer,
    Serializer,
    StrSerializer,
)

__all__ = ["SerializerRegistry", "is_record_batch"]

_NAMES = ("arrow", "bytes", "msgpack", "pickle", "str", "struct:<format>")


class SerializerRegistry:
    """Chooses serializers; users register their own by type or by name.

    >>> registry = SerializerRegistry()
    >>> registry.serializer_for(tuple[str, int])
    <MsgpackSerializer msgpack:tuple[str, int]>
    >>> registry.serializer_for("struct:<qd")
    <StructSerializer struct:<qd>
    >>> class Hex(Serializer[int]):
    ...     def encode(self, value: int) -> bytes:
    ...         return f"{value:x}".encode()
    ...     def decode(self, data: memoryview) -> int:
    ...         return int(bytes(data), 16)
    >>> registry.register("hex", Hex())
    >>> registry.serializer_for("hex")
    <Hex Hex>
    """

    def __init__(self) -> None:
        self._own: dict[Hashable, Serializer[Any]] = {}

    def register(self, key: Hashable, serializer: Serializer[Any], *, replace: bool = False) -> None:
        """Use `serializer` for a type or by a name; `replace=True` is required if there is one already."""
        if not isinstance(serializer, Serializer):
            raise ConfigError(f"only a Serializer can be registered, not {serializer!r}: make an instance of it")
        if not replace and (key in self._own or _is_built_in(key)):
            raise ConfigError(f"there is a serializer for {_shown(key)} already: say replace=True to replace it")
        self._own[key] = serializer

    def serializer_for(self, hint: object, *, peer: AuthenticatedPeer | None = None) -> Serializer[Any]:
        """Return the serializer for a declared type, a name, or a serializer itself; None declares nothing.

        Pickle is chosen only if nothing else fits and the peer is authenticated.

        >>> SerializerRegistry().serializer_for(complex)
        Traceback (most recent call last):
        headgate.errors.ConfigError: no serializer for complex: complex has no msgpack form. ...
        >>> SerializerRegistry().serializer_for(complex, peer=AuthenticatedPeer.this_process())
        <PickleSerializer pickle>
        """
        if isinstance(hint, Serializer):
            return hint
        if _can_hash(hint) and hint in self._own:
            return self._own[hint]
        name = hint if isinstance(hint, str) else _built_in(hint)
        if name is not None:
            return self._named(name, peer)
        why = "the type of its records is not declared" if hint in _UNDECLARED else closed_to(hint) or doubt(hint)
        if why is None:
            return MsgpackSerializer(hint)  # type: ignore[arg-type]
        if peer is not None:
            return _pickle(peer)
        raise ConfigError(
            f"no serializer for {_shown(hint)}: {why}. Declare a more precise type, choose one by name"
            f" ({', '.join(self.names())}), or register your own"
        )

    def names(self) -> tuple[str, ...]:
        """Return the names that `serializer_for` accepts.

        >>> SerializerRegistry().names()
        ('arrow', 'bytes', 'msgpack', 'pickle', 'str', 'struct:<format>')
        """
        return tuple(sorted({*_NAMES, *(key for key in self._own if isinstance(key, str))}))

    def _named(self, name: str, peer: AuthenticatedPeer | None) -> Serializer[Any]:
        match name:
            case "msgpack":
                return MsgpackSerializer()
            case "str":
                return StrSerializer()
            case "bytes":
                return BytesSerializer()
            case "arrow":
                return _arrow()
            case "pickle" if peer is not None:
                return _pickle(peer)
            case "pickle":
                raise ConfigError("the serializer 'pickle' is only for peers that have proved their identity")
        kind, colon, format_ = name.partition(":")
        if kind == "struct" and colon:
            return StructSerializer(format_)
        raise ConfigError(f"no serializer is called {name!r}: there are {', '.join(self.names())}")


_UNDECLARED = (None, object, Any)


def _arrow() -> Serializer[Any]:
    from headgate.record.arrow import ArrowSerializer  # noqa: PLC0415 - importing pyarrow takes long

    return ArrowSerializer()


def _pickle(peer: AuthenticatedPeer) -> Serializer[Any]:
    from headgate.record.pickled import PickleSerializer  # noqa: PLC0415 - not imported until it is chosen

    return PickleSerializer(peer)


def _built_in(hint: object) -> str | None:
    """Return the name of the serializer that exists for exactly one type, or None."""
    if hint is str or hint is bytes:
        return "str" if hint is str else "bytes"
    return "arrow" if is_record_batch(hint) else None


def is_record_batch(hint: object) -> bool:
    """Return True if values of this type are Arrow record batches.

    >>> import pyarrow as pa
    >>> is_record_batch(pa.RecordBatch), is_record_batch("arrow"), is_record_batch(str)
    (True, True, False)
    """
    # Compared by name, so that pyarrow is not imported: a declared type means that the user has imported it.
    named = getattr(hint, "__module__", "") == "pyarrow.lib" and getattr(hint, "__name__", "") == "RecordBatch"
    return named or hint == "arrow"


def _is_built_in(key: Hashable) -> bool:
    if isinstance(key, str):
        return key in _NAMES or key.startswith("struct:")
    return _built_in(key) is not None


def _can_hash(hint: object) -> TypeGuard[Hashable]:
    try:
        hash(hint)
    except TypeError:
        return False  # such as Annotated[int, []]
    return True


def _shown(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) else repr(hint)
