"""The check after every test: it names a socket that was left open, and does not count those of PySpark."""

import os
import signal
import socket
import sys
import types

import pytest
from tests.support import leaks
from tests.support.leaks import describe, own_tcp_sockets, unnamed_files


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_an_open_socket_is_described_by_its_ends_and_by_the_test_that_created_it(listening):
    before = unnamed_files()
    with socket.create_connection(listening.getsockname()) as client:
        (entry,) = unnamed_files() - before
        text = describe({entry})
        ends = f"{client.getsockname()} -> {client.getpeername()}"
    assert entry.startswith(f"{entry.partition(' ')[0]} -> socket:[")
    assert f"AF_INET SOCK_STREAM, {ends}" in text
    assert f"created by {os.environ['PYTEST_CURRENT_TEST']}" in text
    assert "create_connection" in text, "the stack that created it"
    assert unnamed_files() == before


def test_a_socket_that_python_code_no_longer_holds_is_still_found(listening):
    before = unnamed_files()
    client = socket.create_connection(listening.getsockname()).detach()
    try:
        assert "no Python code" in describe(unnamed_files() - before)
    finally:
        os.close(client)


@pytest.mark.parametrize("kind", ["gateway", "accumulators"])
def test_a_connection_of_pyspark_does_not_count(kind, listening, monkeypatch):
    port = listening.getsockname()[1]
    monkeypatch.setattr(leaks, "_pyspark_ports_seen", set(leaks._pyspark_ports_seen))
    context = types.SimpleNamespace(_gateway=None, _active_spark_context=None)
    if kind == "gateway":
        context._gateway = types.SimpleNamespace(java_parameters=types.SimpleNamespace(port=port))
    else:
        server = types.SimpleNamespace(server_address=("127.0.0.1", port))
        context._active_spark_context = types.SimpleNamespace(_accumulatorServer=server)
    before, tcp_before = unnamed_files(), own_tcp_sockets()
    with socket.create_connection(listening.getsockname()):
        assert len(unnamed_files() - before) == len(own_tcp_sockets() - tcp_before) == 1
        monkeypatch.setitem(sys.modules, "pyspark", types.SimpleNamespace(SparkContext=context))
        assert not unnamed_files() - before
        assert not own_tcp_sockets() - tcp_before
        with socket.create_server(("127.0.0.1", 0)):  # of another port: not PySpark's
            assert len(unnamed_files() - before) == len(own_tcp_sockets() - tcp_before) == 1


def test_a_socket_that_pyspark_created_does_not_count_when_its_jvm_has_ended(tmp_path, listening):
    before = unnamed_files()
    create = tmp_path / "py4j" / "clientserver.py"
    create.parent.mkdir()
    create.write_text("import socket\nclient = socket.create_connection(address)\n")
    found = {"address": listening.getsockname()}
    exec(compile(create.read_text(), str(create), "exec"), found)  # its frames are those of a module of py4j
    with found["client"] as client:
        client.shutdown(socket.SHUT_RDWR)
        assert unnamed_files() == before


def test_every_module_starts_with_pythons_handler_of_sigint():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
