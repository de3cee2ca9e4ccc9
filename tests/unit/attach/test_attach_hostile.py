"""Invalid input at the socket ends its connection, and nothing else."""

import socket
import threading
from contextlib import ExitStack

import msgspec
import pytest
from tests.support.published_jobs import FakeJob, all_of, connected, ended, message, offered
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.attach import running, server
from headgate.attach.protocol import MAX_REQUEST_BYTES

GOOD = b'{"what":"view","job":"job-1"}'


@pytest.fixture
def root(tmp_path):
    """Yield the state directory of a process with one job; after the test it still answers, and has no connection."""
    root = tmp_path / "state"
    job = FakeJob()
    with offered(root, job) as offers:
        yield root
        (seen,) = running(root)
        assert seen.view() == job.view()
        (one,) = offers._servers
        wait_until(lambda: not one._connections)


def error_of(data):
    (size,) = (int.from_bytes(data[:4], "big"),)
    assert len(data) == size + 4
    return msgspec.json.decode(data[4:])["error"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x00",
        (MAX_REQUEST_BYTES + 1).to_bytes(4, "big") + bytes(MAX_REQUEST_BYTES + 1),
        b"\xff\xff\xff\xff" + GOOD,
        b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        bytes(range(256)) * 16,
    ],
    ids=["empty", "too long", "absurd", "http", "tls", "bytes"],
)
def test_bytes_that_are_no_message_end_the_connection(data, root):
    with connected(root) as sock:
        with_what_was_read = all_of_after(sock, data)
        assert with_what_was_read == b""


def all_of_after(sock, data):
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return b""
    return all_of(sock)


@pytest.mark.parametrize("cut", range(4 + len(GOOD)))
def test_an_incomplete_message_ends_the_connection(cut, root):
    with connected(root) as sock:
        sock.sendall(message(GOOD)[:cut])
        sock.shutdown(socket.SHUT_WR)
        assert all_of(sock) == b""


@pytest.mark.parametrize(
    "body",
    [
        b"not json at all",
        b"\xff\xfe",
        b"[" * 4000,
        b'"view"',
        b"{}",
        b'{"what":"secrets","job":"job-1"}',
        b'{"what":"view","job":7}',
        b'{"what":"view","job":"job-1","timeline":"yes"}',
        b'{"what":"timeline","job":"job-1","points":1000000000}',
        b'{"what":"timeline","job":"job-1","points":0}',
        b'{"what":"timeline","job":"job-1","seconds":-1}',
        b'{"what":"timeline","job":"job-1","seconds":0}',
        b'{"what":"timeline","job":"job-1","seconds":NaN}',
        b'{"what":"timeline","job":"job-1","seconds":1e999}',
        b'{"what":"timeline","job":"job-1","vertex":-1}',
        b'{"what":"timeline","job":"job-1","vertex":99999999999999999999}',
        b'{"what":"view","job":"' + b"x" * 300 + b'"}',
    ],
)
def test_a_message_that_is_no_request_is_answered_with_an_error(body, root):
    with connected(root) as sock:
        sock.sendall(message(body))
        assert error_of(all_of(sock))


@pytest.mark.parametrize("job", ["", "job-2", "job-", "../job-1", "job-1\x00"])
@pytest.mark.parametrize("what", ["view", "cancel"])
def test_an_unknown_job_is_answered_as_gone(what, job, root):
    with connected(root) as sock:
        sock.sendall(message(msgspec.json.encode({"what": what, "job": job})))
        assert "has no job" in error_of(all_of(sock))


def test_only_one_request_per_connection_is_answered(root):
    with connected(root) as sock:
        sock.sendall(message(GOOD) * 3)
        data = all_of(sock)
        assert len(data) == 4 + int.from_bytes(data[:4], "big")


def test_a_silent_or_slow_client_is_disconnected(root, monkeypatch):
    monkeypatch.setattr(server, "_REQUEST_S", 0.2)
    with connected(root) as silent, connected(root) as slow:
        stop = threading.Event()

        def drip():
            for byte in message(GOOD):
                if stop.wait(0.05):
                    return
                try:
                    slow.sendall(bytes([byte]))
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        assert all_of(silent) == b""
        assert all_of(slow) == b""
        stop.set()
        thread.join(PATIENCE_S)


def test_a_client_that_does_not_read_is_disconnected(root, monkeypatch):
    monkeypatch.setattr(server, "_ANSWER_S", 0.2)
    monkeypatch.setattr(server, "_result", lambda job, question: b'"%s"' % (b"x" * 10_000_000))
    with connected(root) as sock:
        sock.sendall(message(GOOD))
        assert len(all_of_later(sock)) < 10_000_000
    monkeypatch.undo()


def all_of_later(sock):
    threading.Event().wait(0.4)
    return all_of(sock)


def test_too_large_an_answer_is_an_error(root, monkeypatch):
    monkeypatch.setattr(server, "MAX_ANSWER_BYTES", 1000)
    with connected(root) as sock:
        sock.sendall(message(GOOD))
        assert "that is too much" in error_of(all_of(sock))
    monkeypatch.undo()


def test_connections_beyond_the_limit_are_closed_and_later_ones_accepted(root):
    with ExitStack() as opened:
        crowd = [opened.enter_context(connected(root)) for _ in range(server.MAX_CONNECTIONS)]
        with connected(root) as sock:
            assert all_of_after(sock, message(GOOD)) == b""
        for sock in crowd[:3]:  # the others say nothing
            sock.sendall(message(GOOD))
            assert len(all_of(sock)) > 1000
        assert len(running(root)) == 1


def test_closing_does_not_wait_for_silent_clients(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_REQUEST_S", 10 * PATIENCE_S)
    monkeypatch.setattr(server, "_CLOSE_S", 10 * PATIENCE_S)
    job = FakeJob()
    with offered(tmp_path / "state", job) as offers, connected(tmp_path / "state") as sock:
        wait_until(lambda: all(one._connections for one in offers._servers))
        job.end()
        assert all_of(sock) == b""
        ended(offers)


def test_an_answer_in_progress_is_sent_at_the_end(tmp_path):
    """A job ends while a client waits for its answer."""
    root, job = tmp_path / "state", FakeJob()
    with offered(root, job), connected(root) as sock:
        job.gate.clear()
        sock.sendall(message(b'{"what":"why","job":"job-1"}'))
        wait_until(lambda: "why" in job.calls)
        job.end()
        wait_until(lambda: not running(root))
        job.gate.set()
        assert b'"cause"' in all_of(sock)
