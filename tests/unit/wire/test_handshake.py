"""The handshake: both prove, nobody learns, and nothing else is listened to."""

import pytest

from headgate.errors import AuthError, LocalProtocolError, RemoteProtocolError
from headgate.ids import AttemptId, JobId
from headgate.record.pickled import PickleSerializer
from headgate.wire import handshake
from headgate.wire.codec import encode_frame
from headgate.wire.frames import KeepAlive
from headgate.wire.handshake import MAX_HANDSHAKE_BYTES, MAX_LANES, ClientHandshake, Handshake, ServerHandshake

SECRET = bytes(range(32))
JOB, ATTEMPT = JobId("etl"), AttemptId(3)

pytestmark = pytest.mark.spec("N7")


def client(secret=SECRET, job=JOB, attempt=ATTEMPT, nonce=b"c" * 32, lane=0) -> ClientHandshake:
    return ClientHandshake(secret, job, attempt, worker=7, nonce=nonce, lane=lane)


def server(secret=SECRET, job=JOB, attempt=ATTEMPT, nonce=b"s" * 32, lanes=1, connected=None) -> ServerHandshake:
    return ServerHandshake(secret, job, attempt, worker=9, nonce=nonce, lanes=lanes, connected=connected)


def talk(one: Handshake, other: Handshake, step: int = 1 << 16) -> list[bytes]:
    """Let both speak until nothing is left to say, `step` bytes at a time; all that was said, in order."""
    said = []
    for _ in range(4):
        for sender, receiver in ((one, other), (other, one)):
            data = sender.data_to_send()
            if data:
                said.append(data)
            for start in range(0, len(data), step):
                assert receiver.receive(data[start : start + step]) == b""
    return said


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
def test_two_workers_of_one_attempt_prove_themselves_to_each_other(step):
    one, other = client(), server()
    said = talk(one, other, step)
    assert one.done
    assert other.done
    assert (one.peer_worker, other.peer_worker) == (9, 7)
    assert one.version == other.version == 1
    assert all(len(frame) <= MAX_HANDSHAKE_BYTES for frame in said)
    assert len(said) == 4
    for side in (one, other):
        assert side.peer is not None
        PickleSerializer(side.peer)  # what the proof is for


def test_golden_bytes():
    said = [frame.hex() for frame in talk(client(), server())]
    assert said == GOLDEN


GOLDEN = [
    "2e00000001004844475401010700000000006363636363636363636363636363636363636363636363636363636363636363",
    "27000000020001090000007373737373737373737373737373737373737373737373737373737373737373",
    "22000000030076eada8e3161c3a02e029853f0523eaaf732ef450a45c8011a9b670aa1f7f5ed",
    "220000000400811bface4d215ede1eb34e7651648401b2d19a58ef8bce49b3d0148abc286cd3",
]


