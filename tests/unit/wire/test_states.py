"""The tables of states: every pair of state and step, that both sides of a channel fit together, and that all ends."""

from collections import deque
from itertools import product

import pytest

from headgate.errors import LocalProtocolError, RemoteProtocolError
from headgate.wire.states import (
    CONNECTION_STEPS,
    CONSUMER_STEPS,
    PRODUCER_STEPS,
    ConnectionState,
    ConnectionStep,
    ConsumerState,
    ConsumerStep,
    ProducerState,
    ProducerStep,
    step,
)

TABLES = {
    "producer": (PRODUCER_STEPS, ProducerState, ProducerStep, ProducerState.SENDING),
    "consumer": (CONSUMER_STEPS, ConsumerState, ConsumerStep, ConsumerState.RECEIVING),
    "connection": (CONNECTION_STEPS, ConnectionState, ConnectionStep, ConnectionState.PROVING),
}
PAIRS = [
    pytest.param(table, state, what, id=f"{name}-{state.name}-{what.name}")
    for name, (table, states, steps, _) in TABLES.items()
    for state, what in product(states, steps)
]

# What each side does itself; the rest is the peer's.
PRODUCERS_OWN = {ProducerStep.DATA, ProducerStep.LAST, ProducerStep.ERROR}
CONSUMERS_OWN = {ConsumerStep.CREDIT, ConsumerStep.TASK_EVENT, ConsumerStep.CANCEL}


def reachable(table, start):
    found, todo = {start}, [start]
    while todo:
        state = todo.pop()
        for (before, _), after in table.items():
            if before is state and after not in found:
                found.add(after)
                todo.append(after)
    return found


# One table at a time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "state", "what"), PAIRS)
def test_a_step_is_in_the_table_or_a_protocol_error(table, state, what):
    if (state, what) in table:
        for ours in (False, True):
            assert step(table, state, what, "receiver 3", ours=ours) is table[state, what]
        return
    for ours, kind in ((True, LocalProtocolError), (False, RemoteProtocolError)):
        with pytest.raises(kind) as caught:
            step(table, state, what, "receiver 3", ours=ours)
        said = (what.name.lower().replace("_", " "), state.name.lower().replace("_", " "))
        assert str(caught.value) == "receiver 3: {} while it is {}".format(*said)


@pytest.mark.parametrize(("table", "states", "steps", "start"), TABLES.values(), ids=TABLES)
def test_every_state_can_be_reached_and_every_step_taken(table, states, steps, start):
    assert reachable(table, start) == set(states)
    assert {what for _, what in table} == set(steps)
    assert {type(one) for pair in table for one in pair} == {states, steps}
    assert {type(after) for after in table.values()} == {states}


@pytest.mark.parametrize(
    ("table", "states", "end"),
    [
        (PRODUCER_STEPS, ProducerState, ProducerState.GONE),
        (CONSUMER_STEPS, ConsumerState, ConsumerState.GONE),
        (CONNECTION_STEPS, ConnectionState, ConnectionState.LOST),
    ],
    ids=TABLES,
)
def test_every_path_ends_and_nothing_comes_after_the_end(table, states, end):
    for state in states:
        assert end in reachable(table, state)
    assert [what for before, what in table if before is end] == []


@pytest.mark.parametrize("table", [PRODUCER_STEPS, CONSUMER_STEPS], ids=["producer", "consumer"])
def test_no_path_goes_back(table):
    """A step either stays or goes on towards the end: a channel cannot live for ever by going round."""
    for (before, _), after in table.items():
        assert after is before or before not in reachable(table, after)


# What the tables mean --------------------------------------------------------------------------------------


def test_the_producer_is_gone_when_both_directions_have_ended():
    """The rule of the two directions, said once more in other words, for every state and step."""
    ended = {  # state -> whether (the producer, the consumer) has said its last
        ProducerState.SENDING: (False, False),
        ProducerState.ENDED: (True, False),
        ProducerState.GONE: (True, True),
    }
    named = {which: state for state, which in ended.items()}
    for state, what in product(ProducerState, ProducerStep):
        ours, theirs = ended[state]
        allowed = not (ours if what in PRODUCERS_OWN else theirs)
        if what in {ProducerStep.LAST, ProducerStep.ERROR}:
            ours = True
        elif what is ProducerStep.CANCEL:
            ours = theirs = True  # who is still sending answers, and that is its last
        assert PRODUCER_STEPS.get((state, what)) == (named[ours, theirs] if allowed else None), (state, what)


