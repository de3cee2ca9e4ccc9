"""Bad input before the handshake is done: a stranger costs a socket for a moment, and learns nothing."""

import random
import secrets
import socket
import ssl
import time
from contextlib import suppress

import pytest
from tests.abuse.support_abuse import (
    ATTEMPT,
    BAD_WORKER,
    JOB,
    SECRET,
    Member,
    Site,
    Stranger,
    closing_all,
    pid,
    raw_frame,
)
from tests.support.frames import CONTROL_FRAMES
from tests.support.waiting import wait_until

from headgate.errors import RemoteProtocolError
from headgate.ids import AttemptId, JobId, SubpartitionIndex
from headgate.wire import AddCredit, Data, RequestPartition, encode_frame
from headgate.wire.codec import PREFIX
from headgate.wire.handshake import ClientHandshake

NOT_PROVED = "refused: the peer did not prove that it belongs to this job"
HELLO_BYTES = 50
PROOF_BYTES = 38


def hello(*, magic: bytes = b"HDGT", oldest: int = 1, newest: int = 1, lane: int = 0) -> bytes:
    """What a client says first, with some of it changed."""
    good = ClientHandshake(SECRET, JOB, ATTEMPT, worker=BAD_WORKER, nonce=secrets.token_bytes(32)).data_to_send()
    assert len(good) == HELLO_BYTES
    worker, nonce = good[PREFIX.size + 6 : PREFIX.size + 10], good[PREFIX.size + 12 :]
    return good[: PREFIX.size] + magic + bytes([oldest, newest]) + worker + lane.to_bytes(2, "little") + nonce


def tls_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="example.com")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


STRANGE = {
    "random bytes": random.Random(1).randbytes(1000),
    "a megabyte of zeros": bytes(1 << 20),
    "HTTP": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": tls_hello(),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "wrong magic": hello(magic=b"HDGS"),
    "versions the wrong way round": hello(oldest=2, newest=1),
    "a second lane, with credit": hello(lane=1),
    "a lane above the limit": hello(lane=2**16 - 1),
    "length 0": raw_frame(1, 0, length=0),
    "length 1": raw_frame(1, 0, length=1),
    "length below the header": raw_frame(1, 0, length=5),
    "length one too small": raw_frame(1, 0, hello()[PREFIX.size :], length=HELLO_BYTES - 5),
    "length one too large": raw_frame(1, 0, hello()[PREFIX.size :], length=HELLO_BYTES - 3),
    "length above the cap": raw_frame(1, 0, length=129),
    "length 2**31": raw_frame(1, 0, length=2**31),
    "length 2**32 - 1": raw_frame(1, 0, length=2**32 - 1),
    "unknown type": raw_frame(0x99, 0, hello()[PREFIX.size :]),
    "reserved flags": raw_frame(1, 1, hello()[PREFIX.size :]),
    "the server's part": raw_frame(2, 0, bytes(37)),
    "proof before hello": raw_frame(3, 0, bytes(32)),
    "data": encode_frame(Data(0, 0, 0, size=3)) + b"...",
    **{f"{type(frame).__name__} first": encode_frame(frame) for frame in CONTROL_FRAMES},
}


@pytest.mark.spec("N7", "N8")
@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE.keys())
def test_a_stranger_without_the_protocol_is_refused_without_an_answer(said, caplog):
    with Site(caplog) as site, Stranger(site.address) as stranger:
        stranger.say(said)
        assert stranger.hear() == b""
        site.assert_logged_once(stranger.name, NOT_PROVED)
        assert site.refused == 1
        assert site.producer.statistics().network.half_open == 0


INSTEAD_OF_PROOF = {
    "random bytes": random.Random(2).randbytes(100),
    "a request": encode_frame(RequestPartition(0, pid(), SubpartitionIndex(0), 2)),
    "data": encode_frame(Data(0, 0, 0, size=3)) + b"...",
    "hello again": hello(),
    "a guess": raw_frame(3, 0, bytes(32)),
    "a proof that is too long": raw_frame(3, 0, bytes(33)),
    "an accept": raw_frame(4, 0, bytes(32)),
}


