"""Pickle, and the proof that it asks for."""

import copy
import pickle
import re
import threading
from pathlib import Path

import pytest

import headgate
from headgate.errors import SerializationError
from headgate.record.peer import AuthenticatedPeer
from headgate.record.pickled import PickleSerializer

pytestmark = pytest.mark.spec("R3")

ME = AuthenticatedPeer.this_process()


class Refuses:
    def __reduce__(self):
        raise ZeroDivisionError("not me")


class ExplodesOnLoad:
    def __reduce__(self):
        return divmod, (1, 0)


@pytest.mark.parametrize("arguments", [(), ("me",), (object(), "me")])
def test_a_peer_cannot_be_constructed_directly(arguments):
    with pytest.raises(TypeError):
        AuthenticatedPeer(*arguments)


def test_a_peer_cannot_be_subclassed():
    with pytest.raises(TypeError, match="made by the handshake"):
        type("Fake", (AuthenticatedPeer,), {})


def test_a_peer_does_not_change():
    with pytest.raises(AttributeError, match="does not change"):
        ME._name = "somebody else"
    with pytest.raises(AttributeError, match="does not change"):
        del ME._name
    with pytest.raises(AttributeError):
        ME.more = 1


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_peer_stays_in_its_process(act):
    with pytest.raises(TypeError, match="cannot be pickled"):
        act(ME)
    with pytest.raises(TypeError, match="cannot be pickled"):
        act(PickleSerializer(ME)) if act is not copy.copy else act(ME)


def test_a_peer_shows_its_name_only():
    assert repr(ME) == "AuthenticatedPeer('this process')"


@pytest.mark.parametrize("peer", [None, "this process", object(), AuthenticatedPeer])
def test_pickle_asks_for_the_proof(peer):
    with pytest.raises(TypeError, match="needs the AuthenticatedPeer"):
        PickleSerializer(peer)


SOURCES = sorted(Path(headgate.__file__).parent.rglob("*.py"))


def test_only_the_handshake_creates_a_peer():
    found = {path.parts[-2] + "/" + path.name for path in SOURCES if re.search(r"\b_vouch\b", path.read_text())}
    assert found <= {"record/peer.py", "wire/handshake.py"}


def test_only_one_module_imports_pickle():
    pattern = r"^\s*(import|from)\s+(pickle|_pickle|cloudpickle|dill|marshal|shelve)\b"
    found = {path.name for path in SOURCES if re.search(pattern, path.read_text(), re.MULTILINE)}
    assert found == {"pickled.py", "_pickle.py"}  # the latter is the benchmark's baseline


@pytest.mark.parametrize(
    ("value", "named"), [(lambda: 0, "function"), (threading.Lock(), "_thread.lock"), (Refuses(), "Refuses")]
)
def test_the_error_of_an_unpicklable_value_names_its_type(value, named):
    serializer = PickleSerializer(ME)
    for act in (lambda: serializer.encode(value), lambda: serializer.encode_batch([1, value, 2])):
        with pytest.raises(
            SerializationError, match=f"pickle cannot write a record of type .*{named}: .*emit plain data"
        ):
            act()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"\x80\x05K",
        pickle.dumps(ExplodesOnLoad()),
        b"cno_such_module\nthing\n.",
        pickle.dumps(list(range(100)))[:-3],
    ],
)
def test_bytes_that_cannot_be_unpickled_are_a_serialization_error(data):
    serializer = PickleSerializer(ME)
    for act in (serializer.decode, serializer.decode_batch):
        with pytest.raises(SerializationError, match="pickle cannot read these bytes"):
            act(memoryview(data))


def test_a_single_value_is_not_a_batch():
    with pytest.raises(SerializationError, match="not a batch"):
        PickleSerializer(ME).decode_batch(memoryview(pickle.dumps((1, 2))))


def test_any_class_comes_back_as_itself():
    serializer = PickleSerializer(ME)
    values = ({1, 2}, 3j, (1, [2]), range(3), ValueError)
    (data,) = serializer.encode_batch(values)
    assert serializer.decode_batch(memoryview(data)) == list(values)
    assert serializer.decode(memoryview(serializer.encode(2**100))) == 2**100
