"""The same script on local-cluster, on a standalone cluster of this machine, and through spark-submit."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from headgate.spark.java import find_java, without_incubator

SCRIPT = Path(__file__).with_name("word_count_script.py")
LOSING = Path(__file__).with_name("lost_executor_script.py")
RETURNING = Path(__file__).with_name("returning_executor_script.py")
ROOT = Path(__file__).parents[2]
COUNTED = "counted [('be', 20, 'short'), ('not', 10, 'long'), ('or', 10, 'short'), ('to', 20, 'short')]"
RUN_S = 240.0  # two cores, several JVMs: only a hang takes so long

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PySpark's own directory, with a place for what executors write."""
    home = tmp_path_factory.mktemp("spark-home")
    for one in Path(pyspark.__file__).parent.iterdir():
        (home / one.name).symlink_to(one)
    return home


@pytest.fixture(scope="module")
def environ(spark_home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home),
        "JAVA_HOME": str(without_incubator(find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(  # where the pipelines that several tests run are
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }


def run(command: list[str], environ: dict[str, str]) -> str:
    with subprocess.Popen(
        command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=RUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: nothing else is in it
    assert process.returncode == 0, f"{out}\n{err[-4000:]}"
    return out


def test_python_script(environ: dict[str, str]) -> None:
    out = run([sys.executable, str(SCRIPT)], environ)
    assert COUNTED in out
    assert re.search(r"master local\[\d+\]", out)


def test_spark_submit(environ: dict[str, str], spark_home: Path) -> None:
    submit = str(spark_home / "bin" / "spark-submit")
    out = run([submit, "--master", "local[3]", "--conf", "spark.ui.enabled=false", str(SCRIPT)], environ)
    assert COUNTED in out
    assert "master local[3]" in out


def test_local_cluster(environ: dict[str, str]) -> None:
    out = run([sys.executable, str(SCRIPT), "local-cluster[2,1,1024]"], environ)
    assert COUNTED in out


class Standalone:
    """A master and its workers, with one core each."""

    def __init__(self, environ: dict[str, str], spark_home: Path, place: Path) -> None:
        self._environ, self._spark_class, self._place = environ, str(spark_home / "bin" / "spark-class"), place
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.address = f"spark://127.0.0.1:{port}"
        wait_for_port(port, self._start("master.Master", "--host", "127.0.0.1", "--port", str(port)))

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [self._spark_class, f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
        with (self._place / f"log-{len(self._processes)}").open("w") as log:
            started = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(started)
        return started

    def start_worker(self) -> "subprocess.Popen[bytes]":
        work = str(self._place / f"work-{len(self._processes)}")
        limits = ["--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--work-dir", work]
        return self._start("worker.Worker", *limits, self.address)

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=20)


@pytest.fixture
def cluster(environ: dict[str, str], spark_home: Path, tmp_path: Path) -> Iterator[Standalone]:
    made = Standalone(environ, spark_home, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def standalone(cluster: Standalone) -> str:
    """The address of a cluster with two workers."""
    cluster.start_worker()
    cluster.start_worker()
    return cluster.address


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "the master has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "the master does not listen"
            time.sleep(0.1)
        else:
            return


def test_standalone_cluster_in_tls(environ: dict[str, str], standalone: str) -> None:
    out = run([sys.executable, str(SCRIPT), standalone], environ)
    assert COUNTED in out
    assert f"master {standalone}" in out
    lost = run([sys.executable, str(LOSING), standalone], environ)
    assert "issuers ['CN=headgate job authority']" in lost, "every port of a worker is the job's, in TLS"
    assert re.search(r"ended with TransportError: worker \d was lost", lost), lost
    assert "status failed" in lost


@pytest.mark.spec("T4")
def test_a_batch_job_waits_for_an_executor_that_comes_back(
    environ: dict[str, str], cluster: Standalone, tmp_path: Path
) -> None:
    """Without slots, three attempts take less than 20 s; the machine is back after more."""
    cluster.start_worker()
    lost = cluster.start_worker()
    notes = tmp_path / "notes"
    notes.mkdir()
    command = [sys.executable, str(RETURNING), cluster.address, str(notes)]
    with subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            wait_for(lambda: len(list(notes.glob("pid-*"))) == 2, process)
            os.killpg(lost.pid, signal.SIGKILL)  # and its executor
            (notes / "go").touch()
            wait_for((notes / "waits").exists, process)
            time.sleep(25)
            cluster.start_worker()
            out, _ = process.communicate(timeout=RUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert "counted 60, status finished" in out, out
    assert "waiting up to 5 min for 2 task slots: Spark has 1" in out


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"the script has ended: {process.stdout and process.stdout.read()}"
        assert time.monotonic() < deadline
        time.sleep(0.05)
