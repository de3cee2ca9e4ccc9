"""Writers, readers, flusher and cancellation on threads that take turns as often as the interpreter can."""

import pytest
from tests.support import races
from tests.support.threads import switching_often

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _turns():
    with switching_often():
        yield


@pytest.mark.spec("T2", "T5", "M8", "M9")
def test_small_exchanges():
    for seed in range(600):
        races.small_exchange(seed)


@pytest.mark.spec("T5", "W4", "M9")
def test_the_flusher_beside_a_writer():
    for seed in range(300):
        races.flushed_exchange(seed)


@pytest.mark.spec("T5", "G2", "G3", "G4")
def test_several_writers_and_a_union_of_gates():
    for seed in range(150):
        races.fan_in(seed)


@pytest.mark.spec("M6", "M7", "M9")
def test_batches_dropped_on_another_thread():
    for seed in range(150):
        races.dropped_batches(seed)


@pytest.mark.spec("G4", "G7", "M9")
@pytest.mark.parametrize("cancel", races.CANCELS)
@pytest.mark.parametrize("call", races.CALLS)
def test_cancelling_races_with(call, cancel):
    for seed in range(60):
        races.cancelled(call, cancel, seed)
