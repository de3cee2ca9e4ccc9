"""The guard of the page: which requests are permitted, and the headers of every answer. Over real sockets."""

import asyncio
import re
import threading

import pytest
from tests.support.page_server import serving

from headgate.ui.guard import Access, Guard, PageSecrets, check_access, known_hosts

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PATHS = [
    "/",
    "/api/jobs",
    "/api/jobs/job-5eed",
    "/metrics",
    "/api/openapi.json",
    "/static/app.js",
    "/nothing",
    "//",
    "*",
]


@pytest.fixture(scope="module")
def shared():
    with serving() as client:
        yield client


@pytest.fixture
def client(shared):
    yield shared
    shared.settle()


@pytest.fixture
def stranger(client):
    """The answer to a request without any secret."""
    answer = client.ask("/api/jobs")
    assert answer.status == 403
    return answer


def is_refused(answer, stranger):
    """The answer is the one that all strangers get, and tells them nothing else."""
    assert (answer.status, answer.body) == (stranger.status, stranger.body)
    dated = {"date"}
    mine, theirs = (
        {k.lower(): v for k, v in one.headers.items() if k.lower() not in dated} for one in (answer, stranger)
    )
    assert mine == theirs
    return True


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PUT", "TRACE", "BREW"])
def test_without_the_token_everything_is_the_same_403(client, stranger, path, method):
    assert is_refused(client.ask(path, method), stranger)


def test_head_is_refused_without_a_body(client, stranger):
    answer = client.ask("/", "HEAD")
    assert (answer.status, answer.body) == (403, b"")


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_carries_the_headers(client, path):
    for answer in (
        client.ask(path),
        client.get(path),
        client.ask(path, "PUT", Authorization=f"Bearer {client.server.token}"),
    ):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert re.search(r"script-src 'self'(;|$)", policy), "no inline script, none from elsewhere"
        assert answer.headers["Cache-Control"] in {"no-store", "private, no-cache"}
        assert "Server" not in answer.headers
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_the_printed_address_is_exchanged_for_a_cookie(client):
    answer = client.ask(f"/?token={client.server.token}")
    assert (answer.status, answer.headers["Location"], answer.body) == (303, "/", b"")
    assert answer.headers["Cache-Control"] == "no-store"
    cookie, *flags = answer.headers["Set-Cookie"].split("; ")
    assert sorted(flags) == ["HttpOnly", "Path=/", "SameSite=Strict"]
    name, _, value = cookie.partition("=")
    assert name == f"headgate_{client.port}"
    assert len(value) >= 43
    assert value != client.server.token
    assert client.server.token not in str(answer.headers)
    assert client.ask("/api/jobs", Cookie=cookie).status == 200
    assert client.ask("/api/jobs", Cookie=f"a=b; {cookie}; c=d").status == 200
    assert client.ask("/api/jobs", Authorization=f"Bearer {value}").status == 403, "each is for its own place"
    assert client.ask("/api/jobs", Cookie=f"{name}={client.server.token}").status == 403


def test_a_request_with_cookie_and_token_is_redirected_too(client):
    answer = client.ask(f"/?token={client.server.token}", Cookie=client.cookie())
    assert (answer.status, answer.headers["Location"]) == (303, "/")


@pytest.mark.parametrize("path", ["/?token={}&next=//evil.example", "/?next=http://evil.example&token={}"])
def test_the_redirect_goes_to_the_page_only(client, path):
    assert client.ask(path.format(client.server.token)).headers["Location"] == "/"


def test_addresses_with_two_slashes_are_not_redirected(client):
    answer = client.get("//evil.example/..")
    assert answer.status == 404
    assert "Location" not in answer.headers


@pytest.mark.parametrize(
    "query",
    [
        "token=",
        "token=x",
        "token=%e9%ff",
        "token={0}x",
        "token={1}",
        "token={0}&token={0}",
        "Token={0}",
        "t=1",
        "token[]={0}",
        "%00",
    ],
)
def test_a_wrong_token_is_forbidden(client, stranger, query):
    token = client.server.token
    assert is_refused(client.ask(f"/?{query.format(token, token[:-1])}"), stranger)


def test_the_token_in_an_address_opens_only_the_page(client, stranger):
    for path in ("/api/jobs", "/metrics", "/static/app.js", "/index.html"):
        assert is_refused(client.ask(f"{path}?token={client.server.token}"), stranger)
    assert is_refused(client.ask(f"/?token={client.server.token}", "POST"), stranger)


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer x", "Bearer {}x", "Basic {}", "{}", "Bearer {1}", "Bearer {0} {0}", "Bearer \xff"]
)
def test_a_wrong_bearer_is_forbidden(client, stranger, given):
    token = client.server.token
    given = given.format(token, token[:-1])
    assert is_refused(client.ask("/api/jobs", Authorization=given), stranger)
    if given:
        assert is_refused(client.ask("/api/jobs", Authorization=given, Cookie=client.cookie()), stranger)


