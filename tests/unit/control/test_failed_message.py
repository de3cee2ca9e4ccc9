"""Failed: how an error gets from a worker to the driver."""

import msgspec
import pytest

from headgate.control.messages import Failed, TaskState
from headgate.errors import ConfigError, HeadgateError, TransportError, UserCodeError


def sent(error):
    """An error as the coordinator gets it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(Failed.of(error)), type=Failed).error()


def raised(text="boom"):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - whatever its text
        raise ValueError(text)
    return UserCodeError.of(caught.value, operator="map(f)", subtask=3)


@pytest.mark.spec("K6")
def test_user_code_errors_arrive_whole():
    error = raised()
    got = sent(error)
    assert type(got) is UserCodeError
    assert (got.operator, got.subtask, got.trace) == ("map(f)", 3, error.trace)
    assert str(got) == str(error)
    assert str(sent(got)) == str(error), "as often as it is sent on"


@pytest.mark.parametrize("error", [ConfigError("no such driver"), TransportError("reset", peer="10.0.0.1:7077")])
def test_our_errors_keep_class_and_text(error):
    got = sent(error)
    assert type(got) is type(error)
    assert str(got) == str(error)


def test_others_are_named():
    got = sent(KeyError("x"))
    assert type(got) is HeadgateError
    assert "KeyError" in str(got)


@pytest.mark.spec("K6")
@pytest.mark.parametrize("text", ["bad \udcff name", "\U0001f600" * 10**6, "x" * 10**7, ""], ids=len)
def test_any_text_fits_and_can_be_sent(text):
    got = sent(raised(text))
    assert (got.operator, got.subtask) == ("map(f)", 3)
    assert len(msgspec.msgpack.encode(Failed.of(raised(text)))) < 2**20


def test_a_long_traceback_keeps_its_end():
    error = UserCodeError("boom", operator="map", subtask=0, trace="x" * 10**6 + "the end")
    assert sent(error).trace.endswith("the end")


def test_an_operator_of_any_name():
    name = "\udcff" + "n" * 10**6
    assert sent(UserCodeError("boom", operator=name, subtask=0)).operator != ""


def test_states_that_are_the_last():
    assert {state for state in TaskState if state.over} == {TaskState.FINISHED, TaskState.CANCELLED, TaskState.FAILED}
