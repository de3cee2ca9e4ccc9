"""The fuzzer, in a process of its own, for a share of SOAK_SECONDS: it must find nothing."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).with_name("fuzz_wire.py")
SECONDS = max(10, int(float(os.environ.get("SOAK_SECONDS", "60")) / 4))
START_S = 120  # for an interpreter that instruments what it imports, on a busy machine

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="fuzzing needs atheris: pip install 'headgate[fuzz]'"
)


def fuzz(*options: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """The fuzzer's exit status and output; it is killed if it hangs."""
    return subprocess.run(
        [sys.executable, str(FUZZER), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


@needs_atheris
@pytest.mark.soak
@pytest.mark.timeout(SECONDS + START_S + 60)
@pytest.mark.spec("N8")
def test_the_fuzzer_finds_nothing(tmp_path):
    found = fuzz(f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/", timeout_s=SECONDS + START_S)
    crashes = {path.name: path.read_bytes().hex() for path in tmp_path.iterdir()}
    again = f"write the bytes to a file and run: python tests/fuzz/{FUZZER.name} FILE"
    assert found.returncode == 0, f"{found.stdout[-4000:]}\n{crashes}\n{again}"
    assert not crashes, crashes


@needs_atheris
def test_the_fuzzer_runs_and_measures_coverage(tmp_path):
    """A few inputs only: that the target starts, and is instrumented."""
    found = fuzz("-runs=20", "-seed=1", f"-artifact_prefix={tmp_path}/", timeout_s=START_S)
    assert found.returncode == 0, found.stdout[-6000:]
    covered = [int(word) for line in found.stdout.splitlines() if "cov: " in line for word in [line.split()[3]]]
    assert max(covered) > 300, found.stdout[-3000:]
