"""Whatever is written, with whatever memory, and however readers come, read and go: each gets its own, in order."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.blocking_partition import SIZE, Reading, Rig

from headgate.buffer import UNCHANNELLED
from headgate.config import Compression
from headgate.output import StepResult
from headgate.record import EndOfPartition, UserEvent
from headgate.record.element import encode_event

CHANNELS = 3
END = encode_event(EndOfPartition())

puts = st.tuples(st.integers(UNCHANNELLED, CHANNELS - 1), st.binary(max_size=SIZE))
events = st.builds(UserEvent, st.just("note"), st.binary(max_size=8))
written = st.lists(st.one_of(puts, events), max_size=40)
acts = st.lists(
    st.tuples(st.sampled_from(["attach", "step", "take", "hold", "drop", "leave"]), st.integers(0, 7)), max_size=80
)


def write(rig, things):
    """What each subpartition is to give."""
    wanted = [[] for _ in range(CHANNELS)]
    for one in things:
        if isinstance(one, UserEvent):
            rig.partition.add_event(one)
            channel, data = UNCHANNELLED, encode_event(one)
        else:
            channel, data = one
            rig.put(channel, data)
            if not data:
                continue
        for index in range(CHANNELS) if channel == UNCHANNELLED else (channel,):
            wanted[index].append(data)
    rig.partition.finish()
    return [[*one, END] for one in wanted]


def check(rig, most):
    pool = rig.ahead.pool
    assert pool.held <= pool.size
    assert pool.in_use == sum(
        len([one for one in (*reading.reader._ready, *reading.held) if one.buffer.segment is not None])
        for reading in rig.readings
    )
    assert all(reading.reader.readable <= most for reading in rig.readings)
    for reading in rig.readings:
        if not reading.reader.closed:
            assert reading.reader.notified is bool(reading.reader.readable)


@pytest.mark.spec("P3", "M4", "M9")
@settings(deadline=None)  # the first codec is imported on the way
@given(
    things=written,
    script=acts,
    segments=st.integers(CHANNELS + 3, 24),
    most=st.integers(1, 8),
    compression=st.sampled_from(Compression),
)
def test_every_reader_gets_its_own_in_order(things, script, segments, most, compression):
    with (
        tempfile.TemporaryDirectory() as directory,
        Rig(directory, CHANNELS, segments=segments, most=most, compression=compression) as rig,
    ):
        wanted = write(rig, things)
        assert rig.used == 0
        rig.readings, found = [], []
        for act, number in script:
            if act == "attach":
                rig.readings.append(Reading(rig, number % CHANNELS))
                found.append([])
            elif act == "step":
                rig.step()
            elif rig.readings:
                which = number % len(rig.readings)
                reading = rig.readings[which]
                if act == "drop":
                    reading.drop()
                elif act == "leave":
                    reading.leave()
                elif not reading.reader.closed and (one := reading.poll()) is not None:
                    found[which].append(one)
                    if act == "take":
                        reading.drop()
            check(rig, most)
        for reading, some in zip(rig.readings, found, strict=True):
            assert some == wanted[reading.index][: len(some)]
            reading.drop()
        for _ in range(1000):  # the rest, which must come to an end
            for reading, some in zip(rig.readings, found, strict=True):
                while not reading.reader.closed and (one := reading.take()) is not None:
                    some.append(one)
            if rig.step() is not StepResult.READ:
                break
        for reading, some in zip(rig.readings, found, strict=True):
            if not reading.reader.closed:
                assert some == wanted[reading.index]
                assert reading.reader.drained
                assert reading.reader.backlog == 0
