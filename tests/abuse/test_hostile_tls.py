"""Bad input where connections are encrypted: the port speaks TLS, and a certificate of the job comes before a proof."""

import contextlib
import random
import socket
import ssl
from datetime import UTC, datetime, timedelta

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
    error_of,
    raw_frame,
)
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.errors import AuthError, TransportError
from headgate.net import Address
from headgate.net.certificates import Authority, client_context, server_context, worker_name
from headgate.wire.handshake import ClientHandshake

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority():
    return Authority(JOB, NOW)


@pytest.fixture(scope="module")
def both(authority):
    """What the two good workers prove themselves with."""
    return authority.issue(0), authority.issue(1)


def wrapped(stranger: Stranger, context: ssl.SSLContext, worker: int = 0) -> None:
    """Speak TLS from now on; what the worker thinks of our certificate comes with the first read."""
    stranger.socket = context.wrap_socket(stranger.socket, server_hostname=worker_name(worker))
    stranger.socket.settimeout(PATIENCE_S)


def hear(stranger: Stranger) -> bytes:
    """As `Stranger.hear`; TLS may say in its own way that it is over."""
    with contextlib.suppress(ssl.SSLError):
        return stranger.hear()
    return b""


def bad_member(site: Site, credentials, *, claims: int) -> Member:
    """TLS by these credentials, then the handshake as that worker."""
    member = Member(site.address, worker=claims, prove=False)
    wrapped(member, client_context(credentials))
    return member


@pytest.mark.spec("N7", "T5")
def test_the_good_transfer(both, caplog):
    with Site(caplog, credentials=both) as site:
        [connection] = site.producer.statistics().network.connections
        assert connection.worker == 1


PLAIN = {
    "our own handshake": ClientHandshake(SECRET, JOB, ATTEMPT, worker=BAD_WORKER, nonce=bytes(32)).data_to_send(),
    "HTTP": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "random bytes": random.Random(4).randbytes(1000),
    "a TLS record that promises much": b"\x16\x03\x01\xff\xff" + bytes(100),
    "a TLS alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "zeros": bytes(1 << 20),
}


@pytest.mark.spec("N7", "N8")
@pytest.mark.parametrize("said", PLAIN.values(), ids=PLAIN.keys())
def test_plaintext_is_refused(said, both, caplog):
    with Site(caplog, credentials=both) as site, Stranger(site.address) as stranger:
        stranger.say(said)
        assert b"HDGT" not in stranger.hear()
        site.assert_logged_once(stranger.name, "TLS failed")
        assert site.refused == 1


@pytest.mark.spec("N7", "N8")
def test_no_certificate(both, caplog):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Site(caplog, credentials=both) as site, Stranger(site.address) as stranger:
        wrapped(stranger, context)
        assert hear(stranger) == b""
        site.assert_logged_once(stranger.name, "did not prove that it belongs to this job")
        assert site.refused == 1


@pytest.mark.spec("N7", "N8")
@pytest.mark.parametrize("which", ["another job", "another authority of this job", "expired"])
def test_a_certificate_that_is_not_of_this_job(which, authority, both, caplog):
    match which:
        case "another job":
            credentials = Authority(JOB + "2", NOW).issue(BAD_WORKER)
        case "another authority of this job":
            credentials = Authority(JOB, NOW).issue(BAD_WORKER)
        case _:
            credentials = authority.issue(BAD_WORKER, now=NOW - timedelta(days=40))
    context = client_context(credentials)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it trusts anyone
    with Site(caplog, credentials=both) as site, Stranger(site.address) as stranger:
        wrapped(stranger, context)
        assert hear(stranger) == b""
        site.assert_logged_once(stranger.name, "is not accepted")
        assert site.refused == 1


@pytest.mark.spec("N7", "N8")
def test_a_certificate_without_the_secret(authority, both, caplog):
    with Site(caplog, credentials=both) as site, Member(site.address, prove=False, secret=bytes(32)) as member:
        wrapped(member, client_context(authority.issue(BAD_WORKER)))
        member.say(member.handshake.data_to_send())
        member.handshake.receive(member.socket.recv(1 << 16))
        member.say(member.handshake.data_to_send())
        assert hear(member) == b""
        site.assert_logged_once(member.name, "did not prove that it belongs to this job")
        assert site.refused == 1


