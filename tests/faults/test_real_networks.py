"""Two workers in two network namespaces, joined by a cable that is cut, loses packets, or mixes them up.

The addresses are beyond loopback, so that everything here runs inside TLS. Needs root and the right to make network
namespaces; what is made is removed again, whatever happens.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from tests.faults import support_faults as faults
from tests.faults.support_cable import Cable
from tests.faults.support_faults import JOB, PATIENCE_S, Plan, Report

from headgate.bench.processes import START_S, child
from headgate.net.certificates import Authority

TOOL_S = 10.0
SLOW_S = 100.0
"""How long a transfer over a bad link may take: TCP waits longer after each loss."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=TOOL_S, capture_output=True, text=True)


@dataclass(frozen=True)
class Link:
    """Two namespaces and the one cable between them: worker i is in `namespaces[i]`, at `addresses[i]`."""

    namespaces: list[str]
    addresses: list[str]
    cable: Cable

    def pull(self) -> None:
        """One worker's end is pulled out: its machine knows, the other does not."""
        ip("-n", self.namespaces[0], "link", "set", "wire", "down")

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self.cable.loss = 1.0


@pytest.fixture
def link() -> Iterator[Link]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and the tool ip")
    namespaces = [f"headgate-{os.getpid()}-{i}" for i in range(2)]
    addresses = [f"10.213.77.{i + 1}" for i in range(2)]
    with ExitStack() as undo:
        try:
            for name in namespaces:
                ip("netns", "add", name)
                undo.callback(subprocess.run, ["ip", "netns", "delete", name], check=False, timeout=TOOL_S)
            cable = Cable(namespaces, "wire")
            undo.callback(cable.close)
            for name, address in zip(namespaces, addresses, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
                ip("-n", name, "link", "set", "wire", "up")
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"a network of our own cannot be made here: {error} {getattr(error, 'stderr', '')}")
        yield Link(namespaces, addresses, cable)


def plans(link: Link, **settings: object) -> list[Plan]:
    """Both workers, with credentials."""
    authority = Authority(JOB, datetime.now(UTC))
    code = {name.replace("__", "."): value for name, value in settings.items()}
    return [
        Plan(i, {"network.bind_address": link.addresses[i], **code}, authority.issue(i), link.namespaces[i])
        for i in range(2)
    ]


def whole_transfer(link: Link, count: int, **settings: object) -> None:
    one, other = plans(link, **settings)
    with child(faults.produce, one, count) as producer:
        address = producer.receive(START_S)
        assert address.host == link.addresses[0]
        with child(faults.consume, other, address, 1) as consumer:
            consumer.receive(START_S)
            assert consumer.result(SLOW_S) == Report(count, "", "", 0)
        assert producer.result(SLOW_S) == Report(count, "", "", 0)


@pytest.mark.spec("N7", "T3", "T5")
def test_a_good_link(link):
    whole_transfer(link, 3000)
    assert link.cable.carried > 1000


@pytest.mark.spec("N7")
def test_beyond_loopback_only_with_certificates(link):
    plan = Plan(0, {"network.bind_address": link.addresses[0]}, None, link.namespaces[0])
    with child(faults.listen, plan) as bare:
        assert bare.result(START_S).startswith("ConfigError: network.bind_address = 10.213.77.1 can be reached")


@pytest.mark.spec("G8", "N4")
@pytest.mark.parametrize("how", [Link.pull, Link.cut], ids=["pulled out", "cut"])
def test_the_link_is_lost(link, how):
    """If nothing gets through, nothing says so to either end: the idle time-out does, at both."""
    one, other = plans(link, network__idle_timeout="1 s")
    with child(faults.produce, one) as producer:
        address = producer.receive(START_S)
        with child(faults.consume, other, address) as consumer:
            consumer.receive(START_S)
            how(link)
            reports = consumer.result(PATIENCE_S), producer.result(PATIENCE_S)
    assert [report.error for report in reports] == ["TransportError", "Cancelled"]
    assert str(address) in reports[0].text
    assert link.addresses[1] in reports[1].text
    assert all(report.segments_missing == 0 for report in reports)


@pytest.mark.spec("G8", "N4")
def test_a_link_cut_before_the_connection_ends_with_the_connect_timeout(link):
    """What is said gets lost on the way: the connect time-out ends it."""
    one, other = plans(link, network__connect_timeout="1 s")
    with child(faults.produce, one) as producer:
        address = producer.receive(START_S)
        link.cut()
        with child(faults.consume, other, address) as consumer:
            report = consumer.result(START_S)
    assert report.error == "TransportError"
    assert str(address) in report.text
    assert report.segments_missing == 0


@pytest.mark.spec("T5")
@pytest.mark.timeout(300)
def test_every_fifth_packet_is_lost(link):
    link.cable.loss = 0.2
    whole_transfer(link, 150, network__handshake_timeout="60 s")
    assert link.cable.lost > 10


@pytest.mark.spec("T5")
def test_packets_are_doubled_and_overtake_one_another(link):
    link.cable.double, link.cable.late_s = 0.2, (0.0, 0.01)
    whole_transfer(link, 300)


@pytest.mark.spec("T5", "N4")
def test_a_link_that_comes_back_in_time(link):
    """Cut for less than the idle time-out: nobody need know."""
    one, other = plans(link)
    with child(faults.produce, one, 3000) as producer:
        address = producer.receive(START_S)
        with child(faults.consume, other, address) as consumer:
            link.cable.late_s = (0.002, 0.002)  # so that it is not over at once
            consumer.receive(START_S)
            link.cut()
            time.sleep(0.7)
            link.cable.loss = 0.0
            assert consumer.result(SLOW_S) == Report(3000, "", "", 0)
        assert producer.result(SLOW_S) == Report(3000, "", "", 0)
