"""The server of the page: its start, its end, and connections that misbehave."""

import contextlib
import logging
import random
import socket
import sys
import threading
import time
import warnings

import pytest
from tests.support.job_views import FakeWatched, synthetic_view
from tests.support.page_server import serving
from tests.support.waiting import PATIENCE_S, wait_until

import headgate.ui
from headgate.errors import ConfigError, HeadgateError
from headgate.ui.connections import MAX_CONNECTIONS, BoundedProtocol
from headgate.ui.server import UiServer


def connected(client, data=b""):
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE_S)
    connection.sendall(data)
    return connection


def test_start_returns_the_address_to_open():
    server = UiServer(dict)
    assert (server.port, server.token) == (0, "")
    try:
        assert server.start() == server.url == f"http://127.0.0.1:{server.port}/?token={server.token}"
        with pytest.raises(HeadgateError, match="started before"):
            server.start()
    finally:
        server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def test_one_that_was_never_started_is_closed():
    UiServer(dict).close()


def test_a_fixed_port_and_a_port_in_use():
    with serving() as client:
        with pytest.raises(
            ConfigError, match=f"cannot listen on port {client.port} of 127.0.0.1: .*in use. Choose another"
        ):
            UiServer(dict, port=client.port).start()
        port = client.port
    with serving(port=port) as client:
        assert client.port == port
    with pytest.raises(ConfigError, match="cannot listen on port 70000"):
        UiServer(dict, port=70000).start()


def test_ipv6_loopback():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        server = UiServer(dict, host="::1")
        url = server.start()
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    try:
        assert url.startswith(f"http://[::1]:{server.port}/?token=")
        with socket.create_connection(("::1", server.port), timeout=PATIENCE_S) as connection:
            request = (
                f"GET /api/jobs HTTP/1.0\r\nHost: [::1]:{server.port}\r\nAuthorization: Bearer {server.token}\r\n\r\n"
            )
            connection.sendall(request.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        server.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "8.8.8.8"])
def test_other_addresses_than_loopback_need_insecure_remote(host):
    with pytest.raises(ConfigError, match=r"without TLS.*insecure_remote=True"):
        UiServer(dict, host=host)
    with pytest.warns(RuntimeWarning, match="without TLS"):
        UiServer(dict, host=host, insecure_remote=True)


def test_a_name_is_no_address():
    with pytest.raises(ConfigError, match=r"an address such as 127.0.0.1, not on 'evil.example'"):
        UiServer(dict, host="evil.example")


def test_everywhere_it_answers_to_the_address_of_the_connection():
    with warnings.catch_warnings(action="ignore"), serving(host="0.0.0.0", insecure_remote=True) as client:
        name = socket.gethostname().lower()
        for host in (client.host, f"{name}:{client.port}"):
            assert client.get("/api/jobs", Host=host).status == 200
        for host in (f"evil.example:{client.port}", f"0.0.0.0:{client.port}x", f"8.8.8.8:{client.port}"):
            assert client.get("/api/jobs", Host=host).status == 403
        with socket.create_connection(("127.0.0.2", client.port), timeout=PATIENCE_S) as other:
            head = f"GET /api/jobs HTTP/1.0\r\nHost: 127.0.0.2:{client.port}\r\n"
            other.sendall(f"{head}Authorization: Bearer {client.server.token}\r\n\r\n".encode())
            assert other.recv(100).startswith(b"HTTP/1.1 200")


def test_closing_ends_rounds_and_connections_in_progress():
    job = FakeWatched(synthetic_view(sampled=False))
    job.gate.clear()
    answers = []
    with serving({"1": job}) as client:
        idle = connected(client)
        asking = threading.Thread(target=lambda: answers.append(client.post("/api/jobs/1/pressure")))
        asking.start()
        wait_until(lambda: "pressure" in job.calls)
        threading.Timer(0.2, job.gate.set).start()  # the job's own call cannot be broken off, and ends after a while
    asking.join(PATIENCE_S)
    assert [(one.status, one.json) for one in answers] == [(503, {"error": "the server is being closed"})]
    assert idle.recv(1) == b""
    idle.close()


def test_a_client_that_does_not_read_does_not_delay_closing(caplog):
    with serving({"1": FakeWatched(synthetic_view(6, 100))}) as client:
        request = f"GET /api/jobs/1/vertices/2 HTTP/1.1\r\nHost: {client.host}\r\n"
        request += f"Authorization: Bearer {client.server.token}\r\n\r\n"
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", client.port))
        deaf.sendall(request.encode() * 4)
        assert deaf.recv(15) == b"HTTP/1.1 200 OK"
    deaf.close()
    assert caplog.records == [], "uvicorn did not have to give up"


