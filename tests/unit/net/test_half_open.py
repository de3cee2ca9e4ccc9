"""Which half-open connection is dropped, what a port logs of refused ones, and when a dropped client connects again."""

import logging

import pytest

from headgate.errors import AuthError, TransportError
from headgate.net.memory import MemoryTransport
from headgate.net.refusals import Refusals
from headgate.net.retry import MAX_PROOFS, Retry
from headgate.wire.half_open import HalfOpen

MINUTE_NS = 60_000_000_000
SECOND_NS = 1_000_000_000


@pytest.mark.spec("N8")
def test_the_oldest_goes_and_those_that_left_do_not_count():
    half_open = HalfOpen(3)
    assert [half_open.admit(one) for one in "abc"] == [None, None, None]
    half_open.leave("b")
    half_open.leave("b")
    assert half_open.admit("d") is None
    assert half_open.admit("e") == "a"
    assert (len(half_open), list(half_open)) == (3, ["c", "d", "e"])


@pytest.mark.spec("N8")
def test_at_a_limit_of_one_the_newest_stays():
    half_open = HalfOpen(1)
    assert [half_open.admit(one) for one in range(100)] == [None, *range(99)]


def test_those_that_leave_during_an_iteration_do_not_disturb_it():
    half_open = HalfOpen(5)
    for one in range(5):
        half_open.admit(one)
    for one in half_open:
        half_open.leave(one)
    assert not len(half_open)


@pytest.fixture
def refusals(caplog):
    caplog.set_level(logging.INFO, logger="headgate.test")
    transport = MemoryTransport()
    made = Refusals(logging.getLogger("headgate.test"), transport)
    made.transport = transport
    return made


def lines(caplog):
    return [(one.levelname, one.getMessage()) for one in caplog.records]


@pytest.mark.spec("N8")
def test_one_line_a_minute_with_a_count(refusals, caplog):
    for number in range(5000):
        refusals.add(f"10.0.0.7:{number}", TransportError("silent", peer=f"10.0.0.7:{number}"))
    assert lines(caplog) == [("INFO", "10.0.0.7:0: refused: silent (10.0.0.7:0)")]
    refusals.transport.advance(MINUTE_NS - 1)
    assert len(lines(caplog)) == 1
    refusals.transport.advance(1)
    expected = "refused 4999 more in the last minute, among them 10.0.0.7:4999: silent (10.0.0.7:4999)"
    assert lines(caplog)[1:] == [("INFO", expected)]
    refusals.add("10.0.0.8:1", TransportError("later", peer="10.0.0.8:1"))
    assert len(lines(caplog)) == 2, "the second line begins a minute of its own"
    refusals.transport.advance(MINUTE_NS)
    assert lines(caplog)[2:] == [
        ("INFO", "refused 1 more in the last minute, among them 10.0.0.8:1: later (10.0.0.8:1)")
    ]
    refusals.transport.advance(10 * MINUTE_NS)
    assert len(lines(caplog)) == 3, "nothing was refused"
    refusals.add("10.0.0.9:1", TransportError("at last", peer="10.0.0.9:1"))
    assert len(lines(caplog)) == 4, "logged at once"
    assert refusals.count == 5002


@pytest.mark.spec("N8")
def test_a_failed_proof_among_many_silent_strangers_is_named_in_a_warning(refusals, caplog):
    refusals.add("10.0.0.7:1", TransportError("silent", peer="10.0.0.7:1"))
    refusals.add("10.0.0.7:2", AuthError("no proof"))
    refusals.add("10.0.0.7:3", TransportError("silent", peer="10.0.0.7:3"))
    refusals.close()
    refusals.close()
    expected = "refused 2 more in the last minute, among them 10.0.0.7:2: no proof"
    assert lines(caplog)[1:] == [("WARNING", expected)]


def test_waits_grow_to_half_a_second_and_end_with_the_deadline():
    retry, now_ns, waits_ns = Retry(deadline_ns=30 * SECOND_NS, worker=3), 0, []
    while (wait_ns := retry.wait_ns(now_ns, challenged=False)) is not None:
        waits_ns.append(wait_ns)
        now_ns += wait_ns
    assert max(waits_ns) <= SECOND_NS // 2
    assert waits_ns[0] <= 10_000_000
    assert 29 * SECOND_NS < now_ns < 30 * SECOND_NS
    assert retry.tries == len(waits_ns) + 1


def test_workers_that_were_dropped_together_do_not_come_back_together():
    assert len({Retry(10**12, worker).wait_ns(0, challenged=False) for worker in range(20)}) > 10


def test_a_proof_that_gets_no_answer_is_given_a_few_times():
    retry = Retry(deadline_ns=10**15, worker=0)
    waits = [retry.wait_ns(0, challenged=True) for _ in range(MAX_PROOFS)]
    assert [one is None for one in waits] == [False] * (MAX_PROOFS - 1) + [True]
