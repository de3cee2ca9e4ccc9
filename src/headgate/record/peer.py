"""Whom we may unpickle from: a value that proves the other side proved who it is.

The handshake makes an `AuthenticatedPeer` once a peer has shown that it knows the job's secret;
`record.pickled` asks for one. Nothing else can make one, so code that would read pickles from a stranger
does not pass the type check, and raises if it runs. It is a promise about this process: it is not picklable.
"""

from typing import Never, NoReturn, Self, SupportsIndex, final

__all__ = ["AuthenticatedPeer"]


@final
class AuthenticatedPeer:
    """A peer that has proved who it is. Only the handshake makes one, or `this_process`.

    >>> AuthenticatedPeer.this_process()
    AuthenticatedPeer('this process')
    >>> AuthenticatedPeer("somebody")
    Traceback (most recent call last):
    TypeError: an AuthenticatedPeer is made by the handshake, or by AuthenticatedPeer.this_process()
    """

    __slots__ = ("_name",)
    _name: str

    def __new__(cls, _: Never, /) -> Self:
        """Refuse: see the class."""
        raise TypeError(_NOT_FOR_YOU)

    @classmethod
    def this_process(cls) -> "AuthenticatedPeer":
        """For data that never leaves this process.

        >>> AuthenticatedPeer.this_process() is AuthenticatedPeer.this_process()
        True
        """
        return _THIS_PROCESS

    def __init_subclass__(cls) -> None:
        raise TypeError(_NOT_FOR_YOU)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an AuthenticatedPeer does not change: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an AuthenticatedPeer does not change: {name}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("an AuthenticatedPeer is a promise about this process and cannot be pickled or copied")

    def __repr__(self) -> str:
        return f"AuthenticatedPeer({self._name!r})"


_NOT_FOR_YOU = "an AuthenticatedPeer is made by the handshake, or by AuthenticatedPeer.this_process()"


def _vouch(name: str) -> AuthenticatedPeer:
    """For the handshake alone; a test looks through the tree for anybody else who imports it."""
    peer: AuthenticatedPeer = object.__new__(AuthenticatedPeer)
    object.__setattr__(peer, "_name", name)
    return peer


_THIS_PROCESS = _vouch("this process")
