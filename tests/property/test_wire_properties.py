"""The wire for any frames, any cuts, any bytes; credit for any order of events at both ends of a slow connection."""

import struct
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.frames import Message, Pipe, Said, assemble, request, whole_decoder, write

from headgate.errors import InvariantViolated, RemoteProtocolError
from headgate.ids import AttemptId
from headgate.wire import (
    AddCredit,
    AnnounceBacklog,
    Book,
    CancelRequest,
    Close,
    Data,
    Decoder,
    Frame,
    KeepAlive,
    Ledger,
    Payload,
    ReportError,
    RequestPartition,
    SendTaskEvent,
    decode_frame,
    encode_frame,
)
from headgate.wire.codec import PREFIX
from headgate.wire.decoder import MAX_CONTROL_BYTES
from headgate.wire.frames import (
    ALIGNMENT,
    MAX_BACKLOG,
    MAX_CREDIT,
    MAX_ERROR_TEXT_BYTES,
    MAX_TASK_EVENT_BYTES,
)

MAX_PAYLOAD = 300

# Frames ----------------------------------------------------------------------------------------------------

u32s = st.integers(0, 2**32 - 1)
attempts = u32s.map(AttemptId)
backlogs = st.integers(0, MAX_BACKLOG)


def texts(max_bytes: int) -> st.SearchStrategy[str]:
    """All that UTF-8 can say (so no surrogates) in that many bytes."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=max_bytes).filter(
        lambda text: len(text.encode()) <= max_bytes
    )


control_frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        request,
        st.integers(0, 2**32 - 2),
        texts(255),
        u32s,
        u32s,
        u32s,
        u32s,
        u32s,
        st.none() | st.integers(0, MAX_CREDIT),
    ),
    st.builds(AddCredit, u32s, attempts, st.integers(1, MAX_CREDIT)),
    st.builds(CancelRequest, u32s, attempts),
    st.builds(SendTaskEvent, u32s, attempts, st.binary(max_size=MAX_TASK_EVENT_BYTES)),
    st.builds(AnnounceBacklog, u32s, backlogs),
    st.builds(ReportError, u32s, st.integers(0, 0xFFFF), texts(MAX_ERROR_TEXT_BYTES)),
    st.builds(ReportError, st.integers(0, 2**32 - 2), st.just(23), texts(MAX_ERROR_TEXT_BYTES), st.just(False)),
    st.just(Close()),
    st.just(KeepAlive()),
)


@st.composite
def data_messages(draw: st.DrawFn) -> Message:
    payload = draw(st.binary(max_size=MAX_PAYLOAD))
    numbers = draw(u32s), draw(u32s), draw(backlogs), len(payload), draw(st.integers(0, ALIGNMENT - 1))
    if draw(st.booleans()):
        return Data(*numbers), payload  # as most are
    flags = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    return Data(*numbers, *flags, draw(st.none() | u32s)), payload


messages = st.lists(st.one_of(control_frames.map(lambda frame: (frame, b"")), data_messages()), max_size=8)


def read(chunks: list[bytes], *, whole: bool = False) -> tuple[list[Said | Message], str | None]:
    """What a decoder says to these, and the text of the error it ends with. Any other error fails the test.

    Between calls it holds a small frame at most, whatever it was told to expect.
    """
    said: list[Said | Message] = []
    decoder = whole_decoder(MAX_PAYLOAD, said) if whole else Decoder(MAX_PAYLOAD)
    for chunk in chunks:
        try:
            for part in decoder.feed(memoryview(chunk)):
                said.append(part)  # noqa: PERF402 - what came before an error counts, and runs put theirs in between
        except RemoteProtocolError as error:
            return said, str(error)
        finally:
            assert len(decoder._head) <= MAX_CONTROL_BYTES + PREFIX.size
    return said, None


def cut(wire: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted(min(at, len(wire)) for at in cuts)
    return [wire[start:end] for start, end in zip([0, *ends], [*ends, len(wire)], strict=True)]


@pytest.mark.spec("N1")
@given(control_frames)
def test_any_frame_comes_back(frame: Frame) -> None:
    wire = encode_frame(frame)
    length, kind, flag = PREFIX.unpack_from(wire)
    assert (length, kind) == (len(wire) - 4, frame.TYPE)
    uncredited = isinstance(frame, RequestPartition) and frame.credit is None
    goes_on = isinstance(frame, ReportError) and not frame.ends
    assert flag == (uncredited or goes_on)
    assert decode_frame(kind, flag, wire[PREFIX.size :]) == frame
    assert len(wire) - 4 <= MAX_CONTROL_BYTES, "a frame that can be made can be received"


@pytest.mark.spec("N1")
@given(messages, st.data())
def test_any_frames_in_any_pieces_come_back(sent: list[Message], data: st.DataObject) -> None:
    wire = write(*sent)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=30))
    for whole in (False, True):
        said, error = read(cut(wire, cuts), whole=whole)
        assert error is None
        assert assemble(said) == sent


# Any bytes -------------------------------------------------------------------------------------------------

kinds = st.sampled_from([0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x30, 0x31, 0x32]) | st.integers(0, 255)
flags = st.sampled_from([0, 1, 2, 4, 8, 15]) | st.integers(0, 255)

almost_frames = st.one_of(
    # a body of any content behind a prefix that fits it
    st.builds(
        lambda kind, flag, body: PREFIX.pack(2 + len(body), kind, flag) + body, kinds, flags, st.binary(max_size=60)
    ),
    # a prefix that promises anything
    st.builds(PREFIX.pack, st.integers(0, 400) | u32s, kinds, flags),
    # a whole frame
    st.one_of(control_frames.map(encode_frame), data_messages().map(write)),
    st.binary(max_size=20),
)


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    wire = bytearray(b"".join(draw(st.lists(almost_frames, max_size=6))))
    for _ in range(draw(st.integers(0, 3)) if wire else 0):
        wire[draw(st.integers(0, len(wire) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(wire[: draw(st.none() | st.integers(0, len(wire)))])


@pytest.mark.spec("N8")
@settings(max_examples=400)
@given(st.binary(max_size=200) | damaged_streams(), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_give_frames_or_a_remote_error_whole_or_in_pieces(wire: bytes, cuts: list[int]) -> None:
    said, error = read([wire])
    assemble(said)
    for chunks in ([wire[at : at + 1] for at in range(len(wire))], cut(wire, cuts)):
        for whole in (False, True):
            in_pieces, same_error = read(chunks, whole=whole)
            assert same_error == error
            assert assemble(in_pieces) == assemble(said)
    at_once, same_error = read([wire], whole=True)
    assert (assemble(at_once), same_error) == (assemble(said), error)


@pytest.mark.spec("N8")
@given(kinds, flags, st.binary(max_size=60))
def test_any_body_gives_a_frame_or_a_remote_error(kind: int, flag: int, body: bytes) -> None:
    try:
        frame = decode_frame(kind, flag, body)
    except RemoteProtocolError:
        return
    assert encode_frame(frame)[4:] == bytes([kind, flag]) + body, "there is one way to write a frame"


@pytest.mark.spec("N8")
@given(u32s, kinds, flags)
def test_a_promise_is_not_memory(length: int, kind: int, flag: int) -> None:
    """However much is promised and sent, little is kept, and nothing of a frame that is too long."""
    decoder, tail = Decoder(MAX_PAYLOAD), bytes(3 * MAX_CONTROL_BYTES)
    try:
        for _ in decoder.feed(memoryview(PREFIX.pack(length, kind, flag) + tail)):
            assert len(decoder._head) <= MAX_CONTROL_BYTES + PREFIX.size
    except RemoteProtocolError:
        pass
    assert len(decoder._head) <= MAX_CONTROL_BYTES + PREFIX.size
    if length > MAX_CONTROL_BYTES:
        assert bytes(decoder._head) == struct.pack("<I", length)


# Credit ----------------------------------------------------------------------------------------------------


class CreditMachine(RuleBasedStateMachine):
    """A sender with a queue and a receiver with a few buffers; frames take their time both ways.

    The model counts buffers by where they are: free, in the consumer's hands, or set aside (the rest). Whatever the
    sender may still send, has sent, or is about to be told must fit into those set aside.
    """

    @initialize(exclusive=st.integers(0, 3), floating=st.integers(1, 4))
    def start(self, exclusive: int, floating: int) -> None:
        self.total, self.free, self.in_use, self.unannounced = exclusive + floating, floating, 0, 0
        self.book, self.ledger = Book(exclusive), Ledger(exclusive)
        self.down, self.up = Pipe(MAX_PAYLOAD), Pipe(MAX_PAYLOAD)  # to the consumer; to the producer
        self.queue: deque[bool] = deque()  # whether each waiting element is an event
        self.produced = self.arrived = 0  # elements
        self.sent = self.received = 0  # buffers
        self.announced = self.granted = exclusive  # credit

    @property
    def set_aside(self) -> int:
        return self.total - self.free - self.in_use

    @property
    def backlog(self) -> int:
        return sum(not event for event in self.queue)

    # The producer

    @rule(elements=st.lists(st.sampled_from([False, False, False, True]), min_size=1, max_size=4))
    def produce(self, elements: list[bool]) -> None:
        self.queue.extend(elements)
        self.produced += len(elements)

    @precondition(lambda self: self.queue and (self.queue[0] or self.ledger.available))
    @rule()
    def send(self) -> None:
        event = self.queue.popleft()
        if not event:
            self.ledger.spend()
            self.sent += 1
        sequence = self.produced - len(self.queue) - 1
        self.down.put(Data(1, sequence, self.backlog, size=3, event=event), b"...")

    @precondition(lambda self: not self.ledger.available)
    @rule()
    def send_without_credit(self) -> None:
        with pytest.raises(InvariantViolated):
            self.ledger.spend()

    @precondition(lambda self: self.up)
    @rule(count=st.integers(1, 40))
    def deliver_up(self, count: int) -> None:
        self.up.deliver(count, self.hear_credit)

    def hear_credit(self, one: Frame | Payload) -> None:
        assert isinstance(one, AddCredit)
        self.ledger.grant(one.credit)
        self.granted += one.credit

    # The consumer

    @precondition(lambda self: self.down)
    @rule(count=st.integers(1, 60))
    def deliver_down(self, count: int) -> None:
        self.down.deliver(count, self.hear_data)

    def hear_data(self, one: Frame | Payload) -> None:
        if not isinstance(one, Data):
            return
        assert one.sequence == self.arrived
        self.arrived += 1
        if not one.event:
            self.book.receive()
            self.received += 1
            self.in_use += 1

    @precondition(lambda self: self.free)
    @rule(at_most=st.integers(1, 4))
    def claim(self, at_most: int) -> None:
        count = min(at_most, self.free)
        self.free -= count
        self.unannounced += count

    @precondition(lambda self: self.in_use)
    @rule(stays=st.booleans())
    def consume(self, stays: bool) -> None:
        self.in_use -= 1
        if stays:
            self.unannounced += 1
        else:
            self.free += 1

    @precondition(lambda self: self.unannounced)
    @rule()
    def give_up(self) -> None:
        self.unannounced -= 1
        self.free += 1

    @precondition(lambda self: self.unannounced)
    @rule()
    def announce_credit(self) -> None:
        credit, self.unannounced = self.unannounced, 0
        self.book.promise(credit)
        self.announced += credit
        self.up.put(AddCredit(1, AttemptId(2), credit))

    @precondition(lambda self: self.announced == self.received)
    @rule()
    def data_without_credit(self) -> None:
        """All that was ever announced is used up: whoever sends now does not keep to the rules."""
        with pytest.raises(RemoteProtocolError):
            self.book.receive()

    # Always

    @invariant()
    def nobody_sends_more_than_was_granted(self) -> None:
        assert 0 <= self.received <= self.sent <= self.granted <= self.announced
        assert [self.ledger.sent, self.ledger.granted] == [self.sent, self.granted]
        assert [self.book.received, self.book.promised] == [self.received, self.announced]
        assert self.ledger.available == self.granted - self.sent >= 0

    @invariant()
    def every_credit_has_its_buffer(self) -> None:
        assert min(self.free, self.in_use, self.set_aside) >= 0
        assert self.book.outstanding == self.set_aside - self.unannounced
        on_its_way = (self.announced - self.granted) + (self.sent - self.received)
        assert self.ledger.available + on_its_way == self.book.outstanding

    def teardown(self) -> None:
        """With everybody doing their part, whatever is left arrives."""
        if not hasattr(self, "queue"):
            return
        for _ in range(2 * self.produced + 2):
            while self.queue and (self.queue[0] or self.ledger.available):
                self.send()
            self.down.deliver(10**9, self.hear_data)
            while self.in_use:
                self.consume(stays=False)
            if self.free:
                self.claim(at_most=self.total)
            if self.unannounced:
                self.announce_credit()
            self.up.deliver(10**9, self.hear_credit)
            self.nobody_sends_more_than_was_granted()
            self.every_credit_has_its_buffer()
        assert self.arrived == self.produced
        assert not self.queue


CreditMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.spec("N2", "G5", "G6")
class TestCredit(CreditMachine.TestCase):
    """Ledger and Book, over frames that are cut and late."""
