"""The one allocation: its cut, its refusal, its leases and its end."""

import mmap
import re
import threading
from pathlib import Path

import pytest

from headgate.buffer import Arena
from headgate.errors import InsufficientBuffers


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.spec("M1")
def test_equal_segments_in_one_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    allocate = mmap.mmap

    def counted(fileno: int, length: int) -> mmap.mmap:
        sizes.append(length)
        return allocate(fileno, length)

    monkeypatch.setattr(mmap, "mmap", counted)
    with Arena(segment_size=100, count=7) as arena:
        assert sizes == [700]
        assert arena.size_bytes == 700
        assert [segment.index for segment in arena.segments] == list(range(7))
        assert {len(segment.memory) for segment in arena.segments} == {100}
        assert len({id(segment.memory.obj) for segment in arena.segments}) == 1
        assert repr(arena.segments[6]) == "Segment(6)"


@pytest.mark.spec("M1")
def test_segments_do_not_overlap() -> None:
    with Arena(segment_size=3, count=5) as arena:
        for segment in arena.segments:
            segment.memory[:] = bytes([segment.index]) * 3
        assert [segment.memory.tobytes() for segment in arena.segments] == [bytes([i]) * 3 for i in range(5)]


def assert_names_required_allocated_missing(text: str, mib: str) -> None:
    numbers = re.search(r"required (\S+) MiB, allocated (\S+) MiB, missing (\S+) MiB", text)
    assert numbers is not None, text
    assert numbers.groups() == (mib, "0.0", mib)
    assert "memory.network.max" in text
    assert "memory.network.fraction" in text


@pytest.mark.spec("M1")
@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), MemoryError(), ValueError("length")])
def test_a_refused_allocation_names_required_allocated_and_missing_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(InsufficientBuffers) as caught:
        Arena(segment_size=32 * 1024, count=2048)
    assert_names_required_allocated_missing(str(caught.value), "64.0")
    assert caught.value.__cause__ is error


@pytest.mark.spec("M1")
@pytest.mark.parametrize("count", [2**46, 2**60], ids=["more than the address space", "more than a size"])
def test_an_absurd_size_is_refused_by_the_machine_itself(count: int) -> None:
    with pytest.raises(InsufficientBuffers) as caught:
        Arena(segment_size=2**15, count=count)
    assert_names_required_allocated_missing(str(caught.value), f"{2**15 * count / 2**20:.1f}")


@pytest.mark.spec("M1")
def test_memory_below_one_segment_is_refused() -> None:
    with pytest.raises(InsufficientBuffers, match=r"no segment of 32768 bytes.*memory\.network\.min") as caught:
        Arena(segment_size=32768, count=0)
    assert "memory.segment_size" in str(caught.value)


@pytest.mark.spec("M8")
def test_a_lease_is_the_segment_itself() -> None:
    with Arena(segment_size=8, count=4) as arena:
        arena.segments[2].memory[:] = b"original"
        view = arena.lend(arena.segments[2], lambda: None)
        assert view.tobytes() == b"original"
        assert (view.format, view.itemsize, view.nbytes) == ("B", 1, 8)
        arena.segments[2].memory[:4] = b"ORIG"
        assert view.tobytes() == b"ORIGinal"
        del view


@pytest.mark.spec("M8")
def test_a_lease_returns_once_when_its_last_view_dies() -> None:
    returned: list[int] = []
    with Arena(segment_size=8, count=2) as arena:
        view = arena.lend(arena.segments[1], lambda: returned.append(1))
        other = arena.lend(arena.segments[0], lambda: returned.append(0))
        parts = [view[1:3], view[4:].cast("H"), memoryview(view)]
        del view
        while parts:
            assert returned == []
            parts.pop()
        assert returned == [1]
        del other
        assert returned == [1, 0]


@pytest.mark.spec("M8")
def test_a_lease_may_die_on_another_thread() -> None:
    returned: list[int] = []
    with Arena(segment_size=8, count=1) as arena:
        views = [arena.lend(arena.segments[0], lambda: returned.append(threading.get_ident()))]
        thread = threading.Thread(target=views.clear)
        thread.start()
        thread.join(10)
        assert returned == [thread.ident]


@pytest.mark.spec("M1")
def test_closing_keeps_lent_memory_alive_and_takes_the_rest() -> None:
    arena = Arena(segment_size=8, count=2)
    segments = list(arena.segments)
    segments[0].memory[:] = b"keep me!"
    view = arena.lend(segments[0], lambda: None)
    arena.close()
    del arena
    assert view.tobytes() == b"keep me!"
    with pytest.raises(ValueError, match="released"):
        segments[1].memory[0]
    del view


@pytest.mark.spec("M1")
def test_closing_gives_the_memory_back_to_the_machine() -> None:
    size = 64 * 1024 * 1024
    arena = Arena(segment_size=size // 4, count=4)
    for segment in arena.segments:
        for page in range(0, len(segment.memory), mmap.PAGESIZE):
            segment.memory[page] = 1
    before = resident_bytes()
    arena.close()
    assert before - resident_bytes() > size // 2
    arena.close()  # may be repeated
