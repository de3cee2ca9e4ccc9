"""The same API in a notebook's kernel: cells one after the other, a job in the background, and the stop button."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(240)

CELL_S = 120  # Spark's start is in the first; only a hang takes so long

SETUP = """
from dataclasses import dataclass
import headgate as hg

@dataclass(frozen=True)
class Word:  # a class of the notebook itself, which workers cannot import
    text: str
    n: int

env = hg.environment(parallelism=2)
"""

COUNT = """
words = env.from_collection(["to be or not", "to be"]).flat_map(str.split).map(lambda word: Word(word, 1))
counts = words.key_by(lambda word: word.text).reduce(lambda a, b: Word(a.text, a.n + b.n))
last = {word.text: word.n for word in counts.execute_and_collect()}
print(sorted(last.items()))
"""

BACKGROUND = """
env.rate(100).for_each(lambda n: None)
job = env.execute_async("in the background")
print(job.status in ("created", "running"), job.cancel(), str(job.status))
"""

ENDLESS = """
from pathlib import Path
env.rate(100).for_each(lambda n: Path({begun!r}).touch())
env.execute("until the stop button")
"""

AFTER = """
from headgate.api.running import unfinished_jobs
print(unfinished_jobs(), env.from_collection([1, 2]).map(lambda n: n + 1).execute_and_collect().__next__() in (2, 3))
"""


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    return tmp_path / "begun"


@pytest.fixture
def client(begun: Path) -> Iterator[NotebookClient]:
    cells = (SETUP, COUNT, BACKGROUND, ENDLESS.format(begun=str(begun)), AFTER)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    client = NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", allow_errors=True)
    with client.setup_kernel():
        yield client


def said(cell: nbformat.NotebookNode) -> str:
    return "".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == "stdout")


def run(client: NotebookClient, number: int) -> nbformat.NotebookNode:
    return client.execute_cell(client.nb.cells[number], number)


def press_stop_once(begun: Path, kernel: int) -> None:
    deadline = time.monotonic() + CELL_S
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(kernel, signal.SIGINT)  # what a notebook's stop button does


def test_cells_run_jobs_and_the_stop_button_ends_one(client: NotebookClient, begun: Path) -> None:
    assert not run(client, 0).outputs
    assert said(run(client, 1)) == "[('be', 2), ('not', 1), ('or', 1), ('to', 2)]\n"
    assert said(run(client, 2)) == "True True cancelled\n"
    presser = threading.Thread(target=press_stop_once, args=(begun, client.km.provisioner.pid))
    presser.start()
    (error,) = run(client, 3).outputs
    presser.join()
    assert begun.exists()
    assert error.ename == "KeyboardInterrupt"
    assert said(run(client, 4)) == "[] True\n"
