"""Child processes: they talk, their end is told, and nothing of them is left."""

import os
import signal
import time

import pytest
from tests.support_children import (
    die,
    divide_by_zero,
    double,
    exit_at_once,
    hear_that_the_other_is_gone,
    return_a_function,
    sleep,
)

from headgate.bench._children import START_S, ChildFailed, Parent, child, first_of, results_of


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_both_ways() -> None:
    with child(double) as process:
        assert process.pid != os.getpid()
        process.send("ab")
        assert process.receive(START_S) == "abab"
        assert process.result(START_S) == "done"
    assert not alive(process.pid)


def test_what_a_child_raises_is_raised_with_its_traceback() -> None:
    with child(divide_by_zero) as process, pytest.raises(ChildFailed, match=r"(?s)divide_by_zero raised.*1 / 0.*Zero"):
        process.result(START_S)


def test_a_dead_child_is_an_error_at_once_with_all_it_printed(capfd: pytest.CaptureFixture[str]) -> None:
    started_s = time.monotonic()
    with (
        child(exit_at_once, 3) as process,
        pytest.raises(ChildFailed, match=r"(?s)exit_at_once ended with exit status 3.*on stdout\nlast words"),
    ):
        process.receive(600)
    assert time.monotonic() - started_s < 60
    assert capfd.readouterr() == ("", "")


def test_a_killed_child_is_an_error() -> None:
    with child(die) as process, pytest.raises(ChildFailed, match=r"killed by signal 9 .* printed nothing"):
        process.result(600)


def test_sending_to_a_child_that_raised_tells_what_it_raised() -> None:
    with child(divide_by_zero) as process:
        process._process.wait(START_S)
        with pytest.raises(ChildFailed, match="ZeroDivisionError"):
            process.send("too late")


def test_sending_to_a_dead_child_tells_how_it_died() -> None:
    with child(exit_at_once, 4) as process:
        process._process.wait(START_S)
        with pytest.raises(ChildFailed, match="exit status 4"):
            process.send("too late")


def test_a_silent_child_is_an_error_and_is_ended() -> None:
    with child(sleep) as process:
        assert process.receive(START_S) == "asleep"
        with pytest.raises(ChildFailed, match=r"sleep said nothing within 0\.05 s"):
            process.result(0.05)
        assert alive(process.pid)
    assert not alive(process.pid)


def test_an_error_in_the_block_ends_the_child() -> None:
    with pytest.raises(KeyError), child(sleep) as process:
        raise KeyError
    assert not alive(process.pid)


def test_a_stopped_child_is_ended_too() -> None:
    with child(sleep) as process:
        process.receive(START_S)
        os.kill(process.pid, signal.SIGSTOP)
    assert not alive(process.pid)


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(Exception, match=r"(?i)pickle"), child(lambda parent: None):
        pass


def test_a_result_that_cannot_travel_is_an_error() -> None:
    with child(return_a_function) as process, pytest.raises(ChildFailed, match=r"(?i)pickle"):
        process.result(START_S)


def test_a_message_is_no_result_and_a_result_no_message() -> None:
    with child(Parent.send, "word") as process, pytest.raises(ChildFailed, match="sent 'word', while its result"):
        process.result(START_S)
    with child(double) as process:
        process.send(1)
        process.receive(START_S)
        with pytest.raises(ChildFailed, match="returned 'done', while a message"):
            process.receive(START_S)


def test_the_story_of_both_ends() -> None:
    with (
        child(hear_that_the_other_is_gone) as one,
        child(exit_at_once, 5) as other,
        pytest.raises(ChildFailed, match=r"(?s)last words.*other end is gone|other end is gone.*last words"),
    ):
        results_of(one, other, timeout_s=600)


def test_a_failure_does_not_wait_for_those_who_are_well() -> None:
    started_s = time.monotonic()
    with child(Parent.receive, 600) as one, child(divide_by_zero) as other:
        with pytest.raises(ChildFailed, match="ZeroDivisionError"):
            results_of(one, other, timeout_s=600)
        assert alive(one.pid)
    assert time.monotonic() - started_s < 60


def test_results_that_do_not_come_are_an_error() -> None:
    with child(Parent.receive, 600) as one, pytest.raises(ChildFailed, match=r"receive said nothing within 0\.05 s"):
        results_of(one, timeout_s=0.05)


def test_the_first_to_speak_is_heard() -> None:
    with child(double) as one, child(double) as other:
        other.send(1)
        assert first_of(one, other, timeout_s=START_S) == (other, 2)
        one.send(2)
        assert first_of(one, timeout_s=START_S) == (one, 4)


def test_the_first_to_fail_is_heard_and_the_other_too() -> None:
    with (
        child(hear_that_the_other_is_gone) as one,
        child(exit_at_once, 5) as other,
        pytest.raises(ChildFailed, match=r"(?s)last words.*other end is gone|other end is gone.*last words"),
    ):
        first_of(one, other, timeout_s=600)


def test_nobody_who_speaks_is_an_error() -> None:
    with child(Parent.receive, 600) as one, pytest.raises(ChildFailed, match=r"receive said nothing within 0\.05 s"):
        first_of(one, timeout_s=0.05)


def test_a_parent_that_goes_ends_the_wait_of_its_child() -> None:
    with child(double) as process:
        process._pipe.close()
        assert process._process.wait(START_S) == 1
