"""The tree of errors: one class, one wire code."""

import inspect

import pytest

from headgate import errors
from headgate.errors import (
    CorruptStream,
    HeadgateError,
    ProducerFailed,
    TransportError,
    UserCodeError,
    error_class,
    error_from_wire,
)

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]

# Part of the wire format: a code is never given to another class.
WIRE_CODES = {
    1: "HeadgateError",
    2: "ConfigError",
    3: "LocalProtocolError",
    4: "RemoteProtocolError",
    5: "AuthError",
    6: "TransportError",
    7: "PartitionNotFound",
    8: "ProducerFailed",
    9: "InsufficientBuffers",
    10: "UserCodeError",
    11: "InvariantViolated",
    12: "Cancelled",
    13: "RequestTimeout",
    14: "CorruptStream",
    15: "SerializationError",
    16: "RecordTooLarge",
    17: "SpillError",
    18: "SelectorError",
    19: "UnstableKey",
    20: "ChecksumMismatch",
    21: "StorageError",
    22: "StorageFull",
    23: "UnknownReceiver",
}


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)


def test_codes_never_change() -> None:
    assert WIRE_CODES.items() <= {cls.code: cls.__name__ for cls in CLASSES}.items()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_code_leads_back_to_its_class(cls: type[HeadgateError]) -> None:
    assert issubclass(cls, HeadgateError)
    assert "code" in vars(cls), "an inherited code would stand for two classes"
    assert error_class(cls.code) is cls


@pytest.mark.parametrize("code", [0, -1, 20_000, 2**31])
def test_an_unknown_code_is_the_root(code: int) -> None:
    assert error_class(code) is HeadgateError


def test_every_error_is_public() -> None:
    assert {cls.__name__ for cls in CLASSES} | {"error_class", "error_from_wire"} == set(errors.__all__)


def test_errors_name_peer_operator_and_subtask() -> None:
    lost = TransportError("connection reset", peer="10.0.0.1:7077")
    assert str(lost) == "connection reset (10.0.0.1:7077)"
    assert lost.peer == "10.0.0.1:7077"
    bad = UserCodeError("division by zero", operator="map", subtask=3)
    assert str(bad) == "map, subtask 3: division by zero"
    assert (bad.operator, bad.subtask) == ("map", 3)


def test_a_failed_producer_carries_its_cause() -> None:
    cause = UserCodeError("x", operator="map", subtask=0)
    failed = ProducerFailed("map failed", cause=cause)
    assert failed.cause is cause
    assert failed.__cause__ is cause, "so that the traceback shows it"
    assert ProducerFailed("map failed").cause is None


@pytest.mark.spec("G8")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_any_error_comes_back_from_the_wire_as_its_class_with_the_text_as_it_was_sent(cls: type[HeadgateError]) -> None:
    """The text is whole already: what a class adds to it was added where it was raised."""
    text = "map, subtask 3: division by zero (10.0.0.1:7077)"
    again = error_from_wire(cls.code, text)
    assert type(again) is cls
    assert str(again) == text
    assert again.args == (text,)
    with pytest.raises(cls, match="division by zero"):
        raise again


@pytest.mark.spec("G8")
def test_fields_missing_on_the_wire_have_defaults() -> None:
    assert error_from_wire(TransportError.code, "reset").peer == "unknown peer"
    failed = error_from_wire(UserCodeError.code, "x")
    assert (failed.operator, failed.subtask) == ("unknown operator", -1)
    assert error_from_wire(ProducerFailed.code, "x").cause is None


@pytest.mark.parametrize("code", [0, 999, 0xFFFF])
def test_a_code_of_a_later_version_is_the_root_with_its_text(code: int) -> None:
    again = error_from_wire(code, "what is this")
    assert type(again) is HeadgateError
    assert str(again) == "what is this"


def test_a_wrong_checksum_is_a_corrupt_stream() -> None:
    with pytest.raises(CorruptStream):
        raise error_from_wire(20, "receiver 3: not what was sent")