def test_the_consumer_is_gone_when_both_directions_have_ended():
    ended = {  # state -> whether (the consumer, the producer) has said its last
        ConsumerState.RECEIVING: (False, False),
        ConsumerState.ENDED: (False, True),
        ConsumerState.CANCELLED: (True, False),
        ConsumerState.GONE: (True, True),
    }
    named = {which: state for state, which in ended.items()}
    for state, what in product(ConsumerState, ConsumerStep):
        ours, theirs = ended[state]
        allowed = not (ours if what in CONSUMERS_OWN else theirs)
        if what is ConsumerStep.CREDIT and theirs:
            allowed = False  # for what?
        if what in {ConsumerStep.LAST, ConsumerStep.ERROR}:
            theirs = True
        elif what is ConsumerStep.CANCEL:
            ours = True
        assert CONSUMER_STEPS.get((state, what)) == (named[ours, theirs] if allowed else None), (state, what)


def test_a_connection_is_closed_when_both_sides_have_closed():
    closed = {
        ConnectionState.OPEN: (False, False),
        ConnectionState.WE_CLOSED: (True, False),
        ConnectionState.THEY_CLOSED: (False, True),
        ConnectionState.CLOSED: (True, True),
    }
    named = {which: state for state, which in closed.items()}
    for state, (we, they) in closed.items():
        assert CONNECTION_STEPS.get((state, ConnectionStep.WE_CLOSE)) == (None if we else named[True, they])
        assert CONNECTION_STEPS.get((state, ConnectionStep.THEY_CLOSE)) == (None if they else named[we, True])
        assert (state, ConnectionStep.PROVED) not in CONNECTION_STEPS, "once"
    for what in (ConnectionStep.WE_CLOSE, ConnectionStep.THEY_CLOSE):
        assert (ConnectionState.PROVING, what) not in CONNECTION_STEPS, "nothing is listened to before the proof"


def test_a_connection_can_be_lost_at_any_time_but_once():
    for state in ConnectionState:
        after = CONNECTION_STEPS.get((state, ConnectionStep.LOSE))
        assert after == (None if state is ConnectionState.LOST else ConnectionState.LOST)


# Both sides of a channel -----------------------------------------------------------------------------------

TO_CONSUMER = {  # what a producer's step is at the other side
    ProducerStep.DATA: (ConsumerStep.DATA, ConsumerStep.BACKLOG),
    ProducerStep.LAST: (ConsumerStep.LAST,),
    ProducerStep.ERROR: (ConsumerStep.ERROR,),
}
TO_PRODUCER = {
    ConsumerStep.CREDIT: ProducerStep.CREDIT,
    ConsumerStep.TASK_EVENT: ProducerStep.TASK_EVENT,
    ConsumerStep.CANCEL: ProducerStep.CANCEL,
}
ON_THE_WAY = 3  # frames in each direction: enough for every crossing of two ends with something between


@pytest.mark.spec("N1", "N8")
def test_two_sides_that_follow_their_tables_never_cause_a_protocol_error():
    """Every order in which two correct sides can speak and listen, with up to three frames on their way each way.

    Whatever crosses on the way must be in the other's table; and when nothing is on its way any more and somebody has
    gone, both have.
    """
    start = (ProducerState.SENDING, ConsumerState.RECEIVING, (), ())
    found, todo = {start}, deque([start])
    gone = 0
    while todo:
        producer, consumer, down, up = todo.popleft()
        after = []
        for what in PRODUCERS_OWN:
            if len(down) < ON_THE_WAY and (producer, what) in PRODUCER_STEPS:
                after += [(PRODUCER_STEPS[producer, what], consumer, (*down, heard), up) for heard in TO_CONSUMER[what]]
        for what in CONSUMERS_OWN:
            if len(up) < ON_THE_WAY and (consumer, what) in CONSUMER_STEPS:
                after.append((producer, CONSUMER_STEPS[consumer, what], down, (*up, TO_PRODUCER[what])))
        if down:
            assert (consumer, down[0]) in CONSUMER_STEPS, f"{consumer} hears {down[0]} of a correct producer"
            after.append((producer, CONSUMER_STEPS[consumer, down[0]], down[1:], up))
        if up:
            assert (producer, up[0]) in PRODUCER_STEPS, f"{producer} hears {up[0]} of a correct consumer"
            answers = up[0] is ProducerStep.CANCEL and producer is ProducerState.SENDING
            heard = (*down, ConsumerStep.ERROR) if answers else down
            after.append((PRODUCER_STEPS[producer, up[0]], consumer, heard, up[1:]))
        if not down and not up:
            assert (producer is ProducerState.GONE) == (consumer is ConsumerState.GONE)
            gone += producer is ProducerState.GONE
        for one in after:
            if one not in found:
                found.add(one)
                todo.append(one)
    assert gone == 1
    assert len(found) > 500, "the search went somewhere"
