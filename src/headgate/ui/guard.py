"""Access control of the page, and the headers of every answer. Pure decisions over an ASGI scope; no sockets.

Every request passes the `Guard` first. The printed address contains the token. The first request of a browser exchanges
it for a cookie; programs send it as `Authorization: Bearer`. Requests without either, and requests that pages of other
origins send through the user's browser, have the same answer, which does not name the reason.

Invariants: only the guard compares secrets, in constant time; neither secret is in an answer, except in the one that
sets the cookie, nor in a log.
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

__all__ = ["Access", "Guard", "PageSecrets", "check_access", "known_hosts"]

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

_REDIRECT_PAGE: Final = b'<!doctype html><meta http-equiv="refresh" content="0; url=/"><title>headgate</title>'


class Access(Enum):
    """The decision about a request; a refusal has a status and a text."""

    PASS = auto()
    EXCHANGE = auto()  # the token is correct: set the cookie
    FORBIDDEN = (403, "forbidden: use the whole address that was printed, with its token")
    METHOD = (405, "this method is not allowed")
    TOO_LONG = (414, "the address is too long")
    TOO_LARGE = (413, "a request here has no body")


@dataclass(frozen=True, slots=True)
class PageSecrets:
    """The secrets of one server: the token that is printed, and the value of the cookie."""

    cookie: str  # its name, with the port: a browser sends a cookie to all ports of a host
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


def known_hosts(port: int, *names: str) -> frozenset[str]:
    """Return the valid values of `Host`: this machine's own names, so that no other name can be rebound to it.

    >>> sorted(known_hosts(8080))
    ['127.0.0.1:8080', '[::1]:8080', 'localhost:8080']
    """
    every = {"127.0.0.1", "localhost", "[::1]", *(f"[{name}]" if ":" in name else name.lower() for name in names)}
    found = {f"{name}:{port}" for name in every}
    return frozenset(found | every if port == 80 else found)


def check_access(scope: Scope, secrets: PageSecrets, hosts: frozenset[str]) -> Access:
    """Return the decision about a request.

    >>> secrets, hosts = PageSecrets("headgate"), known_hosts(8080)
    >>> def get(*headers):
    ...     return {"method": "GET", "path": "/", "query_string": b"", "headers": list(headers)}
    >>> host, bearer = (b"host", b"localhost:8080"), (b"authorization", b"Bearer " + secrets.token.encode())
    >>> check_access(get(host), secrets, hosts), check_access(get(host, bearer), secrets, hosts)
    (<Access.FORBIDDEN: ...>, <Access.PASS: 1>)
    """
    headers = _Headers(scope)
    host, origin = headers.one(b"host").lower(), headers.one(b"origin").lower()
    if headers.repeated or host.decode("latin-1") not in hosts or origin not in {b"", b"http://" + host}:
        return Access.FORBIDDEN
    has_token = _has_token(scope, secrets)
    if headers.one(b"sec-fetch-site") not in _OWN_SITES:
        # A link of another site may open the page if it has the token; it may do nothing else.
        navigates = headers.one(b"sec-fetch-mode") == b"navigate" and headers.one(b"sec-fetch-dest") == b"document"
        return Access.EXCHANGE if has_token and navigates else Access.FORBIDDEN
    if has_token:
        return Access.EXCHANGE
    proof = _proof_of(headers, secrets)
    if proof is None or (proof == "cookie" and scope["method"] not in _READING and not origin):
        return Access.FORBIDDEN  # a browser sends `Origin` with a POST; a program sends the token
    return _within_limits(scope, headers)


def _within_limits(scope: Scope, headers: _Headers) -> Access:
    if scope["method"] not in _METHODS:
        return Access.METHOD
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _MAX_URL:
        return Access.TOO_LONG
    length = headers.one(b"content-length")
    small = not length or (length.isdigit() and len(length) < 10 and int(length) <= _MAX_BODY)
    return Access.PASS if small and not headers.one(b"transfer-encoding") else Access.TOO_LARGE


class _Headers:
    """The headers that the decision depends on: each may occur once."""

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
        self.repeated = False
        self.cookies: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"cookie":
                self.cookies += value.split(b";")
            elif name in self._SINGLE:
                self.repeated = self.repeated or name in self._found
                self._found[name] = value.strip()

    def one(self, name: bytes) -> bytes:
        return self._found.get(name, b"")


def _proof_of(headers: _Headers, secrets: PageSecrets) -> str | None:
    """Return 'token' or 'cookie', whichever is correct, or None. A wrong token is refused with any cookie."""
    given = headers.one(b"authorization")
    if given:
        scheme, _, token = given.partition(b" ")
        same = hmac.compare_digest(token.strip(), secrets.token.encode())
        return "token" if scheme.lower() == b"bearer" and same else None
    wanted = secrets.cookie.encode()
    for pair in headers.cookies:
        name, _, value = pair.strip().partition(b"=")
        if name == wanted and hmac.compare_digest(value, secrets.session.encode()):
            return "cookie"
    return None


def _has_token(scope: Scope, secrets: PageSecrets) -> bool:
    """Return True if the request opens the page with the correct token."""
    if scope["path"] != "/" or scope["method"] != "GET" or len(scope["query_string"]) > _MAX_URL:
        return False
    given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None).get("token", [])
    return len(given) == 1 and hmac.compare_digest(given[0].encode(), secrets.token.encode())


class Guard:
    """Passes the permitted requests to an application.

    >>> import asyncio
    >>> async def app(scope, receive, send):
    ...     raise AssertionError("not called")
    >>> async def send(message):
    ...     print(message.get("status"), message.get("body"))
    >>> request = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    >>> asyncio.run(Guard(app, PageSecrets("headgate"), known_hosts(8080))(request, None, send))
    403 None
    None b'{"error":"forbidden: use the whole address that was printed, with its token"}'
    """

    def __init__(self, app: ASGIApp, secrets: PageSecrets, hosts: frozenset[str], *, any_address: bool = False) -> None:
        self._app = app
        self._secrets = secrets
        self._hosts = hosts
        self._any_address = any_address  # the local address of a connection is a valid name, too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it to the application."""
        if scope["type"] != "http":
            return  # the server closes the connection
        hosts = self._hosts
        if self._any_address and scope.get("server") is not None:
            address, port = scope["server"]
            hosts |= known_hosts(port, address)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                names = {name for name, _ in given}
                given += [(name, value) for name, value in _HEADERS.items() if name not in names]
                message = {**message, "headers": given}
            await send(message)

        access = check_access(scope, self._secrets, hosts)
        if access is Access.PASS:
            await self._app(scope, receive, send_with_headers)
        elif access is Access.EXCHANGE:
            await self._set_cookie(scope, send_with_headers)
        else:
            status, text = access.value
            allow = [(b"allow", b"GET, HEAD, POST")] if status == 405 else []
            # The connection is closed, so that the rest of the request need not be read.
            headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *allow]
            await _answer(send_with_headers, status, headers, b'{"error":"%s"}' % text.encode())

    async def _set_cookie(self, scope: Scope, send: Send) -> None:
        cookie = f"{self._secrets.cookie}={self._secrets.session}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"set-cookie", cookie.encode())]
        sites = {value for name, value in scope["headers"] if name == b"sec-fetch-site"}
        if sites - _OWN_SITES:
            # After a redirect, the request still counts as one of the other site, and has no cookie.
            await _answer(send, 200, [*headers, (b"content-type", b"text/html; charset=utf-8")], _REDIRECT_PAGE)
        else:
            await _answer(send, 303, [*headers, (b"location", b"/")], b"")


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