@pytest.mark.spec("N7", "N8")
def test_the_secret_with_the_certificate_of_another_worker(authority, both, caplog):
    """Worker 7 would like to be worker 1: the good one, whose connection it would take over."""
    with Site(caplog, credentials=both) as site:
        member = bad_member(site, authority.issue(BAD_WORKER), claims=1)
        with closing_all(member):
            member.say(member.handshake.data_to_send())
            member.handshake.receive(member.socket.recv(1 << 16))
            member.say(member.handshake.data_to_send())
            hear(member)
            site.assert_logged_once(member.name, "the peer's certificate is that of another worker")
            assert site.refused == 1


@pytest.mark.spec("N8")
def test_bad_frames_inside(authority, both, caplog):
    """Whoever belongs to the job is held to the protocol, here as elsewhere."""
    with Site(caplog, credentials=both) as site:
        member = bad_member(site, authority.issue(BAD_WORKER), claims=BAD_WORKER)
        with closing_all(member):
            member.prove()
            member.say(raw_frame(0x99, 0))
            hear(member)
            site.assert_logged_once(member.name, "unknown frame type 0x99")
        wait_until(lambda: site.connections == 1, "the end of the bad connection")


@pytest.mark.spec("N8")
@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_records_that_are_cut_or_changed(how, authority, both, caplog):
    """A stream that ends without TLS's own end, or with a bit that is not what was sent."""
    with Site(caplog, credentials=both) as site, Stranger(site.address) as stranger:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(authority.issue(BAD_WORKER))
        tls = context.wrap_bio(incoming, outgoing, server_hostname=worker_name(0))
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                stranger.say(outgoing.read())
                incoming.write(stranger.socket.recv(1 << 16))
        tls.write(ClientHandshake(SECRET, JOB, ATTEMPT, worker=BAD_WORKER, nonce=bytes(32)).data_to_send())
        said = bytearray(outgoing.read())
        if how == "flipped":
            said[-1] ^= 1
            stranger.say(bytes(said))
        else:
            stranger.say(bytes(said[:-1]))
            stranger.socket.shutdown(socket.SHUT_WR)
        stranger.hear()
        site.assert_logged_once(stranger.name, "TLS failed" if how == "flipped" else "close_notify")
        assert site.refused == 1


@pytest.mark.spec("N4", "N8")
def test_a_handshake_of_tls_that_takes_too_long(both, caplog):
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=worker_name(0))
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with Site(caplog, credentials=both, network__handshake_timeout="1 s") as site:
        with Stranger(site.address) as silent, Stranger(site.address) as half:
            half.say(outgoing.read())
            for stranger in (silent, half):
                stranger.hear()
                site.assert_logged_once(stranger.name, "the handshake took more than 1 s")
        assert site.refused == 2


# A good worker that connects to somebody else.


@pytest.mark.spec("N7")
@pytest.mark.parametrize("which", ["another job", "another worker"])
def test_a_server_with_a_wrong_certificate_is_refused(which, authority, both, caplog):
    credentials = Authority(JOB, NOW).issue(BAD_WORKER) if which == "another job" else authority.issue(BAD_WORKER + 1)
    context = server_context(credentials)
    with socket.create_server(("127.0.0.1", 0)) as server, Site(caplog, credentials=both) as site:
        address = Address(*server.getsockname()[:2])
        reader = site.read_from(address)
        connected, _ = server.accept()
        connected.settimeout(PATIENCE_S)
        with (
            connected,
            pytest.raises((ssl.SSLError, ConnectionError)),
            context.wrap_socket(connected, server_side=True),
        ):
            pass
        found = error_of(reader)
        assert isinstance(found, AuthError)
        assert str(address) in str(found)
        assert "is not accepted" in str(found)


@pytest.mark.spec("N7")
def test_a_server_that_sends_plaintext_is_a_transport_error(both, caplog):
    with socket.create_server(("127.0.0.1", 0)) as server, Site(caplog, credentials=both) as site:
        address = Address(*server.getsockname()[:2])
        reader = site.read_from(address)
        connected, _ = server.accept()
        with Stranger.accepted(connected) as stranger:
            stranger.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            stranger.hear()
        found = error_of(reader)
        assert isinstance(found, TransportError)
        assert found.peer == str(address)
