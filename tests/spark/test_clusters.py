"""The same script on local-cluster, on a standalone cluster of this machine, and through spark-submit."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from headgate.spark.java import find_java, without_incubator

SCRIPT = Path(__file__).with_name("word_count_script.py")
LOSING = Path(__file__).with_name("lost_executor_script.py")
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
        "PYTHONPATH": str(ROOT),  # where the pipelines that several tests run are
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


@pytest.fixture
def standalone(environ: dict[str, str], spark_home: Path, tmp_path: Path) -> Iterator[str]:
    """A master and two workers with one core each; its address."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    web = ["--webui-port", "0"]
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), *web]]
    for number in range(2):
        work = ["--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--work-dir", str(tmp_path / f"work-{number}")]
        commands.append([f"{deploy}.worker.Worker", *work, *web, address])
    processes = []
    try:
        for number, command in enumerate(commands):
            log = (tmp_path / f"log-{number}").open("w")
            with log:
                processes.append(
                    subprocess.Popen(
                        [str(spark_home / "bin" / "spark-class"), *command],
                        env=environ,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
            if number == 0:
                wait_for_port(port, processes[0])
        yield address
    finally:
        for process in reversed(processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=20)


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
