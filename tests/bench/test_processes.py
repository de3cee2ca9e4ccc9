"""Child processes and pairs of them: messages, failures, and that no process is left behind."""

import os
import signal
import time
from functools import partial

import pytest
from tests.support.bench_children import (
    die,
    divide_by_zero,
    double,
    exchange,
    exit_at_once,
    fail_late,
    return_a_function,
    sleep,
)

from headgate.bench.processes import START_S, ChildFailed, Parent, ProcessPair, child


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_messages_pass_both_ways() -> None:
    with child(double) as process:
        assert process.pid != os.getpid()
        process.send("ab")
        assert process.receive(START_S) == "abab"
        assert process.result(START_S) == "done"
    assert not alive(process.pid)


def test_the_error_of_a_child_is_raised_with_its_traceback() -> None:
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


def test_sending_to_a_child_that_raised_raises_its_error() -> None:
    with child(divide_by_zero) as process:
        process._process.wait(START_S)
        with pytest.raises(ChildFailed, match="ZeroDivisionError"):
            process.send("too late")


def test_sending_to_a_dead_child_raises_how_it_ended() -> None:
    with child(exit_at_once, 4) as process:
        process._process.wait(START_S)
        with pytest.raises(ChildFailed, match="exit status 4"):
            process.send("too late")


def test_a_silent_child_is_an_error_and_is_ended() -> None:
    with child(sleep) as process:
        assert process.receive(START_S) == "asleep"
        with pytest.raises(ChildFailed, match=r"sleep sent nothing within 0\.05 s"):
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


def test_a_result_that_cannot_be_pickled_is_an_error() -> None:
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


def test_a_pair_forwards_messages_and_keeps_its_processes_until_it_is_closed() -> None:
    with ProcessPair() as pair:
        first = pair.run(partial(exchange, "a"), partial(exchange, "b"))
        again = pair.run(partial(exchange, 1), partial(exchange, 2))
        assert [received for received, _ in (*first, *again)] == ["b", "a", 2, 1]
        assert [pid for _, pid in first] == [pid for _, pid in again]
        pair.close()
        fresh = pair.run(partial(exchange, 1), partial(exchange, 2))
        assert not {pid for _, pid in first} & {pid for _, pid in fresh}
    assert not any(alive(pid) for _, pid in (*first, *fresh))


def test_the_error_of_a_pair_has_the_failures_of_both() -> None:
    with (
        ProcessPair() as pair,
        pytest.raises(ChildFailed, match=r"(?s)last words.*other end is gone|other end is gone.*last words"),
    ):
        pair.run(fail_late, partial(exit_at_once, status=5), limit_s=600)


def test_the_failure_of_one_process_does_not_wait_for_the_other() -> None:
    started_s = time.monotonic()
    with ProcessPair() as pair, pytest.raises(ChildFailed, match="ZeroDivisionError"):
        pair.run(partial(Parent.receive, timeout_s=600), divide_by_zero, limit_s=600)
    assert time.monotonic() - started_s < 60


def test_a_pair_that_sends_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessPair() as pair:
        pair.run(partial(exchange, 1), partial(exchange, 2))
        monkeypatch.setattr("headgate.bench.processes.START_S", 0.05)
        with pytest.raises(ChildFailed, match=r"_serve sent nothing within 0\.05 s"):
            pair.run(partial(Parent.receive, timeout_s=600), partial(Parent.receive, timeout_s=600))


def test_a_closed_pipe_ends_the_wait_of_the_child() -> None:
    with child(double) as process:
        process._pipe.close()
        assert process._process.wait(START_S) == 1