@pytest.mark.spec("N7", "N8")
@pytest.mark.parametrize("said", INSTEAD_OF_PROOF.values(), ids=INSTEAD_OF_PROOF.keys())
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after the challenge"])
def test_nothing_is_taken_for_a_proof_but_a_proof(said, at_once, caplog):
    with Site(caplog) as site, Stranger(site.address) as stranger:
        if at_once:
            stranger.say(hello(), said)
        else:
            stranger.say(hello())
            assert len(stranger.socket.recv(43, socket.MSG_WAITALL)) == 43
            stranger.say(said)
        assert len(stranger.hear()) in {0, 43}, "a challenge at most"
        site.assert_logged_once(stranger.name, NOT_PROVED)
        assert site.refused == 1


@pytest.mark.spec("N7", "N8")
def test_another_version_is_answered_with_a_readable_error(caplog):
    with Site(caplog) as site, Stranger(site.address) as stranger:
        stranger.say(hello(oldest=200, newest=201))
        answer = stranger.hear()
        site.assert_logged_once(stranger.name, "speaks versions 200 to 201 .* run the same version of headgate")
        assert site.refused == 1
    client = ClientHandshake(SECRET, JOB, ATTEMPT, worker=BAD_WORKER, nonce=bytes(32))
    with pytest.raises(RemoteProtocolError, match=r"versions 1 to 1 of the protocol.*run the same version"):
        client.receive(answer)


# Proofs that are not theirs.


def spied_on(site: Site) -> tuple[bytes, bytes]:
    """What an eavesdropper hears of a good handshake: the client's two frames."""
    with Member(site.address, prove=False) as good:
        first = good.handshake.data_to_send()
        good.say(first)
        good.handshake.receive(good.socket.recv(1 << 16))
        second = good.handshake.data_to_send()
        good.say(second)
        assert good.socket.recv(1 << 16), "it was good"
    return first, second


@pytest.mark.spec("N7")
def test_a_proof_is_good_for_one_connection(caplog):
    with Site(caplog) as site:
        said = spied_on(site)
        with Stranger(site.address) as stranger:
            stranger.say(*said)
            assert len(stranger.hear()) in {0, 43}
            site.assert_logged_once(stranger.name, NOT_PROVED)
            assert site.refused == 1


OTHERS = {
    "another job": {"job": JobId("harvest2")},
    "another attempt": {"attempt": AttemptId(ATTEMPT - 1)},
    "the next attempt": {"attempt": AttemptId(ATTEMPT + 1)},
    "another secret": {"secret": bytes(32)},
}


@pytest.mark.spec("N7")
@pytest.mark.parametrize("who", OTHERS.values(), ids=OTHERS.keys())
def test_a_proof_is_good_for_one_job_and_attempt(who, caplog):
    with Site(caplog) as site, Member(site.address, prove=False, **who) as member:
        member.say(member.handshake.data_to_send())
        member.handshake.receive(member.socket.recv(1 << 16))
        member.say(member.handshake.data_to_send())
        assert member.hear() == b""
        site.assert_logged_once(member.name, NOT_PROVED)
        assert site.refused == 1


@pytest.mark.spec("N7", "N8")
def test_a_conversation_cut_off_anywhere(caplog):
    """Handshake, request and credit, up to every byte of it; then the end, or a reset."""
    after = encode_frame(RequestPartition(0, pid(5), SubpartitionIndex(0), 2)) + encode_frame(AddCredit(0, ATTEMPT, 3))
    with Site(caplog) as site:
        cut = []
        for length in range(HELLO_BYTES + PROOF_BYTES + len(after)):
            with Member(site.address, prove=False, worker=100 + length) as member:
                first = member.handshake.data_to_send()
                member.say(first[:length])
                if length > HELLO_BYTES:
                    member.handshake.receive(member.socket.recv(43, socket.MSG_WAITALL))
                    member.say((member.handshake.data_to_send() + after)[: length - HELLO_BYTES])
                if length % 2:
                    member.socket.shutdown(socket.SHUT_WR)
                    member.hear()
                cut.append(member.name)
        wait_until(lambda: site.connections == 1, "the end of all but the good connection")
        for length, name in enumerate(cut[: HELLO_BYTES + PROOF_BYTES]):
            assert len(site.logged(name)) == 1, f"after {length} bytes: {site.logged(name)}"
        assert site.refused == HELLO_BYTES + PROOF_BYTES
        for length, name in enumerate(cut[HELLO_BYTES + PROOF_BYTES :]):
            assert len(site.logged(name)) <= 1, f"after the handshake and {length} bytes: {site.logged(name)}"


