"""Real runs, in threads of this process: the figures are consistent. How good they are depends on the machine."""

import json

import pytest
from tests.support.experiments import check_follow, check_shares

import headgate as hg
from headgate.cli import main
from headgate.errors import HeadgateError
from headgate.experiments import running as experiment_running
from headgate.experiments.follow import CONSUMER, PRODUCER, follow_json, start_follow
from headgate.experiments.report import RunInfo
from headgate.experiments.running import ExperimentHost, ExperimentRun
from headgate.experiments.schedule import FOLLOW, Phase, PhaseSchedule
from headgate.experiments.tasks import NoteStore, PhaseConsumer, PhaseSource


@pytest.mark.spec("B3")
@pytest.mark.timing
def test_a_real_run_has_figures_a_chart_and_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "follow", "--local", "--phase-seconds", "0.5", "--interval", "0.5", "--json"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    check_follow(figures)
    check_shares(figures)
    assert figures["command"] == "headgate experiment follow --phase-seconds 0.5 --interval 0.5 --local"
    assert len(figures["samples"]) == 7
    assert (tmp_path / "headgate-follow.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "headgate-follow.html").read_text("utf-8")
    assert "$ headgate experiment follow --phase-seconds 0.5" in report
    assert figures["verdict"]["line"] in err
    assert "chart:  headgate-follow.png\nreport: headgate-follow.html\n" in err
    assert "follow: 5 phases of 0.5 s" in err
    assert "consumer" in err


def local(settings):
    return hg.environment(local=True, parallelism=1, settings=settings)


FULL_PER_S = 100_000.0


def figures_of(*phases, **settings):
    """Return the figures of a real run of some phases, as JSON."""
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    run = start_follow(ExperimentHost("threads", local), PhaseSchedule(phases, phase_s=0.6, lead_s=0.8), keys)
    run.wait(lambda: None)
    return follow_json(run.result(), RunInfo("", ""), 1.0)


@pytest.mark.spec("B3")
@pytest.mark.timing
@pytest.mark.parametrize("task", [PhaseSource, PhaseConsumer])
def test_a_task_that_is_never_throttled_does_not_pass(task, monkeypatch):
    """The checks of a real run fail, and so does the verdict, if one of the two never waits.

    Full speed is far below that of the machine, so that other load does not change it; small buffers hold few records
    at that speed.
    """
    phases = [one for one in FOLLOW if (one.producer if task is PhaseSource else one.consumer) < 1][:1]
    throttled = PhaseSource._rate
    monkeypatch.setattr(PhaseSource, "_rate", lambda *args: throttled(*args) or FULL_PER_S)
    check_shares(figures_of(*phases, memory__segment_size="2 KiB"))
    monkeypatch.setattr(task, "_rate", lambda *_: FULL_PER_S)
    figures = figures_of(*phases, memory__segment_size="2 KiB")
    with pytest.raises(AssertionError, match=f"{phases[0].name}: .* of full speed instead of {phases[0].expected}"):
        check_shares(figures)
    assert not figures["verdict"]["passed"]


@pytest.mark.spec("B3")
@pytest.mark.timing
def test_a_producer_that_is_not_held_back_does_not_pass():
    """Where the pool of a partition has no end, the producer does not follow a consumer that is slowed."""
    unlimited = {"network__max_buffers_per_channel": 20_000, "network__floating_buffers_per_gate": 20_000}
    figures = figures_of(FOLLOW[1], **unlimited, memory__network__min="512 MiB")
    with pytest.raises(AssertionError, match="consumer 30 %: the producer gave out"):
        check_shares(figures)
    assert not figures["verdict"]["passed"]


def test_producer_and_consumer_are_in_two_workers_and_nothing_is_lost():
    run = start_follow(ExperimentHost("threads", local), PhaseSchedule((Phase("all"),), phase_s=0.3, lead_s=0.3))
    run.wait(lambda: None)
    vertices = {vertex.name: vertex for vertex in run.job.last_progress.vertices}
    producer, consumer = vertices[PRODUCER], vertices[CONSUMER]
    assert producer.subtasks[0].worker != consumer.subtasks[0].worker
    assert producer.records_out == consumer.records_in > 0
    found = run.result()
    assert found.ceiling.segment == 32 * 1024
    assert found.full_per_s > 0


def test_a_schedule_that_goes_on_has_figures_while_it_runs():
    schedule = PhaseSchedule(FOLLOW, phase_s=0.2, lead_s=0.4, goes_on=True)
    run = start_follow(ExperimentHost("threads", local), schedule)
    try:
        run.wait(lambda: None)
        assert not run.job.status.over
        assert all(phase.consumer_per_s for phase in run.result().phases)
    finally:
        assert run.job.cancel()


def test_settings_reach_the_job_and_the_ceiling():
    run = start_follow(
        ExperimentHost("threads", local),
        PhaseSchedule((Phase("all"),), phase_s=0.2, lead_s=0.2),
        {"memory.segment_size": "8 KiB"},
    )
    run.wait(lambda: None)
    found = run.result()
    assert found.ceiling.segment == 8192
    assert max(size for _, size in found.in_flight) <= found.ceiling.bytes


def test_a_job_without_records_is_cancelled(monkeypatch):
    monkeypatch.setattr(experiment_running, "_START_S", 0.5)
    env = local({})
    env.rate(10).for_each(lambda n: None)
    job = env.execute_async("idle")
    with pytest.raises(HeadgateError, match="idle: no record came within"):
        ExperimentRun(job, NoteStore(), PhaseSchedule(FOLLOW, phase_s=1, lead_s=1), CONSUMER).wait(
            lambda: None, tick_s=0.05
        )
    assert job.status.over
