"""A fuzzer, guided by coverage, for all that a peer can say: the decoder, the handshake, and both sessions.

    python tests/fuzz/fuzz_wire.py -max_total_time=30          # at random, for half a minute
    python tests/fuzz/fuzz_wire.py crash-0123456789abcdef      # once more what broke it

It takes libFuzzer's options. An input is not the bytes on the wire: it says step by step what the peer says, right or
bent, and what the worker's tasks do meanwhile (`tests.support.fuzz_target`). Needs the extra `fuzz`; nothing of it is
imported before `main`, for what is fuzzed must be imported under its eyes.
"""

import logging
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MAX_STEPS = 60
_FUZZED = [f"headgate.{package}" for package in ("wire", "net", "input", "output", "record", "errors")]


class Player:
    """Plays one input after another."""

    def __init__(self, atheris: Any, victim: Any, wire: Any) -> None:
        self._atheris = atheris
        self._victim = victim
        self._wire = wire

    def __call__(self, data: bytes) -> None:
        """One input; what it raises is a bug."""
        source = self._atheris.FuzzedDataProvider(data)
        match source.ConsumeIntInRange(0, 5):
            case 0:
                self._decode(source)
            case 1:
                self._prove(source)
            case mode:
                self._talk(source, credited=mode != 2, checksum=mode == 3)

    def _decode(self, source: Any) -> None:
        decoder = self._wire.Decoder(self._victim.SEGMENT_BYTES)
        try:
            while source.remaining_bytes():
                piece = source.ConsumeBytes(source.ConsumeIntInRange(1, 64))
                for _ in decoder.feed(memoryview(piece)):
                    pass
        except self._victim.RemoteProtocolError:
            pass

    def _prove(self, source: Any) -> None:
        good = self._victim.conversation()
        with self._victim.Victim(proved=False) as victim:
            for _ in range(MAX_STEPS):
                if not source.remaining_bytes():
                    break
                said = source.ConsumeBytes(source.ConsumeIntInRange(0, 64))
                if source.ConsumeBool():
                    start = source.ConsumeIntInRange(0, len(good))
                    said = good[start : start + source.ConsumeIntInRange(0, len(good))] + said
                victim.say(said)
            victim.wait(10_000)
            assert victim.over or victim.network.statistics().half_open == 0

    def _talk(self, source: Any, *, credited: bool, checksum: bool) -> None:
        script = self._victim.Script(credited=credited, checksum=checksum)
        with self._victim.Victim(credited=credited, checksum=checksum) as victim:
            for _ in range(MAX_STEPS):
                if not source.remaining_bytes() or victim.over:
                    break
                if source.ConsumeIntInRange(0, 3) == 0:
                    self._act(source, victim)
                else:
                    self._say(source, victim, self._line(source, script))
            how = source.ConsumeIntInRange(0, 3)
            if how == 0:
                victim.wait(200_000)
            elif how < 3:
                victim.hang_up(reset=how == 1)
            assert how == 3 or victim.over or victim.starved
            assert sum(error is not None for error in victim.errors) <= 1

    def _act(self, source: Any, victim: Any) -> None:
        channel = source.ConsumeIntInRange(0, self._victim.CHANNELS - 1)
        match source.ConsumeIntInRange(0, 7):
            case 0 | 1:
                victim.read(channel)
            case 2:
                victim.release(channel)
            case 3:
                victim.call_back(channel)
            case 4:
                victim.write()
            case 5:
                victim.finish()
            case 6:
                victim.fail()
            case _:
                victim.wait(source.PickValueInList([1, 5, 20_000, 60_000]))

    def _say(self, source: Any, victim: Any, said: bytes) -> None:
        """As it is; or with a byte changed, cut off, or in two pieces."""
        at = source.ConsumeIntInRange(0, len(said)) if said else 0
        match source.ConsumeIntInRange(0, 15):
            case 0:
                said = said[:at] + source.ConsumeBytes(1) + said[at + 1 :]
            case 1:
                said = said[:at]
            case 2 | 3:
                victim.say(said[:at])
                said = said[at:]
            case 4:
                for byte in said[:-1]:
                    victim.say(bytes([byte]))
                said = said[-1:]
        victim.say(said)

    def _line(self, source: Any, script: Any) -> bytes:
        wire, known = self._wire, self._victim
        number = source.ConsumeIntInRange(0, 4)
        receiver = source.PickValueInList([0, 0, 1, 1, 2, 2, 3, wire.CONNECTION])
        attempt = known.ATTEMPT if source.ConsumeIntInRange(0, 15) else known.AttemptId(2)
        big = source.PickValueInList([0, 1, 1, 2, 2, 3, 100, 1 << 17, 1 << 20, (1 << 20) + 1])
        credit = min(big, 1 << 17)
        match source.ConsumeIntInRange(0, 11):
            case 0 | 1 | 2:
                flags = source.PickValueInList([0, 0, 0, 0, 0, 0, 2, 4, 8, 16])
                payload = source.PickValueInList([*known.RECORDS, source.ConsumeBytes(known.SEGMENT_BYTES + 1)])
                skew = source.PickValueInList([0, 0, 0, 8, 63, 64])
                return script.data(receiver, payload, flags=flags, off=self._off(source), backlog=big, skew=skew)
            case 3:
                payload = source.PickValueInList([*known.EVENTS, source.ConsumeBytes(40)])
                flags = source.PickValueInList([1, 1, 1, 9, 9, 3, 5])
                return script.data(receiver, payload, flags=flags, off=self._off(source))
            case 4:
                which = source.PickValueInList([known.WRITTEN, known.FINISHED, known.MISSING, known.OTHERS])
                return script.request(which, number % 3, credit=credit, off=self._off(source))
            case 5:
                return wire.encode_frame(wire.AddCredit(script.requested(number), attempt, max(1, credit)))
            case 6:
                return script.cancel(number, attempt, again=source.ConsumeIntInRange(0, 7) == 0)
            case 7:
                event = source.PickValueInList([*known.EVENTS, source.ConsumeBytes(40)])
                return wire.encode_frame(wire.SendTaskEvent(script.requested(number), attempt, event))
            case 8:
                return wire.encode_frame(wire.AnnounceBacklog(receiver, min(big, 1 << 20)))
            case 9:
                code = source.PickValueInList([4, 7, 8, 10, 12, 0xFFFF])
                return wire.encode_frame(wire.ReportError(receiver, code, source.PickValueInList(["", "no"])))
            case 10:
                return wire.encode_frame(wire.KeepAlive() if number else wire.Close())
            case _:
                body = source.ConsumeBytes(40)
                kind = source.PickValueInList([*range(0x10, 0x14), 0x20, 0x21, 0x30, 0x31, 0x32, 0x99])
                length = source.PickValueInList([2 + len(body)] * 4 + [0, 1, 2, 1 << 13, 1 << 31, (1 << 32) - 1])
                return known.PREFIX.pack(length, kind, source.PickValueInList([0, 0, 0, 1, 8, 0x80])) + body

    @staticmethod
    def _off(source: Any) -> int:
        return source.PickValueInList([0] * 14 + [1, -1])


def main() -> None:
    import atheris  # noqa: PLC0415 - an extra, and only to be imported by those who fuzz

    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=_FUZZED):
        from tests.support import fuzz_target  # noqa: PLC0415 - see above

        from headgate import wire  # noqa: PLC0415
    logging.getLogger("headgate").setLevel(logging.ERROR)
    # Long inputs from the start: they come further, and each says how many steps it has.
    atheris.Setup([*sys.argv, "-max_len=1024", "-len_control=0"], Player(atheris, fuzz_target, wire))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
