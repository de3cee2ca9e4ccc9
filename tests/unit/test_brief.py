"""System calls that keep the interpreter: they answer and fail as Python's own do."""

import contextlib
import ctypes
import os
import select
import socket
import threading

import pytest
from tests.support import JOIN_S, Thread

from headgate.net import brief

pytestmark = pytest.mark.skipif(not brief.USABLE, reason="for Linux")


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def slab():
    memory = (ctypes.c_char * brief.SMALL_READ_BYTES)()
    return memory, ctypes.addressof(memory)


def test_a_read_waits_for_nothing_and_sees_the_end(pair, slab):
    ours, theirs = pair
    memory, address = slab
    with pytest.raises(BlockingIOError):
        brief.receive(ours.fileno(), address)
    theirs.send(b"hello")
    assert brief.receive(ours.fileno(), address) == 5
    assert memory.raw[:5] == b"hello"
    theirs.close()
    assert brief.receive(ours.fileno(), address) == 0


def test_a_write_waits_for_nothing_and_raises_no_signal(pair):
    ours, theirs = pair
    piece = bytes(brief.SMALL_WRITE_BYTES)
    ours.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(piece)
    with pytest.raises(BlockingIOError):
        brief.send(ours.fileno(), piece)
    theirs.close()
    with pytest.raises(BrokenPipeError):
        brief.send(ours.fileno(), b"x")


def test_a_look_sees_what_an_epoll_would(pair):
    ours, theirs = pair
    with select.epoll() as epoll:
        look = brief.Look(epoll.fileno())
        epoll.register(ours.fileno(), select.EPOLLIN)
        epoll.register(theirs.fileno(), select.EPOLLOUT)
        for send in (b"", b"x"):
            theirs.send(send)
            assert sorted(look()) == sorted(epoll.poll(0))
        assert len(look()) == 2


def test_a_look_that_fails_sees_nothing():
    epoll = select.epoll()
    look = brief.Look(epoll.fileno())
    epoll.close()
    assert look() == []


def test_of_many_descriptors_a_look_sees_as_many_as_there_is_room_for():
    bells = [os.eventfd(1) for _ in range(100)]
    with select.epoll() as epoll:
        for bell in bells:
            epoll.register(bell, select.EPOLLIN)
        seen = brief.Look(epoll.fileno())()
        assert len(seen) == 64
        assert {fd for fd, _ in seen} <= set(bells)
    for bell in bells:
        os.close(bell)


def test_an_alarm_that_is_put_off_wakes_nobody_and_one_that_is_brought_forward_does():
    alarm, rung = brief.Alarm(), threading.Event()
    alarm.set(1)
    alarm.set(3600 * 10**9)  # it may have rung, but nobody heard it
    sleeper = Thread(lambda: (alarm.wait(), rung.set()))
    assert not rung.wait(0.01)
    alarm.set(1_000)
    assert rung.wait(JOIN_S)
    sleeper.end()
    alarm.close()
    alarm.set(1)  # does nothing


def test_no_alarm_where_there_are_no_descriptors_left(monkeypatch):
    monkeypatch.setattr(brief, "_timerfd_create", lambda *_: (ctypes.set_errno(24), -1)[1])
    with pytest.raises(OSError, match="Too many open files"):
        brief.Alarm()
