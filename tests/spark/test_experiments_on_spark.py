"""The experiments as users run them, on Spark: short, so that the figures only have to fit together."""

import pytest
from tests.support_experiments import check_follow, check_neighbour

from headgate.cli.experiment_run import where_on
from headgate.cli.experiment_view import watch_follow, watch_neighbour
from headgate.experiments.live import Live
from headgate.experiments.schedule import FOLLOW, Schedule, neighbour_phases
from headgate.experiments.summary import About, follow_json, neighbour_json


class Log(list):
    write = list.append

    def flush(self):
        pass

    def isatty(self):
        return False


@pytest.mark.spec("B3")
def test_follow(spark):
    log = Log()
    run = watch_follow(where_on(spark), Schedule(FOLLOW, phase_s=0.6, lead_s=1.0), Live(log, every_s=0.5), 0.5)
    check_follow(follow_json(run.result(), About("", ""), 1.0))
    pids = {worker.pid for worker in run.job.last_progress.workers}
    assert len(pids) == 3, "producer, consumer and driver are three processes"
    assert any("consumer 30 %: producer" in line for line in log)


@pytest.mark.spec("B4")
def test_neighbour(spark):
    schedule = Schedule(neighbour_phases(1), phase_s=0.8, lead_s=0.4)
    found = watch_neighbour(where_on(spark), schedule, Live(Log(), every_s=1.0))
    check_neighbour(neighbour_json(found, About("", "")))
