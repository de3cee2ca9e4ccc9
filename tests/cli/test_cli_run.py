"""`headgate run`: the arguments of a script, its exit code, and Ctrl-C."""

import json
import sys
from textwrap import dedent

import pytest
from tests.support.commands import command

import headgate as hg
from headgate.api.running import unfinished_jobs
from headgate.cli import main
from headgate.cli.scripts import users_part
from headgate.config.defaults import Defaults, use_defaults


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a script that has `hg` and `env`; returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="job.py"):
        file = tmp_path / name
        file.write_text(f"import sys\nimport headgate as hg\nenv = hg.environment()\n{dedent(text)}", encoding="utf-8")
        return str(file)

    return write


def test_a_script_has_its_arguments_and_the_defaults(script, capsys):
    file = script("""
        import json
        print(json.dumps([__name__, sys.argv[1:], repr(env), env.settings.network.buffers_per_channel]))
        assert sys.argv[0] == __file__
        print(sorted(env.from_collection([1, 2]).map(lambda n: n + 1).execute_and_collect()))
    """)
    argv = list(sys.argv)
    options = ["--local", "--parallelism", "3", "--set", "network.buffers_per_channel=4"]
    assert main(["run", file, "one", *options, "--", "--two"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == ["__main__", ["one", "--two"], "<StreamExecutionEnvironment local, parallelism 3>", 4]
    assert second == "[2, 3]"
    assert sys.argv == argv


def test_options_of_the_script_win(script, capsys):
    file = script("""
        own = hg.environment(local=False, parallelism=2, settings={"network.buffers_per_channel": 6})
        print(own, own.settings.network.buffers_per_channel)
    """)
    assert main(["run", file, "--local", "--parallelism", "3", "--set", "network.buffers_per_channel=4"]) == 0
    assert capsys.readouterr().out == "<StreamExecutionEnvironment on Spark, parallelism 2> 6\n"


@pytest.mark.spec("T4")
@pytest.mark.parametrize("mode", ["batch", "BATCH"])
def test_the_mode(mode, script, capsys):
    file = script("""
        print(env.settings.execution.runtime_mode)
        print(hg.environment(runtime_mode="AUTO").settings.execution.runtime_mode)
    """)
    assert main(["run", file, "--local", "--mode", mode]) == 0
    assert capsys.readouterr().out == "BATCH\nAUTO\n"


def test_a_source_without_an_end_in_batch_is_one_line_and_code_2(script, capsys):
    file = script("env.rate(10).print()\nenv.execute()\n")
    assert main(["run", file, "--local", "--mode", "batch"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("headgate: rate: this source has no end")
    assert err.count("\n") == 1


def test_a_session_or_a_host_is_not_replaced_by_local():
    with use_defaults(Defaults(local=True, master="local[7]")):
        assert not hg.environment(object())._local
        assert not hg.environment(host=object())._local
        assert hg.environment()._local
    assert not hg.environment()._local


def test_the_master_goes_to_the_host():
    with use_defaults(Defaults(master="local[7]")):
        env = hg.environment()
    assert env._host._master == "local[7]"


def test_classes_and_imports_of_a_script(script, tmp_path, capsys):
    (tmp_path / "beside.py").write_text("def double(n):\n    return 2 * n\n", encoding="utf-8")
    file = script("""
        from typing import NamedTuple
        from beside import double
        class Point(NamedTuple):
            x: int
        points = env.from_collection([Point(1), Point(2)]).key_by(lambda p: p.x).map(lambda p: Point(double(p.x)))
        print(sorted(points.execute_and_collect()))
    """)
    assert main(["run", file, "--local", "--parallelism", "2"]) == 0
    assert capsys.readouterr().out == "[Point(x=2), Point(x=4)]\n"


def test_a_function_that_raises_in_a_worker_is_code_1_with_its_own_traceback(script, capsys):
    file = script("""
        def reciprocal(n):
            return 1 / n
        env.from_collection([0]).map(reciprocal).print()
        env.execute()
    """)
    assert main(["run", file, "--local", "--parallelism", "1"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("headgate: map(reciprocal), subtask 0: ZeroDivisionError: division by zero\n")
    assert "return 1 / n" in err
    assert err.count("  File ") == 1


def test_a_script_that_raises_is_code_1_with_its_own_traceback(script, capsys):
    assert main(["run", script("def f():\n    env.from_source(3)\nf()\n"), "--local"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("TypeError: from_source wants a Source, not 3\n")
    assert err.count("  File ") == 2


def test_a_script_that_is_no_python_is_code_1(script, capsys):
    assert main(["run", script("def f(:\n")]) == 1
    assert "SyntaxError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonesuch.py"], "nonesuch.py is not a file"),
        (["job.py", "--local", "--master", "local[2]"], "not both"),
        (["job.py", "--set", "memory.segmentsize=1"], "did you mean memory.segment_size?"),
        (["job.py", "--set", "memory.segment_size"], "write it as KEY=VALUE"),
        (["job.py", "--local"], "a parallelism of 0 is not possible"),
    ],
)
def test_errors_of_headgate_are_one_line_and_code_2(arguments, said, script, capsys):
    script("env.set_parallelism(0)")
    assert main(["run", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("headgate: ")
    assert said in err
    assert err.count("\n") == 1


def test_an_unknown_option_is_not_taken_for_the_scripts(script, capsys):
    assert main(["run", script(""), "--paralelism", "4"]) == 2
    assert "--paralelism" in capsys.readouterr().err


@pytest.mark.parametrize(("said", "code", "err"), [("", 0, ""), ("3", 3, ""), ("'no'", 1, "no\n")])
def test_a_script_can_set_its_exit_code(said, code, err, script, capsys):
    assert main(["run", script(f"sys.exit({said})"), "--local"]) == code
    assert capsys.readouterr().err == err


@pytest.mark.parametrize("how", ["", "sys.exit(5)", "1 / 0"])
def test_no_job_runs_after_its_script(how, script, capsys):
    file = script(f"env.rate(100).for_each(lambda n: None)\njob = env.execute_async('endless')\n{how}\n")
    assert main(["run", file, "--local", "--parallelism", "1"]) == {"": 0, "sys.exit(5)": 5, "1 / 0": 1}[how]
    err = capsys.readouterr().err
    assert "endless" in err or "ZeroDivisionError" in err
    assert unfinished_jobs() == []


def test_the_users_part_of_a_traceback():
    ours = '  File "/x/headgate/task/operator.py", line 156, in user_code\n    yield\n'
    theirs = '  File "/x/headgate/examples/word_count.py", line 30, in words\n    return 1\n'
    head, tail = "Traceback (most recent call last):\n", "ValueError: no\n"
    assert users_part(head + ours + theirs + ours + tail) == head + theirs + tail
    assert users_part(head + ours + tail) == head + ours + tail, "a bug of ours is shown"


def test_logs_of_py4j_about_ctrl_c_are_hidden(script, capsys, caplog):
    file = script("""
        import logging
        logging.error("this is")
        logging.error("KeyboardInterrupt while sending command.")
        raise KeyboardInterrupt
    """)
    assert main(["run", file, "--local"]) == 130
    assert caplog.messages == ["this is"]
    assert capsys.readouterr().err.endswith("headgate: interrupted; its jobs are cancelled\n")


ENDLESS = {
    "execute": "env.rate(100).print()\nenv.execute('endless')\n",
    "collect": "for n in env.rate(100).execute_and_collect('endless'):\n    print(n, flush=True)\n",
    "async": "env.rate(100).print()\nenv.execute_async('endless')\nimport time\ntime.sleep(600)\n",
    "wait": "job = env.rate(100).execute_and_collect('endless')\nprint(next(job))\njob.job.await_termination()\n",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_ctrl_c_cancels_and_is_code_130(kind, script):
    with command("run", script(ENDLESS[kind]), "--local", "--parallelism", "1") as run:
        run.wait_until(lambda: "0\n" in run.out)
        run.interrupt()
        assert run.end() == 130
        assert run.err == "headgate: interrupted; its jobs are cancelled\n"


def test_ctrl_c_in_a_terminal_leaves_it_clean(script):
    file = script("env.rate(100).for_each(lambda n: None)\nenv.execute('endless')\n")
    with command("run", file, "--local", "--parallelism", "1", terminal=True) as run:
        run.wait_until(lambda: "endless: running" in run.out)
        run.interrupt()
        assert run.end() == 130
        drawn, _, after = run.out.rpartition("\x1b[J")
        assert "endless" in drawn
        assert after == "headgate: interrupted; its jobs are cancelled\n"
        assert "\x1b[?25l" not in run.out, "the cursor is never hidden"


def test_progress_is_drawn_below_printed_output_and_erased_at_the_end(script):
    file = script("""
        import time
        def slow(n):
            time.sleep(0.1)
            return n
        for n in env.from_collection(range(20)).map(slow).execute_and_collect('slowly'):
            print('record', n)
        print('done')
    """)
    with command("run", file, "--local", "--parallelism", "1", terminal=True) as run:
        assert run.end() == 0
        assert "slowly: running" in run.out
        assert run.out.rpartition("\x1b[J")[2].endswith("done\n")
        assert run.out.count("record ") == 20


@pytest.mark.parametrize("option", [[], ["--no-progress"]])
def test_without_a_terminal_or_with_no_progress_it_is_quiet(option, script):
    with command("run", script(ENDLESS["execute"]), "--local", *option, terminal=bool(option)) as run:
        run.wait_until(lambda: "0\n" in run.out)
        run.wait_until(lambda: "99\n" in run.out)
        run.interrupt()
        assert run.end() == 130
        assert "endless" not in run.out + run.err