def test_a_correct_bearer_is_permitted(client):
    assert client.ask("/api/jobs", Authorization=f"bearer  {client.server.token}").status == 200


@pytest.mark.parametrize("cookie", ["", "headgate=1", "headgate_{0}=", "headgate_{0}=x", "{1}x", "x{1}", "{1}; {1}"])
def test_cookies(client, stranger, cookie):
    right = client.cookie()
    given = cookie.format(client.port, right)
    answer = client.ask("/api/jobs", Cookie=given)
    assert answer.status == 200 if given == f"{right}; {right}" else is_refused(answer, stranger)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_names_of_this_machine(client, name):
    assert client.get("/api/jobs", Host=f"{name}:{client.port}").status == 200


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:{}",
        "127.0.0.1.evil.example:{}",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:1",
        "127.0.0.1:0{}",
        "127.0.0.2:{}",
        "0.0.0.0:{}",
        "localhost.:{}",
        "localhost:{}.evil.example",
        "user@127.0.0.1:{}",
        "127.0.0.1:{}/",
        "[::ffff:127.0.0.1]:{}",
        "2130706433:{}",
    ],
)
def test_other_host_names_are_forbidden(client, stranger, host):
    """DNS rebinding: a page of evil.example whose name was changed to lead here."""
    named = None if host is None else host.format(client.port)
    if host is None:
        said = client.raw(b"GET /api/jobs HTTP/1.0\r\nAuthorization: Bearer %s\r\n\r\n" % client.server.token.encode())
        assert said.startswith(b"HTTP/1.1 403")
        return
    assert is_refused(client.get("/api/jobs", Host=named), stranger)
    assert is_refused(client.ask(f"/?token={client.server.token}", Host=named), stranger)


def test_repeated_headers_are_forbidden(client):
    """In either order."""
    right = f"Host: {client.host}\r\n"
    bearer = f"Authorization: Bearer {client.server.token}\r\n"
    origin = f"Origin: http://{client.host}\r\n"
    for twice in (
        [bearer, origin, "Origin: http://evil.example\r\n"],
        [bearer, "Authorization: Bearer x\r\n"],
        [bearer, "Sec-Fetch-Site: same-origin\r\n", "Sec-Fetch-Site: cross-site\r\n"],
    ):
        for lines in (twice, twice[::-1]):
            said = client.raw(f"GET /api/jobs HTTP/1.1\r\n{right}{''.join(lines)}Connection: close\r\n\r\n".encode())
            assert said.startswith(b"HTTP/1.1 403")
    end = f"{bearer}Connection: close\r\n\r\n"
    for lines in (f"{right}Host: evil.example\r\n", f"Host: evil.example\r\n{right}"):
        assert client.raw(f"GET /api/jobs HTTP/1.1\r\n{lines}{end}".encode()).startswith(b"HTTP/1.1 400")
    assert client.raw(f"GET /api/jobs HTTP/1.1\r\n{right}{end}".encode()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://{}",
        "http://127.0.0.1",
        "http://localhost:{p}",
        "file://",
        "http://{}/",
        "{}",
    ],
)
@pytest.mark.parametrize("known", ["cookie", "token"])
def test_another_origin_is_forbidden_with_cookie_or_token(client, stranger, origin, known):
    proof = {"Cookie": client.cookie()} if known == "cookie" else {"Authorization": f"Bearer {client.server.token}"}
    given = origin.format(client.host, p=client.port)
    for method in ("GET", "POST"):
        assert is_refused(client.ask("/api/jobs/job-5eed/pressure", method, Origin=given, **proof), stranger)


def test_a_post_with_a_cookie_needs_an_origin(client, stranger):
    cookie = client.cookie()
    path = "/api/jobs/job-5eed/pressure"
    assert is_refused(client.ask(path, "POST", b"", Cookie=cookie), stranger)
    assert client.ask(path, "POST", b"", Cookie=cookie, Origin=f"http://{client.host}").status == 200
    assert (
        client.ask(
            path, "POST", b"", Cookie=cookie, Origin=f"http://{client.host}", Sec_Fetch_Site="same-origin"
        ).status
        == 200
    )
    assert client.post(path).status == 200, "a program with the token has no origin"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_requests_of_other_sites_are_forbidden(client, stranger, site):
    """Also another port of this machine, whose pages the browser sends the cookie for."""
    assert is_refused(client.ask("/api/jobs", Cookie=client.cookie(), Sec_Fetch_Site=site), stranger)
    assert is_refused(client.ask("/", Cookie=client.cookie(), Sec_Fetch_Site=site), stranger)
    assert is_refused(client.ask(f"/?token={client.server.token}", Sec_Fetch_Site=site), stranger)
    frame = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}
    assert is_refused(client.ask(f"/?token={client.server.token}", **frame), stranger)


