"""The experiments as users run them, on Spark: short, so that the figures only have to fit together."""

import pytest
from tests.support.experiments import check_follow, check_neighbour, check_shares

from headgate.cli.experiment_run import where_on
from headgate.cli.experiment_view import watch_follow, watch_neighbour
from headgate.experiments.follow import follow_json
from headgate.experiments.neighbour import neighbour_json
from headgate.experiments.report import RunInfo
from headgate.experiments.schedule import FOLLOW, PhaseSchedule, neighbour_phases
from headgate.experiments.terminal import LiveView


class Log(list):
    write = list.append

    def flush(self):
        pass

    def isatty(self):
        return False


@pytest.mark.spec("B3")
@pytest.mark.timing
def test_follow(spark):
    log = Log()
    run = watch_follow(where_on(spark), PhaseSchedule(FOLLOW, phase_s=0.6, lead_s=1.0), LiveView(log, every_s=0.5), 0.5)
    figures = follow_json(run.result(), RunInfo("", ""), 1.0)
    check_follow(figures)
    check_shares(figures)
    pids = {worker.pid for worker in run.job.last_progress.workers}
    assert len(pids) == 3, "producer, consumer and driver are three processes"
    assert any("consumer 30 %: producer" in line for line in log)


@pytest.mark.spec("B4")
@pytest.mark.timing
def test_neighbour(spark):
    schedule = PhaseSchedule(neighbour_phases(1), phase_s=0.8, lead_s=0.4)
    found = watch_neighbour(where_on(spark), schedule, LiveView(Log(), every_s=1.0))
    check_neighbour(neighbour_json(found, RunInfo("", "")))
