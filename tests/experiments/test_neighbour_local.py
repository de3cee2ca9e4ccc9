"""Real runs of `neighbour`, in threads of this process: what credit is for shows with wide margins on any machine."""

import pytest
from tests.support.experiments import check_neighbour

import headgate as hg
from headgate.config import FlowControl
from headgate.experiments.neighbour import FAST, SLOW, neighbour_json, start_neighbour
from headgate.experiments.report import RunInfo
from headgate.experiments.running import ExperimentHost
from headgate.experiments.schedule import PhaseSchedule, neighbour_phases
from headgate.experiments.tasks import ConsumeOperator, PhaseSource
from headgate.record import CheckpointBarrier


def local(settings):
    return hg.environment(local=True, parallelism=1, settings=settings)


def run_of(mode, phase_s=0.8):
    run = start_neighbour(
        ExperimentHost("threads", local), PhaseSchedule(neighbour_phases(1), phase_s=phase_s, lead_s=0.4), mode
    )
    run.wait(lambda: None)
    return run.result()


@pytest.mark.spec("B4")
@pytest.mark.timing
def test_a_slow_neighbour_drags_the_fast_consumer_and_its_barriers_down_with_tcp_and_not_with_credit():
    found = {mode: run_of(mode) for mode in (FlowControl.CREDIT, FlowControl.TCP)}
    check_neighbour(neighbour_json(found, RunInfo("", "")))
    credit, tcp = found[FlowControl.CREDIT], found[FlowControl.TCP]
    assert credit.keeps() > 0.4
    assert tcp.keeps() < 0.4
    took = {mode: one.barriers(FAST, beside=True).p50_ms for mode, one in found.items()}
    assert took[FlowControl.TCP] > 3 * took[FlowControl.CREDIT]


@pytest.mark.spec("B4", "K4")
def test_every_barrier_of_a_source_arrives_as_an_event_in_order_with_its_records(monkeypatch):
    emitted, arrived = {FAST: [], SLOW: []}, {FAST: [], SLOW: []}
    read, event = PhaseSource.read, ConsumeOperator.event

    def reading(self, *args):
        for one in read(self, *args):
            if isinstance(one, CheckpointBarrier):
                emitted[SLOW if self._neighbour else FAST].append(one)
            yield one

    def receiving(self, one):
        arrived[self._consumer._name].append(one)
        event(self, one)

    monkeypatch.setattr(PhaseSource, "read", reading)
    monkeypatch.setattr(ConsumeOperator, "event", receiving)
    found = run_of(FlowControl.CREDIT, phase_s=0.3)
    for name in (FAST, SLOW):
        assert arrived[name] == emitted[name] != []
        assert len(found.took[name]) == len(emitted[name]), "each of them was reported"
