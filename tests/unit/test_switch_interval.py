"""The switch interval that all workers of a process share."""

import sys

import pytest
from tests.support.cluster import Cluster

from headgate.switch_interval import SwitchInterval


def near(interval_s):
    return pytest.approx(interval_s, abs=1e-6)  # it is stored in microseconds


def test_the_worker_that_began_last_decides_and_the_last_to_end_restores():
    before_s = sys.getswitchinterval()
    one, other = SwitchInterval(0.001), SwitchInterval(0.002)
    assert sys.getswitchinterval() == near(0.002)
    one.end()
    one.end()
    assert sys.getswitchinterval() == near(0.002), "it has ended, twice"
    other.end()
    assert sys.getswitchinterval() == before_s


def test_workers_set_the_interval_of_their_settings():
    before_s = sys.getswitchinterval()
    with Cluster(execution__switch_interval="1 ms"):
        assert sys.getswitchinterval() == near(0.001)
    assert sys.getswitchinterval() == before_s