def test_an_http_client_that_does_not_read_is_disconnected(monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "read_s", 0.1)
    with serving({"1": FakeWatched(synthetic_view(6, 100))}) as client:
        request = f"GET /api/jobs/1/vertices/2 HTTP/1.1\r\nHost: {client.host}\r\n"
        request += f"Authorization: Bearer {client.server.token}\r\n\r\n"
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", client.port))
        deaf.sendall(request.encode() * 4)
        wait_until(lambda: client.server.connections)
        client.settle()
    deaf.close()


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: "])
def test_an_incomplete_request_is_disconnected(data, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "request_s", 0.1)
    with serving() as client, connected(client, data) as slow:
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(1) == b""
        client.settle()


def test_a_slow_request_is_disconnected(monkeypatch):
    """Also between requests, and as a body that never ends."""
    monkeypatch.setattr(BoundedProtocol, "request_s", 0.1)
    with serving() as client:
        head = f"POST /api/jobs/job-5eed/why HTTP/1.1\r\nHost: {client.host}\r\nContent-Length: 4000\r\n"
        proof = f"Authorization: Bearer {client.server.token}\r\n\r\n"
        for first in (b"", (head + proof).encode()):
            with connected(client, first) as slow:
                wait_until(lambda: client.server.connections)
                deadline_s = time.monotonic() + PATIENCE_S
                while client.server.connections:
                    assert time.monotonic() < deadline_s
                    try:
                        slow.sendall(b"G")
                    except OSError:
                        break
                    time.sleep(0.02)
            client.settle()


def test_an_answer_may_take_longer_than_a_request(monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "request_s", 0.1)
    job = FakeWatched(synthetic_view())
    job.gate.clear()
    with serving({"1": job}) as client:
        timer = threading.Timer(0.5, job.gate.set)
        timer.start()
        assert client.post("/api/jobs/1/pressure").status == 200
        timer.join()


def test_the_number_of_connections_is_limited():
    with serving() as client:
        held = [connected(client) for _ in range(MAX_CONNECTIONS)]
        wait_until(lambda: client.server.connections == MAX_CONNECTIONS)
        with pytest.raises((ConnectionError, OSError)):
            client.get("/api/jobs")
        assert client.server.connections <= MAX_CONNECTIONS + 1
        held.pop().close()
        wait_until(lambda: client.server.connections < MAX_CONNECTIONS)
        assert client.get("/api/jobs").status == 200
        for one in held:
            one.close()
        client.settle()


def test_random_bytes_are_refused_and_not_logged(caplog, capfd):
    chance = random.Random(5)
    parts = [b"GET", b"POST", b" ", b"/", b"HTTP/1.1", b"\r\n", b"Host: ", b"Content-Length: 5", b"\xff", b"\x00", b":",
             b"Transfer-Encoding: chunked", b"\r\n\r\n", b"0\r\n", b"?token=", b"%", b"PRI * HTTP/2.0"]  # fmt: skip
    with serving() as client:
        parts.append(f"Host: {client.host}\r\n".encode())
        parts.append(f"Authorization: Bearer {client.server.token}\r\n".encode())
        for _ in range(150):
            data = b"".join(chance.choice([*parts, chance.randbytes(8)]) for _ in range(chance.randrange(1, 20)))
            with connected(client, data) as odd:
                odd.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    odd.recv(10_000)
        for data in (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /?\xff HTTP/1.1\r\nHost: \xff\r\n\r\n"):
            with contextlib.suppress(ConnectionResetError), connected(client, data) as odd:
                odd.recv(10_000)
        client.settle()
        assert client.get("/api/jobs").status == 200
    assert [one for one in caplog.records if one.name != "headgate.ui.http"] == []
    assert capfd.readouterr() == ("", "")


def test_neither_token_nor_cookie_is_logged(caplog, capfd):
    caplog.set_level(1)
    with serving() as client:
        secret = client.cookie().partition("=")[2]
        assert client.ask("/api/jobs", Cookie=client.cookie()).status == 200
        client.ask(f"/?token={client.server.token}x")
        client.get("/api/jobs/none")
        client.ask("/", Connection="Upgrade", Upgrade="websocket")
        token = client.server.token
    assert caplog.records, "something was logged"
    said = caplog.text + "".join(capfd.readouterr())
    assert token not in said
    assert secret not in said


def test_other_servers_of_the_process_keep_their_log():
    access = logging.getLogger("uvicorn.access")
    before = access.propagate, access.handlers[:], access.disabled, access.level
    with serving():
        pass
    assert (access.propagate, access.handlers, access.disabled, access.level) == before


def test_a_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.delitem(vars(headgate.ui), "UiServer", raising=False)
    monkeypatch.delitem(sys.modules, "headgate.ui.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"the page needs the package uvicorn: pip install 'headgate\[ui\]'"):
        _ = headgate.ui.UiServer
    with pytest.raises(AttributeError, match="no attribute 'UiServers'"):
        _ = headgate.ui.UiServers
