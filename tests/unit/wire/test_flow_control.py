"""Credit as the sender and the receiver count it. The policy is in `tests/property/test_flow_properties.py`."""

import pytest

from headgate.errors import InvariantViolated, RemoteProtocolError
from headgate.wire import Book, Ledger
from headgate.wire.frames import MAX_CREDIT

# The sender ------------------------------------------------------------------------------------------------


@pytest.mark.spec("N2")
def test_each_buffer_uses_one_credit():
    ledger = Ledger(initial=2)
    assert [ledger.available, ledger.granted, ledger.sent] == [2, 2, 0]
    ledger.spend()
    assert [ledger.available, ledger.granted, ledger.sent] == [1, 2, 1]
    ledger.grant(3)
    assert [ledger.available, ledger.granted, ledger.sent] == [4, 5, 1]


@pytest.mark.spec("N2")
@pytest.mark.parametrize("initial", [0, 2])
def test_no_buffer_without_credit(initial):
    ledger = Ledger(initial)
    for _ in range(initial):
        ledger.spend()
    with pytest.raises(InvariantViolated, match="without credit"):
        ledger.spend()
    assert [ledger.available, ledger.sent] == [0, initial], "a refusal changes nothing"
    ledger.grant(1)
    ledger.spend()
    assert [ledger.available, ledger.sent] == [0, initial + 1]


@pytest.mark.spec("N8")
def test_credit_does_not_overflow():
    ledger = Ledger(initial=1)
    ledger.grant(MAX_CREDIT - 1)
    with pytest.raises(RemoteProtocolError, match=f"a credit of 1 on top of {MAX_CREDIT}: the limit is {MAX_CREDIT}"):
        ledger.grant(1)
    assert ledger.available == MAX_CREDIT, "a refusal changes nothing"
    ledger.spend()
    ledger.grant(1)
    assert ledger.available == MAX_CREDIT


@pytest.mark.spec("N2")
def test_the_limit_is_on_available_credit_not_on_the_total():
    ledger = Ledger(initial=0)
    for _ in range(3):
        ledger.grant(MAX_CREDIT)
        ledger.sent += MAX_CREDIT  # as that many calls of spend() would
    assert ledger.granted == 3 * MAX_CREDIT


@pytest.mark.spec("N8")
@pytest.mark.parametrize("credit", [0, -1])
def test_a_grant_of_zero_is_a_remote_protocol_error(credit):
    ledger = Ledger(initial=1)
    with pytest.raises(RemoteProtocolError, match=f"a credit of {credit}$"):
        ledger.grant(credit)
    assert ledger.available == 1, "a refusal changes nothing"


# The receiver ----------------------------------------------------------------------------------------------


@pytest.mark.spec("G5")
@pytest.mark.parametrize("initial", [0, 2])
def test_the_credit_of_the_request_is_promised_from_the_start(initial):
    book = Book(initial)
    assert [book.promised, book.received, book.outstanding] == [initial, 0, initial]


@pytest.mark.spec("G5")
def test_promised_credit_is_outstanding_until_its_buffer_is_received():
    book = Book(initial=2)
    book.receive()
    assert [book.promised, book.received, book.outstanding] == [2, 1, 1]
    book.promise(3)
    assert [book.promised, book.received, book.outstanding] == [5, 1, 4]


@pytest.mark.spec("G6", "N8")
@pytest.mark.parametrize("initial", [0, 2])
def test_data_without_credit_is_refused(initial):
    book = Book(initial)
    for _ in range(initial):
        book.receive()
    with pytest.raises(RemoteProtocolError, match="data came without credit"):
        book.receive()
    assert [book.promised, book.received, book.outstanding] == [initial, initial, 0], "a refusal changes nothing"
    book.promise(1)
    book.receive()
    assert book.outstanding == 0


@pytest.mark.spec("G5")
@pytest.mark.parametrize("credit", [0, -1, MAX_CREDIT])
def test_an_invalid_promise_violates_an_invariant(credit):
    book = Book(initial=1)
    with pytest.raises(InvariantViolated, match=f"a credit of {credit} is announced on top of 1"):
        book.promise(credit)
    assert book.outstanding == 1, "a refusal changes nothing"
    book.promise(MAX_CREDIT - 1)
    assert book.outstanding == MAX_CREDIT


@pytest.mark.spec("G5")
def test_the_limit_of_promises_is_on_outstanding_credit():
    book = Book(initial=0)
    for _ in range(3):
        book.promise(MAX_CREDIT)
        book.received += MAX_CREDIT  # as that many calls of receive() would
    assert book.promised == 3 * MAX_CREDIT


# Both ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("N2", "G5")
def test_ledger_and_book_accept_every_permitted_step_of_the_other_side():
    """Five to send against two and then three: neither side ever refuses what the other may do."""
    book, ledger, waiting, trips = Book(initial=2), Ledger(initial=2), 5, []
    while waiting:
        trip = min(waiting, ledger.available)
        for _ in range(trip):
            ledger.spend()
        trips.append(trip)
        waiting -= trip
        for _ in range(trip):
            book.receive()
        book.promise(3)
        ledger.grant(3)
        assert ledger.available == book.outstanding
    assert trips == [2, 3]


@pytest.mark.spec("N2", "G6")
def test_credit_on_its_way_is_outstanding_but_not_yet_to_be_spent():
    book, ledger = Book(initial=1), Ledger(initial=1)
    book.promise(2)
    assert [book.outstanding, ledger.available] == [3, 1]
    ledger.spend()
    with pytest.raises(InvariantViolated):
        ledger.spend()
    book.receive()
    ledger.grant(2)
    assert [book.outstanding, ledger.available] == [2, 2]
