"""The simulator on the production code: thousands of seeds, the same run each time, and what a failure looks like."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli import main
from headgate.errors import InvariantViolated
from headgate.testing import KINDS, Fault, Simulation, draw_plan, fork, simulate, simulate_many
from headgate.testing import simulation as simulation_module
from headgate.testing.simulation import failure_of

SEEDS = 2000
KEPT = Path(__file__).with_name("seeds.txt")


@pytest.fixture(autouse=True)
def unwatched(monkeypatch):
    """No look at what memory is left: a worker that crashes keeps it, and for all others the simulation looks."""
    monkeypatch.undo()


def kept_seeds():
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return [int(line) for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.timeout(600)
@pytest.mark.spec("T3", "T5", "M6", "M9", "P2", "G1", "G2", "G4", "G5", "G6", "G7", "G8", "N1", "N2", "N3", "N4", "N5")
def test_every_seed_holds():
    failures = simulate_many(range(SEEDS))
    assert not failures, "\n\n".join(f"{one.repeat}\n{one.text}" for one in failures[:5])


def test_seeds_that_once_failed_hold():
    assert not simulate_many(kept_seeds(), jobs=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_strikes_and_is_survived(kind):
    struck = 0
    for seed in range(10):
        plan = draw_plan(fork(seed, "plan"))
        if plan.relayed:
            continue  # there a failure goes on and on
        faults = [Fault(kind, at_step=seed * 20, first=seed % plan.workers, second=(seed + 1) % plan.workers)]
        simulation = Simulation(seed, plan, faults)
        simulation.run()
        struck += len(simulation.struck)
    assert struck


def test_a_seed_gives_the_same_run_in_any_process():
    script = "from headgate.testing import simulate; print([simulate(seed).trace_hash for seed in range(40)])"
    hashes = []
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", script]
        hashes.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0].split(", "))) == 40


def test_another_seed_is_another_run():
    assert simulate(1).trace_hash != simulate(2).trace_hash


def test_a_fault_changes_nothing_before_it_strikes():
    runs = []
    for faults in ([], [Fault("pause", at_step=50, first=0, second=1)]):
        simulation = Simulation(11, faults=faults)
        simulation.run()
        runs.append(simulation.simulator.lines())
    strikes = next(number for number, line in enumerate(runs[1]) if "world: pause" in line)
    assert runs[0][:strikes] == runs[1][:strikes]
    assert strikes >= 50


def test_which_seeds_fail_does_not_depend_on_the_number_of_processes():
    assert simulate_many(range(30), jobs=2) == simulate_many(range(30), jobs=1) == []


def test_progress_counts_seeds():
    told = []
    simulate_many(range(25), jobs=1, progress=told.append)
    assert told == [10, 20, 25]


def test_nothing_scheduled_is_a_deadlock_with_a_wait_for_graph():
    simulation = Simulation(1, faults=[])
    for _ in range(3):
        simulation._strike()
    simulation.job.set_up()
    for task in simulation.job.consumers:
        task.begin = task._schedule = lambda *_: None
        task._scheduled.cancel()
    simulation.job.set_up = lambda: None
    with pytest.raises(InvariantViolated, match="deadlock") as error:
        simulation.run()
    assert "producer 0 on worker" in str(error.value)
    assert "-> a buffer for subpartition" in str(error.value)


def failing(monkeypatch):
    """Make every simulation fail at its end."""

    def fail(self):
        raise InvariantViolated("one segment is missing")

    monkeypatch.setattr(simulation_module.Simulation, "_wind_down", fail)


def test_a_failure_comes_with_the_command_that_repeats_it(monkeypatch, capsys):
    failing(monkeypatch)
    assert main(["simulate", "--seeds", "2", "--start", "5", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert "InvariantViolated: one segment is missing\nRepeat: headgate simulate --seed 5\n" in out
    assert out.endswith(": 2 failed\n")
    assert main(["simulate", "--seed", "5"]) == 1
    assert "Repeat: headgate simulate --seed 5" in capsys.readouterr().out


def test_a_bug_of_any_kind_fails_the_seed(monkeypatch):
    monkeypatch.setattr(simulation_module.Simulation, "_wind_down", lambda self: 1 / 0)
    assert "ZeroDivisionError" in failure_of(Simulation(1))


def test_the_command_prints_a_summary_of_many_seeds(capsys):
    assert main(["simulate", "--seeds", "10", "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("10 seeds from 0 in ")
    assert captured.out.endswith(": none failed\n")


def test_the_command_prints_one_seed_and_its_trace(capsys):
    outcome = simulate(3)
    assert main(["simulate", "--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert f"trace: {outcome.trace_hash}" in told
    assert main(["simulate", "--seed", "3", "--trace"]) == 0
    assert capsys.readouterr().out == "\n".join(outcome.trace) + "\n" + told


def test_ctrl_c_is_code_130_without_a_traceback(monkeypatch, capsys):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("headgate.cli.simulate.simulate_many", interrupted)
    assert main(["simulate"]) == 130
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