def test_a_link_of_another_site_may_open_the_printed_address(client):
    visit = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    answer = client.ask(f"/?token={client.server.token}", **visit)
    assert answer.status == 200, "after a redirect the browser would not send the cookie"
    assert b'http-equiv="refresh" content="0; url=/"' in answer.body
    assert answer.headers["Set-Cookie"].startswith("headgate_")
    assert client.ask("/?token=x", **visit).status == 403
    assert client.ask("/", Cookie=client.cookie(), **visit).status == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_unknown_methods_are_refused(client, method):
    answer = client.ask("/api/jobs", method, Authorization=f"Bearer {client.server.token}")
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("path", ["/", "/api/jobs", "/metrics", "/api/jobs/job-5eed"])
def test_a_post_to_a_read_only_path_is_refused(client, path):
    assert client.post(path).status == 405


def test_head_is_get_without_the_body(client):
    whole = client.get("/api/openapi.json")
    head = client.ask("/api/openapi.json", "HEAD", Authorization=f"Bearer {client.server.token}")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(whole.body))


def test_a_large_body_is_refused(client):
    path, proof = "/api/jobs/job-5eed/pressure", {"Authorization": f"Bearer {client.server.token}"}
    assert client.ask(path, "POST", b"{}", **proof).status == 200
    for length in ("4097", "99999999999", "18446744073709551616"):
        answer = client.ask(path, "POST", Content_Length=length, **proof)
        assert answer.status == 413
        assert answer.headers["Connection"] == "close"
    assert client.ask(path, "POST", b"0\r\n\r\n", Transfer_Encoding="chunked", **proof).status == 413
    assert client.ask(path, "POST", Content_Length="4097").status == 403, "strangers are not told"


def test_a_long_address_is_refused(client, stranger):
    path = f"/api/jobs?{'x' * 2100}"
    assert client.get(path).status == 414
    assert is_refused(client.ask(path), stranger)
    said = client.raw(b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 40_000))
    assert said.startswith(b"HTTP/1.1 400")


def test_websockets_are_refused(client, stranger):
    upgrade = {"Upgrade": "websocket", "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec_WebSocket_Version": "13"}
    answer = client.ask("/", Connection="Upgrade", **upgrade)
    assert is_refused(answer, stranger)
    assert client.get("/api/jobs", Connection="Upgrade", **upgrade).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../page.py",
        "/static/..%2fpage.py",
        "/static/%2e%2e/page.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\page.py",
        "/static/app.js%00",
        "/static/.",
        "/static/",
        "/static/index.html",
        "/static/__init__.py",
        "/static/app.js/",
        "/page.py",
    ],
)
def test_no_path_leads_to_another_file(client, path):
    answer = client.get(path)
    assert answer.status == 404
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


def test_many_at_once(client, stranger):
    answers, cookie = [], client.cookie()

    def ask(number):
        known = number % 2
        answers.append((known, client.ask("/api/jobs/job-5eed", **({"Cookie": cookie} if known else {}))))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 30
    assert all(one.status == 200 if known else is_refused(one, stranger) for known, one in answers)


@pytest.mark.parametrize("kind", ["websocket", "lifespan", "tcp"])
def test_other_protocols_are_not_answered(kind):
    async def fail(*_):
        raise AssertionError("it is")

    asyncio.run(Guard(fail, PageSecrets("headgate"), known_hosts(80))({"type": kind}, fail, fail))


def test_secrets_are_compared_in_constant_time(monkeypatch):
    """Every comparison with a secret is `compare_digest`: with one that always says yes, any secret is right."""
    monkeypatch.setattr("headgate.ui.guard.hmac.compare_digest", lambda a, b: True)
    keys, hosts = PageSecrets("headgate"), known_hosts(80)

    def judged(query=b"", **headers):
        pairs = [(b"host", b"localhost"), *((name.encode(), value) for name, value in headers.items())]
        return check_access({"method": "GET", "path": "/", "query_string": query, "headers": pairs}, keys, hosts)

    assert judged(authorization=b"Bearer x") is Access.PASS
    assert judged(cookie=b"headgate=x") is Access.PASS
    assert judged(b"token=x") is Access.EXCHANGE
    assert judged() is Access.FORBIDDEN


def test_every_server_has_its_own_secrets():
    with serving() as one, serving() as other:
        assert one.server.token != other.server.token
        assert one.cookie().partition("=")[2] != other.cookie().partition("=")[2]
        assert other.ask("/api/jobs", Authorization=f"Bearer {one.server.token}").status == 403
        assert one.server.token not in repr(one.server)
