"""Real runs, in threads of this process: the figures fit together. Whether they are good depends on the machine."""

import json

import pytest
from tests.support_experiments import check_follow

import headgate as hg
from headgate.cli import main
from headgate.errors import HeadgateError
from headgate.experiments import Schedule, Where, start_follow
from headgate.experiments import running as experiment_running
from headgate.experiments.follow import CONSUMER, PRODUCER
from headgate.experiments.schedule import FOLLOW, Phase


@pytest.mark.spec("B3")
def test_a_real_run_has_figures_a_chart_and_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "follow", "--local", "--phase-seconds", "0.5", "--interval", "0.5", "--json"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    check_follow(figures)
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


def test_producer_and_consumer_are_in_two_workers_and_nothing_is_lost():
    run = start_follow(Where("threads", local), Schedule((Phase("all"),), phase_s=0.3, lead_s=0.3))
    run.wait(lambda: None)
    vertices = {vertex.name: vertex for vertex in run.job.last_progress.vertices}
    producer, consumer = vertices[PRODUCER], vertices[CONSUMER]
    assert producer.subtasks[0].worker != consumer.subtasks[0].worker
    assert producer.records_out == consumer.records_in > 0
    found = run.result()
    assert found.ceiling.segment == 32 * 1024
    assert found.full_per_s > 0


def test_one_that_goes_on_is_judged_while_it_runs():
    schedule = Schedule(FOLLOW, phase_s=0.2, lead_s=0.4, goes_on=True)
    run = start_follow(Where("threads", local), schedule)
    try:
        run.wait(lambda: None)
        assert not run.job.status.over
        assert all(phase.consumer_per_s for phase in run.result().phases)
    finally:
        assert run.job.cancel()


def test_settings_reach_the_job_and_the_ceiling():
    run = start_follow(
        Where("threads", local), Schedule((Phase("all"),), phase_s=0.2, lead_s=0.2), {"memory.segment_size": "8 KiB"}
    )
    run.wait(lambda: None)
    found = run.result()
    assert found.ceiling.segment == 8192
    assert max(size for _, size in found.in_flight) <= found.ceiling.bytes


def test_a_job_that_never_begins_is_given_up(monkeypatch):
    monkeypatch.setattr(experiment_running, "_START_S", 0.5)
    env = local({})
    env.rate(10).for_each(lambda n: None)
    job = env.execute_async("idle")
    with pytest.raises(HeadgateError, match="idle: no record came within"):
        experiment_running.await_run(
            job, Schedule(FOLLOW, phase_s=1, lead_s=1), lambda: None, lambda: None, tick_s=0.05
        )
    assert job.status.over
