"""The check of `_locked` methods notices a call without the lock, also one that a thread of its own makes."""

import threading

import pytest
from tests.support import locks

from headgate.buffer import Arena, NetworkPool
from headgate.sync import DebugLock, ThreadSync


@pytest.fixture
def violations(monkeypatch):
    """What the check found, kept from the fixture that fails a test for it."""
    monkeypatch.setattr(locks, "violations", found := [])
    return found


@pytest.fixture
def pool():
    memory = NetworkPool(Arena(segment_size=64, count=4), ThreadSync())
    pool = memory.create_pool("gate", required=1)
    yield pool
    pool.destroy()


def test_every_lock_of_the_exchange_is_a_debug_lock_in_tests(pool):
    assert type(pool.lock) is DebugLock


def test_a_call_without_the_lock_is_noticed(pool, violations):
    with pytest.raises(AssertionError, match=r"LocalPool\.try_request_locked is called by MainThread without the lock"):
        pool.try_request_locked()
    assert len(violations) == 1
    with pool.lock:
        segment = pool.try_request_locked()
        pool.recycle_locked(segment, -1)
    assert len(violations) == 1


def test_a_call_while_another_thread_holds_the_lock_is_noticed(pool, violations):
    def call():
        with pytest.raises(AssertionError, match="without the lock"):
            pool.try_request_locked()

    other = threading.Thread(target=call, name="other")
    with pool.lock:
        other.start()
        other.join()
    assert violations == ["LocalPool.try_request_locked is called by other without the lock"]