# Those who take their time, and crowds.


@pytest.mark.spec("N4", "N8")
def test_one_byte_at_a_time(caplog):
    with Site(caplog, network__handshake_timeout="1 s") as site, Stranger(site.address) as stranger:
        stranger.socket.settimeout(0.05)
        closed = False
        for byte in hello() * 1000:
            if not stranger.say(bytes([byte])):
                break
            try:
                closed = stranger.socket.recv(1 << 16) == b""
            except TimeoutError:
                continue
            except ConnectionResetError:
                closed = True
            if closed:
                break
        assert closed
        site.assert_logged_once(stranger.name, "the handshake took more than 1 s")
        assert site.refused == 1


@pytest.mark.spec("N4", "N8")
def test_silent_connections_are_limited_in_number_and_time(caplog):
    with Site(caplog, network__handshake_timeout="1 s", network__max_half_open=4) as site:
        silent = [Stranger(site.address) for _ in range(4)]
        with closing_all(*silent):
            wait_until(lambda: site.producer.statistics().network.half_open == 4, "four who say nothing")
            with Stranger(site.address) as one_more:
                oldest, *others = silent
                assert oldest.hear() == b""
                site.assert_logged_once(oldest.name, "had not proved itself, and 4 newer connections have not either")
                for stranger in (*others, one_more):
                    assert stranger.hear() == b""
                    site.assert_logged_once(stranger.name, "the handshake took more than 1 s")
        with Member(site.address) as member:
            assert member.handshake.done, "there is room again"
        assert site.refused == 5


@pytest.mark.spec("N8")
@pytest.mark.parametrize("said", [b"nonsense", hello(oldest=200, newest=201)], ids=["nonsense", "another version"])
def test_a_crowd_that_is_refused_and_stays_holds_no_sockets(said, caplog):
    """Who was refused but does not hang up must not cost a file descriptor for long: there are only so many."""
    with Site(caplog, network__max_half_open=8) as site:
        crowd = []
        try:
            for _ in range(150):
                crowd.append(Stranger(site.address))
                crowd[-1].say(said)
                assert len(crowd[-1].hear()) <= 8, "the answer to another version at most"
            transport = site.producer._transport.statistics()
            left = 64  # may take their time to read why
            assert transport.streams + transport.lingering <= 1 + 8 + left
        finally:
            for stranger in crowd:
                stranger.close()
        wait_until(lambda: site.refused == 150, "all refusals")


@pytest.mark.spec("N8")
def test_a_crowd_that_comes_and_goes(caplog):
    """Connecting and hanging up, as fast as it goes, by reset and in order."""
    with Site(caplog) as site:
        before = site.transfer.received
        for i in range(300):
            # As many as have not said who they are yet may be refused at once.
            with suppress(ConnectionResetError), Stranger(site.address) as stranger:
                stranger.say(hello()[: i % 60])
        wait_until(lambda: site.connections == 1, "the end of all but the good connection")
        assert site.producer.statistics().network.half_open == 0
        wait_until(lambda: site.transfer.received > before, "the good transfer")


@pytest.mark.spec("N8")
def test_a_flood_is_not_kept(caplog):
    """As much as the worker takes, before a proof: it takes nothing."""
    with Site(caplog) as site, Stranger(site.address) as stranger:
        stranger.say(hello())
        junk = bytes(1 << 20)
        deadline = time.monotonic() + 0.5
        sent = 0
        while time.monotonic() < deadline and stranger.say(junk):
            sent += len(junk)
        site.assert_logged_once(stranger.name, NOT_PROVED)
        assert sum(one.waiting_bytes for one in site.producer.statistics().network.connections) < 1 << 20
