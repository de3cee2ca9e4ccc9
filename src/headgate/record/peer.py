"""The proof that a peer is authenticated, without which nothing is unpickled.

The handshake creates an `AuthenticatedPeer` once a peer has proved that it has the job's secret; `record.pickled`
requires one. Nothing else can create one, so code that would read pickles from an unknown peer does not pass the type
check, and raises if it runs. It is valid in this process only: it cannot be pickled.
"""

from typing import Never, NoReturn, Self, SupportsIndex, final

__all__ = ["AuthenticatedPeer"]


@final
class AuthenticatedPeer:
    """A peer that has proved its identity. Only the handshake and `this_process` return one.

    >>> AuthenticatedPeer.this_process()
    AuthenticatedPeer('this process')
    >>> AuthenticatedPeer("worker 3")
    Traceback (most recent call last):
    TypeError: an AuthenticatedPeer is made by the handshake, or by AuthenticatedPeer.this_process()
    """

    __slots__ = ("_name",)
    _name: str

    def __new__(cls, _: Never, /) -> Self:
        """Raise TypeError: see the class."""
        raise TypeError(_ONLY_BY_HANDSHAKE)

    @classmethod
    def this_process(cls) -> "AuthenticatedPeer":
        """Return the peer for data that never leaves this process."""
        return _THIS_PROCESS

    def __init_subclass__(cls) -> None:
        raise TypeError(_ONLY_BY_HANDSHAKE)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an AuthenticatedPeer does not change: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an AuthenticatedPeer does not change: {name}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("an AuthenticatedPeer is valid in this process only and cannot be pickled or copied")

    def __repr__(self) -> str:
        return f"AuthenticatedPeer({self._name!r})"


_ONLY_BY_HANDSHAKE = "an AuthenticatedPeer is made by the handshake, or by AuthenticatedPeer.this_process()"


def _vouch(name: str) -> AuthenticatedPeer:
    """Create one, for the handshake only; a test checks that no other module imports this function."""
    peer: AuthenticatedPeer = object.__new__(AuthenticatedPeer)
    object.__setattr__(peer, "_name", name)
    return peer


_THIS_PROCESS = _vouch("this process")
