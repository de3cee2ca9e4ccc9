"""The schedule of an experiment: every time belongs to exactly one phase."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.experiments.schedule import FOLLOW, Phase, PhaseSchedule, neighbour_phases

lengths = st.floats(0.1, 600.0)
schedules = st.builds(
    PhaseSchedule,
    st.lists(st.builds(Phase, st.just("phase"), neighbour=st.booleans()), min_size=1, max_size=8).map(tuple),
    lengths,
    st.floats(0.1, 10.0),
    st.booleans(),
)


@pytest.mark.spec("B3")
def test_follow_has_the_phases_of_the_specification():
    assert [(phase.producer, phase.consumer) for phase in FOLLOW] == [(0.6, 1), (1, 0.3), (1, 1), (1, 0.3), (1, 1)]
    assert [phase.expected for phase in FOLLOW] == [0.6, 0.3, 1, 0.3, 1]
    assert len({phase.name for phase in FOLLOW}) == 5


def test_the_lead_has_no_throttle():
    schedule = PhaseSchedule(FOLLOW, phase_s=10, lead_s=2)
    assert schedule.number_at(1.99) is None
    assert schedule.at(1.99).expected == 1
    assert schedule.at(2.0) == FOLLOW[0]
    assert schedule.at(11.99) == FOLLOW[0]
    assert schedule.at(12.0) == FOLLOW[1]


@given(schedules, st.floats(0, 0.9999))
def test_every_time_is_in_the_phase_whose_bounds_contain_it(schedule, share):
    second = share * schedule.end_s
    number = schedule.number_at(second)
    if number is None:
        assert second <= schedule.lead_s
    else:
        begin_s, end_s = schedule.bounds(number)
        assert begin_s - 1e-6 <= second <= end_s + 1e-6
    assert not schedule.is_over(second)


@given(schedules)
def test_phases_follow_each_other_without_a_gap(schedule):
    bounds = [schedule.bounds(number) for number in range(len(schedule.phases))]
    assert bounds[0][0] == schedule.lead_s
    assert all(one[1] == pytest.approx(other[0]) for one, other in pairwise(bounds))
    assert bounds[-1][1] == pytest.approx(schedule.end_s)


def test_a_continuing_schedule_alternates_the_last_two_phases():
    schedule = PhaseSchedule(FOLLOW, phase_s=1, lead_s=1, goes_on=True)
    assert [schedule.number_at(1.5 + number) for number in range(9)] == [0, 1, 2, 3, 4, 3, 4, 3, 4]
    assert not schedule.is_over(1e6)


def test_a_schedule_ends_shortly_after_its_last_phase():
    schedule = PhaseSchedule(FOLLOW, phase_s=1, lead_s=1)
    assert schedule.number_at(99) == 4
    assert not schedule.is_over(schedule.end_s)
    assert schedule.is_over(schedule.end_s + 1)


def test_the_time_until_a_neighbour():
    schedule = PhaseSchedule(neighbour_phases(2), phase_s=2, lead_s=1)
    assert [round(schedule.until_neighbour_s(second), 6) for second in (0, 2.5, 3, 4.9, 5.5, 7)] == [
        3,
        0.5,
        0,
        0,
        1.5,
        0,
    ]
    assert schedule.until_neighbour_s(9.5) is None
    assert PhaseSchedule(FOLLOW, phase_s=1, lead_s=1).until_neighbour_s(0) is None


@given(st.floats(0.01, 100))
def test_the_lead_has_several_stretches_to_choose_full_speed_from(lead_s):
    schedule = PhaseSchedule(FOLLOW, phase_s=1, lead_s=lead_s)
    assert schedule.slice_s <= 0.5
    assert schedule.slice_s * 4 <= lead_s + 1e-9
