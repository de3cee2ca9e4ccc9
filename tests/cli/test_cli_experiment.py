"""`headgate experiment`: its options, their checks, and Ctrl-C."""

import logging
import re
from pathlib import Path

import pytest
import typer
from tests.support.commands import command

from headgate.bench import charts
from headgate.cli import experiment_run, main
from headgate.cli.app import app
from headgate.cli.experiment_run import ExperimentOptions
from headgate.cli.scripts import ending_jobs
from headgate.experiments.report import ExperimentReport
from headgate.experiments.running import ExperimentVerdict

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
EXPERIMENTS = typer.main.get_command(app).commands["experiment"].commands


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr(experiment_run, "where_to_run", lambda chosen: pytest.fail("it was refused"))


def test_help_lists_the_experiments(capsys):
    assert main(["experiment", "--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"follow +Does the producer follow the consumer\?", out)
    assert re.search(r"neighbour +Does a slow consumer slow a fast one", out)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_option_has_a_help_text_and_is_documented(name):
    assert EXPERIMENTS[name].help
    section = re.search(r"^## experiment\n.*?(?=^## |\Z)", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)[0]
    for parameter in EXPERIMENTS[name].params:
        assert getattr(parameter, "help", None), parameter
        assert all(option in section for option in parameter.opts if option != "--help"), parameter


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--png", "chart.jpg"], "--png chart.jpg: the name must end in .png"),
        (["--html", "nowhere/report.html"], "--html nowhere/report.html: there is no directory"),
        (["--set", "metrics.interval=1s"], "--set metrics.interval: the experiment sets it"),
        (["--set", "no.such=1"], "no.such"),
        (["--local", "--master", "local[2]"], "--local runs without Spark"),
    ],
)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_invalid_options_are_refused_before_the_run(name, arguments, problem, nothing_runs, capsys):
    assert main(["experiment", name, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("headgate: ")
    assert problem in err


def test_neighbour_chooses_the_flow_control_itself(nothing_runs, capsys):
    assert main(["experiment", "neighbour", "--set", "network.flow_control=tcp"]) == 2
    assert "--set network.flow_control: the experiment sets it" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--phase-seconds", "0.1"], ["--phase-seconds", "x"], ["--interval", "0"]])
def test_bad_values_are_bad_use(arguments, nothing_runs):
    assert main(["experiment", "follow", *arguments]) == 2


def test_a_missing_library_is_reported_before_the_run(nothing_runs, monkeypatch, capsys):
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    assert main(["experiment", "follow"]) == 2
    assert "pip install 'headgate[bench]', or say --no-png" in capsys.readouterr().err


REPORT = {"title": "t", "command": "c", "about": "a", "words": (), "header": ("x",), "rows": (("1",),), "panels": ()}


@pytest.mark.parametrize(("passed", "check", "code"), [(True, True, 0), (False, True, 1), (False, False, 0)])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_only_with_check_a_failure_is_an_exit_code(name, passed, check, code, monkeypatch, capsys):
    seen = []

    def run(options, *more):
        seen.append(options)
        return options.finish(ExperimentReport(verdict=ExperimentVerdict(passed, "so"), **REPORT), {"verdict": "so"})

    monkeypatch.setattr(experiment_run, f"run_{name}", run)
    arguments = ["--check"] * check + ["--no-png", "--no-html", "--quick"]
    assert main(["experiment", name, *arguments]) == code
    assert capsys.readouterr().out == f"x\n1\n{'PASS' if passed else 'FAIL'}: so\n"
    (options,) = seen
    assert (options.png, options.html, options.quick) == (None, None, True)


def test_with_json_stdout_has_only_json(monkeypatch, capsys):
    options = ExperimentOptions(
        chosen=experiment_run.Defaults(), phase_s=None, quick=False, as_json=True, png=None, html=None
    )
    assert options.finish(ExperimentReport(verdict=ExperimentVerdict(True, "so"), **REPORT), {"a": 1})
    out, err = capsys.readouterr()
    assert (out, err) == ('{"a": 1}\n', "PASS: so\n")


def test_the_command_of_a_report_repeats_the_experiment():
    chosen = experiment_run.Defaults(master="local[4]", settings={"memory.segment_size": "8 KiB"})
    options = ExperimentOptions(chosen=chosen, phase_s=2.5, quick=True, as_json=True, png=None, html=None)
    assert options.command("follow", "--interval", "1") == (
        "headgate experiment follow --phase-seconds 2.5 --quick --interval 1 --master 'local[4]' "
        "--set 'memory.segment_size=8 KiB'"
    )


def test_ctrl_c_ends_it_and_leaves_the_terminal_clean():
    with command("experiment", "follow", "--local", "--phase-seconds", "60", terminal=True) as run:
        run.wait_until(lambda: "% of full speed" in run.out or "1,000 records/s" in run.out)
        run.interrupt()
        assert run.end() == 130
        assert run.out.rpartition("\x1b[J")[2] == "headgate: interrupted; its jobs are cancelled\n"
        assert "\x1b[?25l" not in run.out, "the cursor is never hidden"
        assert not list(Path().iterdir()), "no file of half a run"


def test_logs_of_py4j_about_ctrl_c_while_spark_starts_are_hidden(caplog):
    def log(cause):
        try:
            try:
                raise cause
            except RuntimeError as error:
                raise OSError("Error while sending or receiving") from error
        except OSError:
            logging.exception("Exception while sending command.")  # noqa: LOG015 - as Py4J does

    with ending_jobs():
        log(RuntimeError("reentrant call inside <_io.BufferedReader name=3>"))
        assert caplog.messages == []
        log(RuntimeError("the JVM is gone"))
        assert caplog.messages == ["Exception while sending command."], "that is no interrupt"


def test_in_a_terminal_there_is_a_live_chart_and_it_stays_in_the_end():
    arguments = ("experiment", "neighbour", "--local", "--quick", "--phase-seconds", "0.5", "--no-png", "--no-html")
    with command(*arguments, terminal=True) as run:
        assert run.end() == 0
        assert run.out.count("\x1b[J") > 3, "it was drawn anew again and again"
        last = run.out.rpartition("\x1b[J")[2]
        assert "The fast consumer, 1,000 records/s" in last
        assert "beside the slow one" in last
        assert re.search(r"^(PASS|FAIL): beside a slow neighbour", last, re.MULTILINE)