@pytest.mark.parametrize(
    "stranger",
    [{"secret": bytes(32)}, {"job": JobId("other")}, {"attempt": AttemptId(4)}, {"job": JobId("etl\x03")}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_stranger_is_refused_by_either_side_before_it_learns_anything(stranger):
    one, other = client(**stranger), server()
    other.receive(one.data_to_send())
    one.receive(other.data_to_send())
    with pytest.raises(AuthError):
        other.receive(one.data_to_send())
    assert other.data_to_send() == b"", "nothing that depends on the secret is said to a stranger"
    assert other.peer is None

    one, other = client(), server(**stranger)
    other.receive(one.data_to_send())
    one.receive(other.data_to_send())
    with pytest.raises(AuthError):
        other.receive(one.data_to_send())
    assert not one.done


def test_a_recorded_proof_does_not_fit_another_connection():
    hello, _, proof, _ = talk(client(), server())
    other = server(nonce=b"t" * 32)
    other.receive(hello)
    with pytest.raises(AuthError):
        other.receive(proof)


def test_a_recorded_acceptance_does_not_fit_another_connection():
    _, challenge, _, accept = talk(client(), server())
    one = client(nonce=b"d" * 32)
    one.data_to_send()
    one.receive(challenge)
    with pytest.raises(AuthError):
        one.receive(accept)


def test_a_proof_sent_back_is_no_acceptance():
    one, other = client(), server()
    other.receive(one.data_to_send())
    one.receive(other.data_to_send())
    proof = one.data_to_send()
    with pytest.raises(AuthError):
        one.receive(proof)
    as_acceptance = proof[:4] + b"\x04" + proof[5:]
    again = client()
    again.data_to_send()
    other = server()
    other.receive(client().data_to_send())
    again.receive(other.data_to_send())
    with pytest.raises(AuthError):
        again.receive(as_acceptance)


def play(change, connected=None) -> tuple[ClientHandshake, ServerHandshake]:
    """A handshake in which `change(turn, frame)` stands between the two."""
    one, other = client(), server(connected=connected)
    for turn, (sender, receiver) in enumerate([(one, other), (other, one)] * 2):
        receiver.receive(change(turn, sender.data_to_send()))
    return one, other


@pytest.mark.parametrize("frame", range(4))
def test_every_byte_counts(frame):
    for position in range(len(talk(client(), server())[frame])):

        def flip(turn, data, position=position):
            flipped = bytes([data[position] ^ 0x10]) if turn == frame else b""
            return data[:position] + flipped + data[position + 1 :] if flipped else data

        with pytest.raises((AuthError, RemoteProtocolError)):
            play(flip)


@pytest.mark.parametrize("frame", range(4))
def test_a_handshake_cut_short_is_not_done(frame):
    for length in range(len(talk(client(), server())[frame])):
        sides = play(lambda turn, data, length=length: data[:length] if turn == frame else data)
        assert not all(side.done for side in sides)


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"\x00" * 64,
        b"\xff" * 64,
        encode_frame(KeepAlive()),
        b"\x2d",
    ],
    ids=["http", "tls", "zeros", "ones", "another frame", "wrong length"],
)
def test_anything_else_is_refused_with_one_text(data):
    side = server()
    with pytest.raises(AuthError) as refused:
        side.receive(data)
    assert str(refused.value) == "the peer did not prove that it belongs to this job"
    with pytest.raises(AuthError):
        side.receive(b"")
    assert side.data_to_send() == b""


def test_a_wrong_magic_is_refused():
    hello = bytearray(client().data_to_send())
    hello[6:10] = b"HTTP"
    with pytest.raises(AuthError):
        server().receive(bytes(hello))


def test_bytes_behind_the_handshake_are_handed_on():
    one, other = client(), server()
    other.receive(one.data_to_send())
    one.receive(other.data_to_send())
    assert other.receive(one.data_to_send() + b"first frame") == b"first frame"
    assert one.receive(other.data_to_send() + b"answer") == b"answer"
    assert other.receive(b"more") == b"more"


def test_peers_without_a_common_version_are_refused_with_both_ranges(monkeypatch):
    old, new = client(), server()
    monkeypatch.setattr(handshake, "VERSIONS", (2, 4))
    with pytest.raises(RemoteProtocolError, match="versions 1 to 1 of the protocol, this one 2 to 4"):
        new.receive(old.data_to_send())
    reason = new.data_to_send()
    monkeypatch.undo()
    with pytest.raises(RemoteProtocolError, match="versions 2 to 4 of the protocol, this one 1 to 1"):
        old.receive(reason)


def test_the_newest_common_version_is_chosen(monkeypatch):
    monkeypatch.setattr(handshake, "VERSIONS", (1, 5))
    one = client()
    monkeypatch.setattr(handshake, "VERSIONS", (2, 3))
    other = server()
    other.receive(one.data_to_send())
    assert other.version == 3


@pytest.mark.parametrize(("secret", "nonce"), [(bytes(31), bytes(32)), (bytes(32), bytes(16)), (b"", bytes(32))])
def test_short_secrets_and_nonces_are_a_local_error(secret, nonce):
    with pytest.raises(LocalProtocolError):
        client(secret=secret, nonce=nonce)


def test_the_secret_shows_nowhere():
    side = client()
    shown = repr(side) + repr(vars(side)) + str(side.data_to_send().hex())
    assert SECRET.hex() not in shown
    assert repr(SECRET) not in shown


# A second connection between the same two workers ----------------------------------------------------------

DUPLICATE = "220000000600a0ff530fd4c783ec39e3badc99343449c2cf2bdc6fdc457e8f82e05f8144e763"


