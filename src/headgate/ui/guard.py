"""Who may speak to the page, and what every answer carries. Pure decisions over an ASGI scope; no sockets.

All requests go through a `Guard` before anything else sees them. The token stands in the address that was printed; a
browser's first visit exchanges it for a cookie, programs send it as `Authorization: Bearer`. Strangers, and pages of
other origins that speak through the user's browser, all get the same answer, which does not say what was wrong.

Invariants: nothing but the guard compares secrets, and it does so in constant time; neither secret is in any answer
but the cookie's, nor in any log.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "Keys", "Verdict", "judge", "known_hosts"]

_MAX_URL: Final = 2048  # bytes of path and query; h11 bounds all headers together
_MAX_BODY: Final = 4096  # no request here has one; some programs send '{}'
_READING: Final = frozenset({"GET", "HEAD"})
_METHODS: Final = _READING | {"POST"}
_OWN_SITES: Final = frozenset({b"", b"none", b"same-origin"})  # b"": a program, or an old browser

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; "  # charts set styles of their own
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_HEADERS: Final = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=()",
    b"cache-control": b"no-store",
}

_WELCOME: Final = b'<!doctype html><meta http-equiv="refresh" content="0; url=/"><title>headgate</title>'


class Verdict(Enum):
    """What becomes of a request.

    >>> Verdict.STRANGER.value
    (403, 'forbidden: use the whole address that was printed, with its token')
    """

    PASS = auto()
    EXCHANGE = auto()  # the token is right: give the cookie
    STRANGER = (403, "forbidden: use the whole address that was printed, with its token")
    METHOD = (405, "this method is not for here")
    TOO_LONG = (414, "the address is too long")
    TOO_LARGE = (413, "a request here has no body")


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets of one server: what is printed, and what browsers get for it.

    >>> keys = Keys("headgate_8080")
    >>> len(keys.token) >= 43, keys.token != keys.session, keys.token in repr(keys)
    (True, True, False)
    """

    cookie: str  # its name, with the port: cookies know none, and a machine may have several servers
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


def known_hosts(port: int, *names: str) -> frozenset[str]:
    """What `Host` may say: names under which this machine knows itself, so that no other can be rebound to it.

    >>> sorted(known_hosts(8080))
    ['127.0.0.1:8080', '[::1]:8080', 'localhost:8080']
    """
    every = {"127.0.0.1", "localhost", "[::1]", *(f"[{name}]" if ":" in name else name.lower() for name in names)}
    found = {f"{name}:{port}" for name in every}
    return frozenset(found | every if port == 80 else found)


def judge(scope: Scope, keys: Keys, hosts: frozenset[str]) -> Verdict:
    """What becomes of a request.

    >>> keys, hosts = Keys("headgate"), known_hosts(8080)
    >>> def get(*headers):
    ...     return {"method": "GET", "path": "/", "query_string": b"", "headers": list(headers)}
    >>> host, bearer = (b"host", b"localhost:8080"), (b"authorization", b"Bearer " + keys.token.encode())
    >>> judge(get(host), keys, hosts), judge(get(host, bearer), keys, hosts)
    (<Verdict.STRANGER: ...>, <Verdict.PASS: 1>)
    """
    headers = _Headers(scope)
    host, origin = headers.one(b"host").lower(), headers.one(b"origin").lower()
    if headers.doubled or host.decode("latin-1") not in hosts or origin not in {b"", b"http://" + host}:
        return Verdict.STRANGER
    opens = _has_token(scope, keys)
    if headers.one(b"sec-fetch-site") not in _OWN_SITES:
        # Another site's link may lead here, if it is the address that was printed: the page is opened, and no more.
        visits = headers.one(b"sec-fetch-mode") == b"navigate" and headers.one(b"sec-fetch-dest") == b"document"
        return Verdict.EXCHANGE if opens and visits else Verdict.STRANGER
    if opens:
        return Verdict.EXCHANGE
    known = _known_by(headers, keys)
    if known is None or (known == "cookie" and scope["method"] not in _READING and not origin):
        return Verdict.STRANGER  # a browser says whence a POST comes; a program shows the token itself
    return _within_limits(scope, headers)


