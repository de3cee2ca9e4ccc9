"""The throughput baselines: they move every byte, and say so when they do not."""

import sys
from importlib.util import find_spec

import pytest
from tests.support_children import die_halfway, lose_some, raise_at_once

from headgate.bench import _peers
from headgate.bench._children import ChildFailed
from headgate.bench._peers import flight, grpc_streaming, raw_sockets, zeromq
from headgate.errors import ConfigError, InvariantViolated

TOTAL = 8 * 2**20 + 12_345  # no multiple of any size
NEEDS = {grpc_streaming: "grpc", zeromq: "zmq"}


@pytest.mark.parametrize("chunk", [32 * 1024, 2**20])
def test_sockets(chunk: int) -> None:
    assert raw_sockets(TOTAL, chunk) > 0


@pytest.mark.parametrize("peer", [flight, grpc_streaming, zeromq])
@pytest.mark.parametrize(("total", "sizes"), [(TOTAL, [32 * 1024]), (TOTAL, [2**20]), (100, [2**20])])
def test_libraries(peer, total: int, sizes: list[int]) -> None:
    if peer in NEEDS and find_spec(NEEDS[peer]) is None:
        pytest.skip(f"{NEEDS[peer]} is not installed")
    before = set(sys.modules)
    assert peer(total, sizes) > 0
    imported = sys.modules.keys() - before
    assert not {"grpc", "pyarrow.flight", "zmq"} & imported, "they leave threads and sockets behind"


def test_the_faster_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {2**20: 3.0, 32 * 1024: 5.0, 64 * 1024: 4.0}
    monkeypatch.setattr(_peers, "_measure", lambda receive, send, total, size: figures[size])
    monkeypatch.setattr(_peers, "find_spec", lambda module: object())
    assert (flight(1), grpc_streaming(1), zeromq(1), zeromq(1, sizes=[2**20])) == (4.0, 5.0, 5.0, 3.0)


@pytest.mark.parametrize(("peer", "name"), [(grpc_streaming, "grpcio"), (zeromq, "pyzmq")])
def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, peer, name: str) -> None:
    monkeypatch.setattr(_peers, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed.*pip install 'headgate\[bench\]'"):
        peer(TOTAL)


@pytest.mark.parametrize(("total", "size"), [(0, 1), (1, 0), (-1, 1)])
def test_nothing_to_move_is_refused(total: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        raw_sockets(total, size)


def test_lost_bytes_are_noticed() -> None:
    with pytest.raises(InvariantViolated, match=f"lose_some received {TOTAL - 1} bytes of {TOTAL}"):
        _peers._measure(lose_some, _peers._send_raw, TOTAL, 32 * 1024)


def test_a_receiver_that_dies_is_reported_with_its_last_words() -> None:
    with pytest.raises(ChildFailed, match=r"die_halfway ended with exit status 7 .*out of luck"):
        _peers._measure(die_halfway, _peers._send_raw, TOTAL, 32 * 1024)


@pytest.mark.parametrize("receive", [_peers._receive_raw, _peers._receive_flight])
def test_a_sender_that_raises_is_reported_with_its_error(receive) -> None:
    with pytest.raises(ChildFailed, match="no mood to send"):
        _peers._measure(receive, raise_at_once, TOTAL, 32 * 1024)


@pytest.mark.parametrize("ack", [b"", b"not"])
def test_an_acknowledgement_is_looked_at(ack: bytes) -> None:
    with pytest.raises(InvariantViolated, match="should have acknowledged"):
        _peers._check_ack(ack)
