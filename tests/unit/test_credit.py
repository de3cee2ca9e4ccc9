"""Credit, counted by the sender and by the receiver."""

import pytest

from headgate.errors import InvariantViolated, RemoteProtocolError
from headgate.wire import Book, Ledger
from headgate.wire.frames import MAX_CREDIT


def state(book: Book) -> tuple[int, int, int, int]:
    return book.reserved, book.unannounced, book.credit_at_sender, book.backlog


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
def test_the_limit_is_on_what_is_open_not_on_all_there_ever_was():
    ledger = Ledger(initial=0)
    for _ in range(3):
        ledger.grant(MAX_CREDIT)
        ledger.sent += MAX_CREDIT  # as that many calls of spend() would
    assert ledger.granted == 3 * MAX_CREDIT


# The receiver ----------------------------------------------------------------------------------------------


@pytest.mark.spec("G5")
def test_its_own_buffers_are_credit_from_the_start():
    book = Book(exclusive=2)
    assert state(book) == (2, 0, 2, 0)
    assert book.wanted == 0
    assert book.take_unannounced() == 0


@pytest.mark.spec("G5")
@pytest.mark.parametrize(
    ("exclusive", "backlog", "reserved", "wanted"),
    [(2, 0, 0, 0), (2, 5, 0, 5), (2, 5, 3, 2), (2, 5, 5, 0), (2, 5, 6, 0), (0, 0, 0, 0), (0, 3, 0, 3), (0, 0, 2, 0)],
)
def test_it_wants_backlog_and_initial_credit(exclusive, backlog, reserved, wanted):
    book = Book(exclusive)
    book.backlog = backlog
    book.reserve(reserved)
    assert book.wanted == wanted


@pytest.mark.spec("G5")
def test_a_buffer_in_use_is_wanted_again():
    book = Book(exclusive=2)
    book.receive(backlog=0)
    assert state(book) == (1, 0, 1, 0)
    assert book.wanted == 1
    book.reserve()
    assert state(book) == (2, 1, 1, 0)
    assert book.wanted == 0


@pytest.mark.spec("G5")
def test_credit_is_announced_once_and_together():
    book = Book(exclusive=1)
    book.reserve()
    book.reserve(3)
    assert book.credit_at_sender == 1
    assert book.take_unannounced() == 4
    assert book.credit_at_sender == 5
    assert book.take_unannounced() == 0
    assert state(book) == (5, 0, 5, 0)


@pytest.mark.spec("G5")
def test_only_what_was_not_promised_is_given_up():
    book = Book(exclusive=2)
    book.reserve(3)
    book.give_up(2)
    assert state(book) == (3, 1, 2, 0)
    with pytest.raises(InvariantViolated, match="2 buffers are taken back, but only 1 are not promised"):
        book.give_up(2)
    assert state(book) == (3, 1, 2, 0), "a refusal changes nothing"
    book.take_unannounced()
    with pytest.raises(InvariantViolated):
        book.give_up(1)
    book.give_up(0)
    assert state(book) == (3, 0, 3, 0)


@pytest.mark.spec("G6", "N8")
@pytest.mark.parametrize("exclusive", [0, 2])
def test_data_without_credit_is_refused(exclusive):
    book = Book(exclusive)
    for left in reversed(range(exclusive)):
        book.receive(backlog=left)
    book.reserve(5)  # set aside, but the sender cannot know
    before = state(book)
    with pytest.raises(RemoteProtocolError, match="data came without credit"):
        book.receive(backlog=9)
    assert state(book) == before, "a refusal changes nothing"
    assert book.take_unannounced() == 5
    book.receive(backlog=9)
    assert state(book) == (4, 0, 4, 9)


@pytest.mark.spec("G5")
def test_the_last_backlog_counts():
    book = Book(exclusive=2)
    book.receive(backlog=7)
    book.receive(backlog=3)
    assert [book.backlog, book.wanted] == [3, 5]


# Both ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("N2", "G5")
def test_a_buffer_goes_round():
    """Two buffers of its own and one floating, five to send: what is sent never exceeds what is set aside."""
    book, ledger, waiting, free, in_use = Book(exclusive=2), Ledger(initial=2), 5, 1, 0
    trips = []
    while waiting:
        trip = 0
        while waiting and ledger.available:
            ledger.spend()
            waiting, in_use, trip = waiting - 1, in_use + 1, trip + 1
            book.receive(backlog=waiting)
        trips.append(trip)
        free, in_use = free + in_use, 0
        taken = min(free, book.wanted)
        book.reserve(taken)
        free -= taken
        if credit := book.take_unannounced():
            ledger.grant(credit)
        assert ledger.available == book.credit_at_sender == book.reserved
    assert trips == [2, 3]


@pytest.mark.spec("N8")
@pytest.mark.parametrize("credit", [0, -1])
def test_a_grant_of_nothing_is_the_peers_mistake(credit):
    with pytest.raises(RemoteProtocolError, match=f"a credit of {credit}"):
        Ledger(initial=1).grant(credit)


@pytest.mark.spec("G5")
def test_a_backlog_alone_changes_what_is_wanted_and_nothing_else():
    book = Book(exclusive=2)
    book.learn(backlog=5)
    assert (book.wanted, book.reserved, book.credit_at_sender) == (5, 2, 2)
