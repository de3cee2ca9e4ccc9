"""Lines from a socket: however they arrive, without ever blocking, over loopback."""

import socket
import struct
import time
from contextlib import contextmanager, suppress
from itertools import islice
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors import socket_text as source_socket
from headgate.connectors.generators import BATCH_RECORDS
from headgate.connectors.socket_text import SocketTextSource
from headgate.errors import ConfigError, TransportError
from headgate.functions.source import Wait

MANY = 5000  # steps, of 16 ms at most: a test that waits in vain fails


def results(iterator):
    """Batches, with waits slept through."""
    for step, batch in enumerate(iterator):
        assert step < MANY, "nothing came"
        if isinstance(batch, Wait):
            time.sleep(batch.seconds)
        else:
            assert 0 < len(batch) <= BATCH_RECORDS
            yield batch


@contextmanager
def connected(offset=0, **options):
    """A connection as the server has it, and the lines that the source reads from it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = SocketTextSource("127.0.0.1", server.getsockname()[1], **options)
        lines = source.read(source.splits(3)[0], offset, None)
        assert isinstance(next(lines), Wait)
        server.settimeout(10)
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection, results(lines)
        lines.close()


def received(packets, offset=0, **options):
    with connected(offset, **options) as (connection, lines):
        found = []
        for packet in packets:
            connection.sendall(packet)
        connection.shutdown(socket.SHUT_WR)
        for batch in lines:
            found += batch
        return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab|é\r"), max_size=5), max_size=12),
    st.sampled_from(["\n", "|", "ab", "aa", "a|a"]),
    st.booleans(),
    st.data(),
)
def test_lines_are_the_same_however_they_arrive(lines, delimiter, ended, data):
    content = (delimiter.join(lines) + (delimiter if ended else "")).encode()
    expected = content.split(delimiter.encode())
    if not expected[-1]:
        expected.pop()
    texts = [line.decode() for line in expected]
    if delimiter == "\n":
        texts = [text.removesuffix("\r") for text in texts]
    offset = data.draw(st.integers(0, 4))
    with mock.patch.object(source_socket, "_CHUNK_BYTES", data.draw(st.integers(1, 6))):
        assert received([content], offset, delimiter=delimiter) == texts[offset:]


def test_many_lines_come_in_small_batches():
    content = "".join(f"{n}\n" for n in range(9000)).encode()
    assert received([content]) == [str(n) for n in range(9000)]


def test_lines_come_while_the_connection_is_open():
    with connected() as (connection, lines):
        connection.sendall(b"to be\nor")
        assert next(lines) == ["to be"]
        connection.sendall(b" not\n")
        assert next(lines) == ["or not"]


def test_it_never_blocks_and_closes_its_socket():
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = SocketTextSource("127.0.0.1", server.getsockname()[1])
        lines = source.read(source.splits(1)[0], 0, None)
        assert all(isinstance(one, Wait) for one in islice(lines, 5))
        server.settimeout(10)
        connection, _ = server.accept()
        lines.close()  # as a cancelled job does
        with connection:
            connection.settimeout(10)
            assert connection.recv(1) == b""


def test_one_subtask_reads():
    source = SocketTextSource("127.0.0.1", 9999)
    assert source.splits(8) == [("127.0.0.1", 9999)]
    assert not source.bounded
    assert source.hint is str


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(("retries", "text"), [(0, "socket: "), (2, "socket after 3 tries: ")])
def test_a_refused_connection_is_an_error_after_the_retries(retries, text):
    source = SocketTextSource("127.0.0.1", free_port(), retries=retries, retry_seconds=0.001)
    with pytest.raises(TransportError, match=f"no lines from the {text}.*refused.*127.0.0.1:"):
        list(results(source.read(source.splits(1)[0], 0, None)))


def test_a_server_that_starts_late_is_connected_by_a_retry():
    port = free_port()
    source = SocketTextSource("127.0.0.1", port, retries=-1, retry_seconds=0.001)
    lines = source.read(source.splits(1)[0], 0, None)
    assert all(isinstance(one, Wait) for one in islice(lines, 5))
    with socket.create_server(("127.0.0.1", port)) as server, accepted(server, lines) as connection:
        connection.sendall(b"to be\n")
        connection.shutdown(socket.SHUT_WR)
        assert list(results(lines)) == [["to be"]]


def accepted(server, lines):
    """The next connection that the source makes while it is asked for lines."""
    server.setblocking(False)
    for _ in range(MANY):
        assert isinstance(next(lines), Wait)
        time.sleep(0.001)
        with suppress(BlockingIOError):
            return server.accept()[0]
    pytest.fail("no connection")


def reset(connection):
    """Close it so that the other side sees an error."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_a_connection_that_breaks_is_made_again():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        source = SocketTextSource("127.0.0.1", server.getsockname()[1], retries=1, retry_seconds=0.001)
        raw = source.read(source.splits(1)[0], 1, None)
        assert isinstance(next(raw), Wait)
        lines = results(raw)
        connection, _ = server.accept()
        connection.sendall(b"to\nbe\nlost")
        assert next(lines) == ["be"]  # after the offset
        reset(connection)
        connection = accepted(server, raw)
        connection.sendall(b"or\n")
        assert next(lines) == ["or"]
        reset(connection)
        raw.close()


def test_a_break_without_retries_is_an_error():
    with connected() as (connection, lines):
        reset(connection)
        with pytest.raises(TransportError, match="reset"):
            list(lines)


@pytest.mark.parametrize("content", [b"short\n" + 9 * b"x", b"short\n" + 9 * b"x" + b"\nmore\n"])
def test_a_line_without_end_is_refused(content):
    with pytest.raises(ValueError, match=r"127.0.0.1:\d+, line 2: longer than 8 bytes"):
        received([content], max_line_bytes=8)


def test_bytes_that_are_no_text_are_named_by_line():
    with pytest.raises(ValueError, match=r"127.0.0.1:\d+, line 2: .*utf-8"):
        received([b"one\ntw\xffo\n"])
    assert received([b"one\ntw\xffo\n"], errors="replace") == ["one", "tw\ufffdo"]


@pytest.mark.parametrize("arguments", [{"port": 0}, {"port": 70000}, {"port": 1, "delimiter": ""}])
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ConfigError):
        SocketTextSource("127.0.0.1", **arguments)
