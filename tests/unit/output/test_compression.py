"""Bytes made smaller for the disk: what pays, and when it is no longer tried."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.config import Compression
from headgate.errors import CorruptStream
from headgate.output import compression as numbered
from headgate.output.compression import Compressor, Unpacker

CODECS = [Compression.LZ4, Compression.ZSTD]
TEXT = memoryview(b"to be, or not to be: that is the question. " * 100)
NOISE = memoryview(os.urandom(4096))


class CountedCodec:
    """Makes everything as small as it is told."""

    def __init__(self):
        self.tries = 0
        self.share = 1.0

    def compress(self, buf, asbytes):
        self.tries += 1
        return bytes(round(len(buf) * self.share))


@pytest.fixture
def counted():
    compressor = Compressor(Compression.LZ4)
    compressor._codec = CountedCodec()
    return compressor, compressor._codec


@pytest.mark.spec("P3")
@pytest.mark.parametrize("codec", CODECS)
def test_compressed_bytes_are_decompressed_equal(codec):
    compressor, back = Compressor(codec), memoryview(bytearray(len(TEXT)))
    stored = compressor.compress(TEXT)
    assert len(stored) < len(TEXT) / 8
    compressor.decompress_into(stored, back)
    assert back == TEXT
    compressor.decompress_into(memoryview(stored), back)
    assert back == TEXT


def test_without_a_codec_nothing_is_compressed():
    compressor = Compressor(Compression.NONE)
    assert compressor.compress(TEXT) is None
    with pytest.raises(CorruptStream, match="nothing is compressed"):
        compressor.decompress_into(b"abc", memoryview(bytearray(3)))


@pytest.mark.parametrize("codec", CODECS)
def test_noise_is_left_as_it_is(codec):
    assert Compressor(codec).compress(NOISE) is None


def test_small_buffers_are_not_tried_and_count_for_nothing(counted):
    compressor, codec = counted
    assert compressor.compress(TEXT[:127]) is None
    assert codec.tries == 0
    compressor.compress(TEXT[:128])
    assert codec.tries == 1


@pytest.mark.parametrize(("share", "pays"), [(0.875, True), (0.876, False), (0.1, True), (1.0, False)])
def test_it_pays_if_it_saves_an_eighth(counted, share, pays):
    compressor, codec = counted
    codec.share = share
    assert (compressor.compress(memoryview(bytes(8000))) is not None) == pays


def test_after_failures_ever_fewer_are_tried(counted):
    compressor, codec = counted
    tried = []
    for number in range(200):
        before = codec.tries
        assert compressor.compress(NOISE) is None
        if codec.tries > before:
            tried.append(number)
    assert tried == [0, 2, 6, 14, 30, 62, 126, 190]  # 1, 3, 7, 15, 31, then always 63 between two


def test_one_that_pays_starts_it_again(counted):
    compressor, codec = counted
    for _ in range(63):
        compressor.compress(NOISE)
    codec.share = 0.5
    stored = [compressor.compress(NOISE) for _ in range(100)]
    assert stored[:63] == [None] * 63
    assert all(one is not None for one in stored[63:])
    codec.share = 1.0
    before = codec.tries
    for _ in range(3):
        compressor.compress(NOISE)
    assert codec.tries == before + 2  # one was left out


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\xf0" + bytes(100), b"abc"])
def test_other_bytes_are_a_corrupt_stream(codec, garbage):
    with pytest.raises(CorruptStream, match=f"not bytes that {codec} has compressed"):
        Compressor(codec).decompress_into(garbage, memoryview(bytearray(64)))


@pytest.mark.parametrize("codec", CODECS)
def test_more_than_the_memory_takes_is_refused(codec):
    compressor = Compressor(codec)
    stored = compressor.compress(TEXT)
    with pytest.raises(CorruptStream):
        compressor.decompress_into(stored, memoryview(bytearray(len(TEXT) - 1)))


@pytest.mark.parametrize("codec", CODECS)
def test_several_threads_decompress_at_once(codec):
    compressor = Compressor(codec)
    texts = [bytes([number]) * 50_000 + b"to be" * 1000 for number in range(16)]
    stored = [compressor.compress(memoryview(text)) for text in texts]

    def round_trip(number):
        memory = memoryview(bytearray(len(texts[number])))
        for _ in range(20):
            compressor.decompress_into(stored[number], memory)
            assert memory == texts[number]
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, range(16)))


@pytest.mark.spec("N1", "P3")
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_received_compressed_bytes_are_unpacked_to_exactly_their_size(compression):
    stored = Compressor(compression).compress(TEXT)
    unpacker, codec = Unpacker(), numbered.CODECS.index(compression)
    for _ in range(2):
        assert unpacker.unpack(codec, memoryview(stored), len(TEXT)) == TEXT
    for wrong in (1, len(TEXT) - 1, len(TEXT) + 1, 10 * len(TEXT)):
        with pytest.raises(CorruptStream, match=f"not {wrong} bytes that {compression} has compressed"):
            unpacker.unpack(codec, stored, wrong)
    with pytest.raises(CorruptStream, match=f"not {len(TEXT)} bytes"):
        unpacker.unpack(codec, stored[:-1], len(TEXT))


@pytest.mark.spec("N8")
@pytest.mark.parametrize("codec", [-1, 0, 3, 255])
def test_an_unknown_codec_is_refused(codec):
    with pytest.raises(CorruptStream, match=f"a codec {codec}, which there is not"):
        Unpacker().unpack(codec, b"...", 100)
