"""`headgate run` on Spark: a script as a user starts it."""

import time
from textwrap import dedent

import pytest
from tests.support.commands import PATIENCE_S, command

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def write(directory, text):
    file = directory / "job.py"
    file.write_text(dedent(text), encoding="utf-8")
    return file


def test_a_script_runs_on_spark_and_its_failure_is_its_own(tmp_path):
    file = write(
        tmp_path,
        """
        from typing import NamedTuple
        import headgate as hg

        class Count(NamedTuple):
            word: str
            n: int

        def reciprocal(n):
            return 1 / n

        env = hg.environment()
        words = env.from_collection(["to be", "or not to be"]).flat_map(str.split).map(lambda word: Count(word, 1))
        counts = words.key_by(lambda one: one.word).reduce(lambda a, b: Count(a.word, a.n + b.n))
        print(env, sorted({one.word: one.n for one in counts.execute_and_collect()}.items()), flush=True)
        env.from_collection([0]).map(reciprocal).print()
        env.execute()
        """,
    )
    with command("run", file, "--master", "local[2]", "--parallelism", "2") as run:
        assert run.end() == 1
        counted = [("be", 2), ("not", 1), ("or", 1), ("to", 2)]
        assert run.out == f"<StreamExecutionEnvironment on Spark, parallelism 2> {counted}\n"
        assert "ZeroDivisionError: division by zero" in run.err
        assert run.err.count("  File ") == 1
        assert f'File "{file}"' in run.err


def test_ctrl_c_ends_everything_and_leaves_the_terminal_clean(tmp_path):
    file = write(
        tmp_path,
        """
        import headgate as hg
        env = hg.environment()
        env.rate(100).map(lambda n: f"record {n}").print(limit=5)
        env.execute("endless")
        """,
    )
    with command("run", file, "--parallelism", "2", terminal=True) as run:
        run.wait_until(lambda: "endless: running" in run.out and "record" in run.out)
        run.interrupt()
        assert run.end() == 130
        assert "starting Spark ... " in run.out
        *records, last = run.out.rpartition("\x1b[J")[2].splitlines()
        assert last == "headgate: interrupted; its jobs are cancelled"
        assert all(one.startswith("record ") for one in records), "nothing of the view stays"
        deadline = time.monotonic() + PATIENCE_S
        while run.left() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert run.left() == []
