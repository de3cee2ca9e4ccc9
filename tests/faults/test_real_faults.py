"""Real processes that are killed, stopped and left, and a real network that is cut: typed errors, soon, and no leak."""

import os
import signal
import time

import pytest
from tests.faults import support_faults as faults
from tests.faults.support_faults import PATIENCE_S, Plan, Reading, Report, Writing, worker
from tests.support.threads import Thread
from tests.support.waiting import wait_until

from headgate.bench.processes import START_S, Child, child
from headgate.errors import Cancelled, ProducerFailed, TransportError

QUICK = {"network.idle_timeout": "1 s"}


def reader_address(environment) -> str:
    """Where the one who reads from this worker has its end of the connection."""
    [connection] = environment.statistics().network.connections
    return connection.peer


def checked(process: Child) -> Report:
    """What a child says in the end: all its segments are back."""
    report = process.result(PATIENCE_S)
    assert report.segments_missing == 0
    return report


# A process is killed.


@pytest.mark.spec("G8")
def test_the_producer_is_killed():
    with child(faults.produce, Plan(0)) as producer, worker(Plan(1)) as (environment, _):
        address = producer.receive(START_S)
        reading = Reading(environment, address)
        reading.read(100)
        os.kill(producer.pid, signal.SIGKILL)
        with pytest.raises(TransportError) as caught:
            reading.read()
        assert caught.value.peer == str(address)
        reading.close()
        wait_until(lambda: not environment.statistics().network.connections, "the end of the connection")


@pytest.mark.spec("G8")
def test_the_consumer_is_killed():
    with worker(Plan(0)) as (environment, address):
        writing = Writing(environment)
        with child(faults.consume, Plan(1), address) as consumer:
            thread = Thread(writing.write)
            consumer.receive(START_S)
            peer = reader_address(environment)
            os.kill(consumer.pid, signal.SIGKILL)
            with pytest.raises(Cancelled, match="it has no reader left") as caught:
                thread.end()
            assert peer in str(caught.value)
        writing.close()
        memory = environment.memory.statistics()
        assert memory.free == memory.total


@pytest.mark.spec("G8")
def test_the_producer_is_killed_before_it_is_asked():
    """Nobody listens at the address any more: an error, not a wait for something to come."""
    with worker(Plan(1)) as (environment, _):
        with child(faults.produce, Plan(0)) as producer:
            address = producer.receive(START_S)
        reading = Reading(environment, address)
        with pytest.raises(TransportError) as caught:
            reading.read()
        assert str(address) in str(caught.value)
        reading.close()


# A process is stopped, and goes on.


@pytest.mark.spec("G8", "N4")
def test_the_producer_is_stopped_for_too_long():
    with child(faults.produce, Plan(0, QUICK)) as producer, worker(Plan(1, QUICK)) as (environment, _):
        address = producer.receive(START_S)
        reading = Reading(environment, address)
        reading.read(100)
        os.kill(producer.pid, signal.SIGSTOP)
        with pytest.raises(TransportError, match=r"nothing was received for 1 s") as caught:
            reading.read()
        assert caught.value.peer == str(address)
        reading.close()
        os.kill(producer.pid, signal.SIGCONT)
        report = checked(producer)
        assert report.error == "Cancelled"
        assert "it has no reader left" in report.text
        assert "127.0.0.1:" in report.text


@pytest.mark.spec("G8", "N4")
def test_the_consumer_is_stopped_for_too_long():
    with worker(Plan(0, QUICK)) as (environment, address):
        writing = Writing(environment)
        with child(faults.consume, Plan(1, QUICK), address) as consumer:
            thread = Thread(writing.write)
            consumer.receive(START_S)
            peer = reader_address(environment)
            os.kill(consumer.pid, signal.SIGSTOP)
            with pytest.raises(Cancelled, match=r"nothing was received for 1 s|accepted no bytes for 1 s") as caught:
                thread.end()
            assert peer in str(caught.value)
            os.kill(consumer.pid, signal.SIGCONT)
            report = checked(consumer)
            assert report.error == "TransportError"
            assert str(address) in report.text
        writing.close()


@pytest.mark.spec("N4", "T5")
def test_a_short_stop_harms_nothing():
    """Both go on where they were."""
    with child(faults.produce, Plan(0), 3000) as producer, worker(Plan(1)) as (environment, _):
        reading = Reading(environment, producer.receive(START_S))
        for count in range(200, 1000, 200):
            reading.read(count)
            os.kill(producer.pid, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(producer.pid, signal.SIGCONT)
        reading.read()
        assert reading.records == 3000
        reading.close()
        assert checked(producer) == Report(3000, "", "", 0)


# A process leaves.


@pytest.mark.spec("G8")
@pytest.mark.parametrize("how", ["exit", "close"])
def test_the_producer_leaves_in_the_middle(how):
    """By an exit without a word, or in good order; but it has not finished, so its consumer must not believe so."""
    with child(faults.produce_and_leave, Plan(0), how) as producer, worker(Plan(1)) as (environment, _):
        address = producer.receive(START_S)
        reading = Reading(environment, address)
        with pytest.raises((TransportError, Cancelled, ProducerFailed)) as caught:
            reading.read()
        assert not reading.finished
        if how == "exit":
            assert isinstance(caught.value, TransportError)
            assert caught.value.peer == str(address)
        reading.close()


@pytest.mark.spec("G8")
@pytest.mark.parametrize("how", ["exit", "close"])
def test_the_consumer_leaves_in_the_middle(how):
    with worker(Plan(0)) as (environment, address):
        writing = Writing(environment)
        with child(faults.consume_and_leave, Plan(1), address, how) as consumer:
            thread = Thread(writing.write)
            consumer.receive(START_S)
            with pytest.raises(Cancelled, match="it has no reader left"):
                thread.end()
        writing.close()


@pytest.mark.spec("T3", "T5")
def test_nothing_happens():
    """The same without a fault: so each test above fails for its own reason."""
    with child(faults.produce, Plan(0), 3000) as producer, worker(Plan(1)) as (environment, _):
        reading = Reading(environment, producer.receive(START_S))
        reading.read()
        assert reading.records == 3000
        reading.close()
        assert checked(producer) == Report(3000, "", "", 0)
