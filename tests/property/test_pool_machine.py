"""Any sequence of calls on a network pool and its local pools, against a simple model.

The model counts: what each pool holds, has at hand and has in use, and who waits. It takes from the real pools
only which segment was handed to whom, and checks that it was theirs to have. Sharing out is recomputed from its
definition, in fractions.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from tests.support.buffers import give, make_network, wrap
from tests.support.syncs import ScriptedSync

from headgate.buffer import (
    UNCHANNELLED,
    Answer,
    BufferReader,
    BufferSlice,
    LocalPool,
    Segment,
)
from headgate.errors import Cancelled, InsufficientBuffers, LocalProtocolError, RequestTimeout
from headgate.sync import Wake

TOTAL = 7


@dataclass(eq=False)
class PoolModel:
    pool: LocalPool
    required: int
    maximum: int
    channels: int
    limit: int
    overdraft: int
    size: int = 0
    available: int = 0
    in_use: list[int] = field(default_factory=list)  # the channel of each
    lent: int = 0
    listeners: list["ListenerModel"] = field(default_factory=list)
    destroyed: bool = False

    @property
    def held(self) -> int:
        return self.available + len(self.in_use)

    def below_limit(self, channel: int, extra: int = 0) -> bool:
        return channel == UNCHANNELLED or self.in_use.count(channel) < self.limit + extra


@dataclass(eq=False)
class Held:
    """A segment in use: its slice until that is released, and the views that user code keeps."""

    owner: PoolModel
    segment: Segment
    channel: int
    part: BufferSlice | None = None
    released: bool = False
    views: list[memoryview] = field(default_factory=list)


class ListenerModel:
    """A listener of the real pool; tells the model what it is offered."""

    def __init__(self, machine: "PoolMachine", owner: PoolModel, channel: int, answers: list[Answer]) -> None:
        self.machine = machine
        self.owner = owner
        self.channel = channel
        self.answers = answers
        self.got: list[Segment] = []
        self.owed_wakes = 0
        self.cancelled = False

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        answer = self.answers.pop(0) if self.answers else Answer.NOT_USED
        self.machine.offered(self, segment, answer)
        self.owed_wakes += 1
        return answer, self.woken

    def cancel_locked(self) -> Wake:
        assert not self.cancelled, "cancelled once"
        self.cancelled = True
        self.owed_wakes += 1
        return self.woken

    def woken(self) -> None:
        assert not self.machine.network.lock.locked(), "wake-ups are performed after the lock"
        self.owed_wakes -= 1


class PoolMachine(RuleBasedStateMachine):
    pools = Bundle("pools")
    segments = Bundle("segments")
    exclusives = Bundle("exclusives")

    def __init__(self) -> None:
        super().__init__()
        self.sync = ScriptedSync()
        self.network = make_network(TOTAL, 16, self.sync)
        self.live: list[PoolModel] = []  # in the order they were made
        self.gone: list[PoolModel] = []
        self.held: dict[int, Held] = {}
        self.exclusive: list[list[Segment]] = []
        self.promised = 0  # exclusive, given or still waited for
        self.all_listeners: list[ListenerModel] = []

    # The model.

    @property
    def free(self) -> int:
        exclusive = sum(len(group) for group in self.exclusive)
        return TOTAL - exclusive - sum(pool.held for pool in self.live + self.gone)

    def share_out(self) -> None:
        spare = TOTAL - self.promised - sum(pool.required for pool in self.live)
        parts = [min(spare, pool.maximum - pool.required) for pool in self.live]
        shared = Fraction(min(spare, sum(parts)), max(1, sum(parts)))
        for number, pool in enumerate(self.live):
            before, now = sum(parts[:number]), sum(parts[: number + 1])
            pool.size = pool.required + int(shared * now) - int(shared * before)
            # What is at hand and too much is given back at once; what is in use, when it returns.
            pool.available = max(0, min(pool.available, pool.size - len(pool.in_use)))

    def usable(self, pool: PoolModel, channel: int, extra: int = 0) -> bool:
        if not pool.below_limit(channel, extra):
            return False
        if pool.available > 0:
            return True
        if pool.held < pool.size:
            return self.free > 0
        # An overdraft takes nothing that another pool may take.
        theirs = sum(max(0, other.size - other.held) for other in self.live)
        return pool.held < pool.size + extra and self.free > theirs

    def take(self, pool: PoolModel, segment: Segment, channel: int) -> Held:
        assert segment.index not in self.held, "a segment has one user"
        if pool.available:
            pool.available -= 1
        pool.in_use.append(channel)
        held = self.held[segment.index] = Held(pool, segment, channel)
        return held

    def offered(self, listener: ListenerModel, segment: Segment, answer: Answer) -> None:
        pool = listener.owner
        assert not pool.destroyed
        position = pool.listeners.index(listener)
        for earlier in pool.listeners[:position]:
            assert not pool.below_limit(earlier.channel), "somebody was passed over"
        assert pool.below_limit(listener.channel)
        assert pool.available > 0 or pool.held < pool.size, "past the size of the pool"
        pool.listeners.pop(position)
        if answer is Answer.NOT_USED:
            if pool.available == 0:
                pool.available += 1  # from the network pool, and kept
            return
        self.take(pool, segment, listener.channel)
        listener.got.append(segment)
        if answer is Answer.USED_MORE_WANTED:
            pool.listeners.append(listener)

    def came_back(self, held: Held) -> None:
        pool = held.owner
        del self.held[held.segment.index]
        too_many = pool.destroyed or pool.held > pool.size
        pool.in_use.remove(held.channel)
        if not too_many:
            pool.available += 1

    def free_if_unused(self, held: Held) -> None:
        if held.released and not held.views:
            self.came_back(held)

    # Pools come and go.

    @initialize(target=pools, channels=st.integers(0, 2), limit=st.integers(1, 2), overdraft=st.integers(0, 2))
    def begin(self, channels: int, limit: int, overdraft: int) -> object:
        first = self.create(0, None, channels, limit, overdraft)
        return multiple(first, self.create(1, 2, 0, None, 0))

    @rule(
        target=pools,
        required=st.integers(0, 3),
        more=st.none() | st.integers(-2, 7),
        channels=st.integers(0, 2),
        limit=st.integers(1, 2) | st.integers(1, TOTAL) | st.none(),
        overdraft=st.integers(0, 2),
    )
    def create(self, required: int, more: int | None, channels: int, limit: int | None, overdraft: int) -> object:
        maximum = None if more is None else max(0, required + more)
        fits = self.promised + sum(pool.required for pool in self.live) + required <= TOTAL
        largest = TOTAL if maximum is None else min(TOTAL, max(required, maximum))
        # The model goes first: the real pools offer segments while they change.
        model = PoolModel(None, required, largest, channels, limit or TOTAL, overdraft)  # type: ignore[arg-type]
        if fits:
            self.live.append(model)
            self.share_out()
        try:
            model.pool = self.network.create_pool(
                f"pool-{len(self.live)}",
                required=required,
                maximum=maximum,
                channels=channels,
                max_per_channel=limit,
                overdraft=overdraft,
            )
        except InsufficientBuffers:
            assert not fits
            return multiple()
        assert fits
        return model

    @rule(model=consumes(pools))
    def destroy(self, model: PoolModel) -> None:
        waiting = list(model.listeners)
        self.live.remove(model)
        self.gone.append(model)
        model.destroyed = True
        model.available = 0
        model.listeners.clear()
        self.share_out()
        model.pool.destroy()
        assert all(listener.cancelled for listener in waiting)
        with self.network.lock, pytest.raises(Cancelled):
            model.pool.try_request_locked()

    # Segments are asked for.

    def channel_of(self, model: PoolModel, channel: int) -> int:
        return channel % model.channels if model.channels and channel >= 0 else UNCHANNELLED

    @rule(target=segments, model=pools, channel=st.integers(-1, 2), overdraft=st.booleans())
    def request(self, model: PoolModel, channel: int, overdraft: bool) -> object:
        channel = self.channel_of(model, channel)
        expected = self.usable(model, channel, model.overdraft if overdraft else 0)
        with self.network.lock:
            segment = model.pool.try_request_locked(channel, overdraft=overdraft)
        assert (segment is not None) == expected
        return multiple() if segment is None else self.take(model, segment, channel)

    @rule(target=segments, model=pools, overdraft=st.booleans())
    def request_all(self, model: PoolModel, overdraft: bool) -> object:
        taken = []
        with self.network.lock:
            while (segment := model.pool.try_request_locked(overdraft=overdraft)) is not None:
                taken.append(self.take(model, segment, UNCHANNELLED))
        assert not self.usable(model, UNCHANNELLED, model.overdraft if overdraft else 0)
        return multiple(*taken)

    @rule(target=segments, model=pools, channel=st.integers(-1, 2), interrupted=st.booleans())
    def request_and_wait(self, model: PoolModel, channel: int, interrupted: bool) -> object:
        channel = self.channel_of(model, channel)
        expected = self.usable(model, channel)
        self.sync.on_wait = self.interrupt if interrupted else lambda: None
        try:
            segment = model.pool.request(channel, timeout_s=1)
        except RequestTimeout:
            assert not expected
            assert not interrupted
            return multiple()
        except KeyboardInterrupt:
            assert not expected
            return multiple()
        assert expected
        return self.take(model, segment, channel)

    @rule(
        target=segments,
        model=pools,
        channel=st.integers(-1, 2),
        waiting=st.lists(st.lists(st.sampled_from(Answer), min_size=1, max_size=3), min_size=1, max_size=3),
    )
    def listen(self, model: PoolModel, channel: int, waiting: list[list[Answer]]) -> object:
        """Take what there is for a channel, then wait for more."""
        channel = self.channel_of(model, channel)
        taken = []
        with self.network.lock:
            while (segment := model.pool.try_request_locked(channel)) is not None:
                assert self.usable(model, channel)
                taken.append(self.take(model, segment, channel))
            for answers in waiting:
                listener = ListenerModel(self, model, channel, list(answers))
                self.all_listeners.append(listener)
                model.listeners.append(listener)
                model.pool.listen_locked(listener, channel)
        return multiple(*taken)

    @rule(target=segments)
    def adopt(self) -> object:
        """What listeners got can be released and lent like all else."""
        got = [self.held[segment.index] for listener in self.all_listeners for segment in listener.got]
        for listener in self.all_listeners:
            listener.got.clear()
        return multiple(*got)

    # Segments come back, in any order.

    def slice_of(self, held: Held) -> BufferSlice:
        if held.part is None:
            buffer = wrap(held.owner.pool, held.segment, held.channel)
            with self.network.lock:
                reader = BufferReader(buffer)
                buffer.append(b"bytes")
                buffer.finish_locked()
                held.part = reader.take_locked()
        assert held.part is not None
        return held.part

    @rule(held=segments)
    def release(self, held: Held) -> None:
        if held.released:
            return
        part = self.slice_of(held)
        held.released = True
        self.free_if_unused(held)
        part.release()
        with pytest.raises(LocalProtocolError):
            part.release()

    @rule(held=segments)
    def lend(self, held: Held) -> None:
        if held.released:
            return
        pool = held.owner
        part = self.slice_of(held)
        lendable = not pool.destroyed and pool.lent * 2 < pool.size - pool.required
        if lendable:
            pool.lent += 1
            pool.in_use[pool.in_use.index(held.channel)] = UNCHANNELLED
            held.channel = UNCHANNELLED
        view = part.lend()
        assert (view is not None) == lendable
        if view is not None:
            assert view.tobytes() == b"bytes"
            held.views.append(view)

    @rule(held=segments, locked=st.booleans())
    def drop_view(self, held: Held, locked: bool) -> None:
        if not held.views:
            return
        last = [held.views.pop()]
        if not locked:
            held.owner.lent -= 1
            self.free_if_unused(held)
            last.clear()
            return
        with self.network.lock:
            last.clear()
        held.owner.lent -= 1
        self.free_if_unused(held)
        self.network.collect_returned()

    # Exclusive segments.

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    @rule(target=exclusives, count=st.integers(0, 4), interrupted=st.booleans())
    def take_exclusive(self, count: int, interrupted: bool) -> object:
        if self.promised + sum(pool.required for pool in self.live) + count > TOTAL:
            with pytest.raises(InsufficientBuffers):
                self.network.request_exclusive("gate", count)
            return multiple()
        self.promised += count
        self.share_out()

        def not_all_there() -> None:
            """Nothing comes back while it sleeps, so all is undone."""
            assert self.free < count
            self.promised -= count
            self.share_out()
            if interrupted:
                self.interrupt()

        self.sync.on_wait = not_all_there
        try:
            group = self.network.request_exclusive("gate", count, timeout_s=1)
        except RequestTimeout:
            assert not interrupted
            return multiple()
        except KeyboardInterrupt:
            return multiple()
        assert len(group) == count
        self.exclusive.append(group)
        return group

    @rule(group=consumes(exclusives))
    def return_exclusive(self, group: list[Segment]) -> None:
        self.exclusive = [other for other in self.exclusive if other is not group]
        self.promised -= len(group)
        self.share_out()
        self.network.recycle_exclusive(group)

    @precondition(lambda self: self.live)
    @rule()
    def look(self) -> None:
        statistics = self.network.statistics()
        assert statistics.required == sum(pool.required for pool in self.live)
        assert (statistics.pools, statistics.exclusive) == (len(self.live), self.promised)

    # What always holds.

    @invariant()
    def every_segment_is_in_one_place(self) -> None:
        places = [segment.index for segment in self.network.free]
        places += [segment.index for model in self.live + self.gone for segment in model.pool._available]
        places += [segment.index for group in self.exclusive for segment in group]
        places += self.held
        assert sorted(places) == list(range(TOTAL))

    @invariant()
    def the_pools_are_as_the_model_says(self) -> None:
        assert len(self.network.free) == self.free
        for model in self.live + self.gone:
            pool = model.pool
            assert pool.held == model.held
            assert len(pool._available) == model.available
            assert pool.lent == model.lent
            assert len(pool._listeners) == len(model.listeners)
            in_use = [model.in_use.count(channel) for channel in [*range(model.channels), UNCHANNELLED]]
            assert pool._in_use == in_use
        for model in self.live:
            assert model.pool.size == model.size

    @invariant()
    def sizes_are_within_their_bounds(self) -> None:
        assert sum(model.pool.size for model in self.live) <= TOTAL - self.promised
        for model in self.live:
            assert model.required <= model.pool.size <= model.maximum
            assert model.pool.maximum == model.maximum
            assert not model.pool._available or model.pool.held <= model.pool.size

    @invariant()
    def nobody_waits_for_what_is_at_hand(self) -> None:
        for model in self.live:
            for listener in model.listeners:
                assert not self.usable(model, listener.channel)

    @invariant()
    def every_wake_up_was_performed(self) -> None:
        for listener in self.all_listeners:
            assert listener.owed_wakes == 0
        assert not self.network.lock.locked()

    def teardown(self) -> None:
        for model in list(self.live):
            self.live.remove(model)
            self.gone.append(model)
            model.destroyed = True
            model.available = 0
            model.listeners.clear()
            self.share_out()
            model.pool.destroy()
        for held in list(self.held.values()):
            self.drop_all(held)
        for group in self.exclusive:
            self.network.recycle_exclusive(group)
        statistics = self.network.statistics()
        assert (statistics.free, statistics.exclusive, statistics.pools) == (TOTAL, 0, 0)
        assert all(model.pool.held == 0 and set(model.pool._in_use) == {0} for model in self.gone)

    def drop_all(self, held: Held) -> None:
        held.views.clear()
        if held.part is None:
            give(held.owner.pool, held.segment, channel=held.channel)
        elif not held.released:
            held.part.release()


PoolMachine.TestCase.settings = settings(max_examples=350, stateful_step_count=50, deadline=None)


@pytest.mark.spec("M3", "M6", "M7", "M9")
class TestPools(PoolMachine.TestCase):  # type: ignore[misc,name-defined]
    """Run by pytest, so that the leak fixture looks at it too."""