@pytest.mark.spec("N4")
@pytest.mark.parametrize("step", [1, 7, 1 << 16])
def test_a_connection_that_is_not_needed_is_declined_with_a_proof(step):
    asked = []
    one, other = client(), server(connected=lambda *which: asked.append(which) or True)
    said = talk(one, other, step)
    assert [frame.hex() for frame in said] == [*GOLDEN[:3], DUPLICATE]
    assert asked == [(7, 0)], "asked once, about the worker that has proved itself"
    for side in (one, other):
        assert side.duplicate
        assert not side.done
        assert side.peer is None, "nobody is vouched for over a connection that is not used"


@pytest.mark.spec("N4")
def test_without_another_connection_this_one_is_used():
    one, other = client(), server(connected=lambda worker, lane: False)
    assert [frame.hex() for frame in talk(one, other)] == GOLDEN
    assert one.done
    assert other.done
    assert not one.duplicate
    assert not other.duplicate


def test_an_unauthenticated_client_cannot_query_connections():
    asked = []
    one, other = client(secret=bytes(32)), server(connected=lambda *which: asked.append(which))
    other.receive(one.data_to_send())
    one.receive(other.data_to_send())
    with pytest.raises(AuthError):
        other.receive(one.data_to_send())
    assert asked == []
    assert other.data_to_send() == b""
    assert not other.duplicate


def test_every_byte_of_a_declination_counts():
    for position in range(len(bytes.fromhex(DUPLICATE))):

        def flip(turn, data, position=position):
            flipped = bytes([data[position] ^ 0x10]) if turn == 3 else b""
            return data[:position] + flipped + data[position + 1 :] if flipped else data

        with pytest.raises(AuthError):
            play(flip, connected=lambda worker, lane: True)


def as_kind(kind: int, frame: bytes) -> bytes:
    return frame[:4] + bytes([kind]) + frame[5:]


@pytest.mark.parametrize(("connected", "kind"), [(True, 4), (False, 6)], ids=["accept", "duplicate"])
def test_one_answer_cannot_be_made_into_the_other(connected, kind):
    """Who stands between the two can neither use a connection that was declined nor decline one that was accepted."""
    with pytest.raises(AuthError):
        play(
            lambda turn, data: as_kind(kind, data) if turn == 3 else data,
            connected=lambda worker, lane: connected,
        )


def test_a_declination_before_the_proof_is_refused():
    one = client()
    one.data_to_send()
    with pytest.raises(AuthError):
        one.receive(bytes.fromhex(DUPLICATE))
    assert not one.duplicate


def test_nothing_is_received_after_a_declination():
    one, other = client(), server(connected=lambda worker, lane: True)
    talk(one, other)
    for side in (one, other):
        with pytest.raises(AuthError):
            side.receive(encode_frame(KeepAlive()))
        assert side.data_to_send() == b""


# Lanes -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("N5")
@pytest.mark.parametrize("lane", [0, 1, 300, MAX_LANES - 1])
def test_both_know_the_lane_of_their_connection(lane):
    asked = []
    one, other = client(lane=lane), server(lanes=MAX_LANES, connected=lambda *which: asked.append(which))
    talk(one, other)
    assert one.done
    assert other.done
    assert one.lane == other.lane == lane
    assert asked == [(7, lane)]


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    ("lane", "lanes"), [(1, 1), (MAX_LANES - 1, 1), (MAX_LANES, MAX_LANES), (2**16 - 1, MAX_LANES)]
)
def test_a_lane_that_there_is_not_is_refused_as_any_stranger(lane, lanes):
    hello = client().data_to_send()
    other = server(lanes=lanes)
    with pytest.raises(AuthError, match=r"^the peer did not prove that it belongs to this job$"):
        other.receive(hello[:16] + lane.to_bytes(2, "little") + hello[18:])
    assert other.data_to_send() == b""


def test_a_connection_cannot_be_led_into_another_lane():
    one, other = client(lane=1), server(lanes=MAX_LANES)
    hello = one.data_to_send()
    other.receive(hello[:16] + b"\x02\x00" + hello[18:])
    one.receive(other.data_to_send())
    with pytest.raises(AuthError):
        other.receive(one.data_to_send())
    assert other.peer is None


@pytest.mark.parametrize("lane", [-1, MAX_LANES])
def test_a_lane_beyond_the_limit_is_our_own_mistake(lane):
    with pytest.raises(LocalProtocolError, match=f"lanes 0 to 1023, not {lane}"):
        client(lane=lane)
