"""How much memory a worker has for buffers: the formula that docs/configuration.md gives, number by number."""

import pytest
from tests.support.pipelines import run

import headgate as hg
from headgate.config import load_settings
from headgate.graph.plan import Plan
from headgate.ids import JobId
from headgate.worker import memory
from headgate.worker.memory import expected_segments, network_memory, worker_memory_bytes

MIB, GIB = 2**20, 2**30


def plan_with(workers=2, **settings):
    code = {f"memory.{key.replace('__', '.')}": value for key, value in settings.items()}
    return Plan(JobId("1"), "job", (), (), workers=workers, settings=load_settings(code=code, environ={}))


@pytest.fixture
def machine(monkeypatch):
    """Let this machine have so much memory."""
    return lambda size: monkeypatch.setattr(memory, "machine_memory_bytes", lambda: size)


@pytest.mark.spec("M2")
def test_by_default_a_worker_assumes_at_most_one_gib(machine):
    """Two workers and the driver share 24 GiB, 8 GiB each, of which a tenth would be 819.2 MiB."""
    machine(24 * GIB)
    assert worker_memory_bytes(plan_with().settings, workers=3) == GIB
    assert network_memory(plan_with()) == (GIB // 10, None)
    machine(2 * GIB)
    assert worker_memory_bytes(plan_with().settings, workers=3) == 2 * GIB // 3, "its share, which is less"
    assert network_memory(plan_with()) == (2 * GIB // 30, None)


@pytest.mark.spec("M2")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"network__fraction": 0.1}, int(0.1 * 8 * GIB)),
        ({"network__fraction": 0.01}, int(0.01 * 8 * GIB)),
        ({"network__fraction": 0.001}, 64 * MIB),  # min
        ({"network__fraction": 0.5}, GIB),  # max
        ({"network__max": "4 GiB"}, int(0.1 * 8 * GIB)),
        ({"network__max": "200 MiB"}, 200 * MIB),
        ({"network__fraction": 0.5, "network__max": "4 GiB"}, 4 * GIB),
        ({"network__min": "2 GiB", "network__max": "4 GiB"}, 2 * GIB),
        ({"network__min": "200 MiB"}, 200 * MIB),  # it says nothing about the fraction: of 1 GiB at most
    ],
)
def test_settings_of_network_memory_apply_to_the_whole_share(machine, settings, expected):
    """min(max, max(min, fraction x memory)), of the 8 GiB that are a worker's share."""
    machine(24 * GIB)
    assert network_memory(plan_with(**settings)).bytes == expected


@pytest.mark.spec("M2")
def test_the_memory_of_a_container_counts_not_that_of_its_machine(tmp_path, monkeypatch):
    limit, real = tmp_path / "memory.max", open
    monkeypatch.setattr("builtins.open", lambda path, *a, **k: real(limit if "cgroup" in str(path) else path, *a, **k))
    limit.write_text("123456789\n")
    assert memory.machine_memory_bytes() == 123456789
    limit.write_text("max\n")
    unlimited = memory.machine_memory_bytes()
    limit.unlink()
    assert memory.machine_memory_bytes() == unlimited > 123456789


@pytest.mark.spec("M1", "M2")
def test_workers_have_the_segments_of_the_formula(machine):
    machine(24 * GIB)
    settings = {"memory.network.fraction": 0.001, "memory.network.min": "1 MiB", "memory.segment_size": "16 KiB"}
    env = hg.environment(local=True, parallelism=2, settings=settings)
    env.from_collection(range(10)).rebalance().for_each(lambda _: None)
    job = run(env)
    expected = int(0.001 * 8 * GIB) // (16 * 1024)
    assert expected == 524
    assert expected_segments(env._plan([*job_nodes(env)], None)) == [expected] * 2
    assert [worker.segments_total for worker in job.last_progress.workers] == [expected] * 2


def job_nodes(env):
    """The same shape again: what was executed is gone from the environment."""
    env.from_collection(range(10)).rebalance().for_each(lambda _: None)
    return env._graph.nodes()


@pytest.mark.spec("M2")
def test_that_max_caps_is_logged_once_for_a_job(machine, caplog):
    machine(24 * GIB)
    env = hg.environment(local=True, parallelism=2, settings={"memory.network.max": "64 MiB"})
    env.from_collection(range(10)).rebalance().for_each(lambda _: None)
    run(env)
    found = [record.getMessage() for record in caplog.records if "caps" in record.getMessage()]
    assert len(found) == 1, "by the driver, not by every worker"
    assert "memory.network.max = 64 MiB (code) caps the 819.2 MiB that memory.network.fraction = 0.1" in found[0]
    assert "unless memory.network.max is raised together with it" in found[0]