def _within_limits(scope: Scope, headers: _Headers) -> Verdict:
    if scope["method"] not in _METHODS:
        return Verdict.METHOD
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _MAX_URL:
        return Verdict.TOO_LONG
    length = headers.one(b"content-length")
    small = not length or (length.isdigit() and len(length) < 10 and int(length) <= _MAX_BODY)
    return Verdict.PASS if small and not headers.one(b"transfer-encoding") else Verdict.TOO_LARGE


class _Headers:
    """Headers that decide something: each may be there once."""

    _SINGLE: Final = (
        b"host",
        b"origin",
        b"authorization",
        b"content-length",
        b"transfer-encoding",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
    )

    def __init__(self, scope: Scope) -> None:
        self._found: dict[bytes, bytes] = {}
        self.doubled = False
        self.cookies: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"cookie":
                self.cookies += value.split(b";")
            elif name in self._SINGLE:
                self.doubled = self.doubled or name in self._found
                self._found[name] = value.strip()

    def one(self, name: bytes) -> bytes:
        return self._found.get(name, b"")


def _known_by(headers: _Headers, keys: Keys) -> str | None:
    """By what it is known; None: it is not. A token that is wrong is not made up for by a cookie that is right."""
    given = headers.one(b"authorization")
    if given:
        scheme, _, token = given.partition(b" ")
        same = hmac.compare_digest(token.strip(), keys.token.encode())
        return "token" if scheme.lower() == b"bearer" and same else None
    wanted = keys.cookie.encode()
    for pair in headers.cookies:
        name, _, value = pair.strip().partition(b"=")
        if name == wanted and hmac.compare_digest(value, keys.session.encode()):
            return "cookie"
    return None


def _has_token(scope: Scope, keys: Keys) -> bool:
    """Whether it asks for the page by the address that was printed."""
    if scope["path"] != "/" or scope["method"] != "GET" or len(scope["query_string"]) > _MAX_URL:
        return False
    given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None).get("token", [])
    return len(given) == 1 and hmac.compare_digest(given[0].encode(), keys.token.encode())


class Guard:
    """Lets an application see only what it may.

    >>> import asyncio
    >>> async def app(scope, receive, send):
    ...     raise AssertionError("nobody gets here")
    >>> async def send(message):
    ...     print(message.get("status"), message.get("body"))
    >>> stranger = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    >>> asyncio.run(Guard(app, Keys("headgate"), known_hosts(8080))(stranger, None, send))
    403 None
    None b'{"error":"forbidden: use the whole address that was printed, with its token"}'
    """

    def __init__(self, app: ASGIApp, keys: Keys, hosts: frozenset[str], *, any_address: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._hosts = hosts
        self._any_address = any_address  # the address at which a connection has come in is one of the names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return  # whatever it is, it is not for here; the server closes the connection
        hosts = self._hosts
        if self._any_address and scope.get("server") is not None:
            address, port = scope["server"]
            hosts |= known_hosts(port, address)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                names = {name for name, _ in given}
                given += [(name, value) for name, value in _HEADERS.items() if name not in names]
                message = {**message, "headers": given}
            await send(message)

        verdict = judge(scope, self._keys, hosts)
        if verdict is Verdict.PASS:
            await self._app(scope, receive, guarded)
        elif verdict is Verdict.EXCHANGE:
            await self._welcome(scope, guarded)
        else:
            status, text = verdict.value
            allow = [(b"allow", b"GET, HEAD, POST")] if status == 405 else []
            # Closed, so that nobody has to read what is left of the request.
            headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *allow]
            await _answer(guarded, status, headers, b'{"error":"%s"}' % text.encode())

    async def _welcome(self, scope: Scope, send: Send) -> None:
        cookie = f"{self._keys.cookie}={self._keys.session}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"set-cookie", cookie.encode())]
        sites = {value for name, value in scope["headers"] if name == b"sec-fetch-site"}
        if sites - _OWN_SITES:
            # After a redirect it would still be the other site that leads here, and the cookie would not be sent.
            await _answer(send, 200, [*headers, (b"content-type", b"text/html; charset=utf-8")], _WELCOME)
        else:
            await _answer(send, 303, [*headers, (b"location", b"/")], b"")


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
