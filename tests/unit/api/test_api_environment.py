"""Settings, hosts, execution, and what is imported."""

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

import headgate as hg
from headgate.api.results import Inbox
from headgate.config import load_settings
from headgate.config.defaults import Defaults, use_defaults
from headgate.coordinator import Job, JobStatus
from headgate.errors import Cancelled, ConfigError
from headgate.ids import JobId


class Host:
    """Takes plans and answers with a job that is in the test's hand."""

    def __init__(self, conf=None):
        self.conf = conf or {}
        self.plans = []
        self.cancelled = []

    def spark_conf(self):
        return self.conf

    def default_parallelism(self):
        return 5

    def check(self, plan):
        pass

    def run(self, plan):
        self.plans.append(plan)
        self.job = Job(plan.job, plan.name, progress=lambda: None, cancel=self.cancel)
        self.job.begin()
        return self.job

    def cancel(self, reason):
        self.cancelled.append(reason)
        self.job.ending(None)
        self.job.end(JobStatus.CANCELLED)


def test_settings_of_all_kinds():
    env = hg.environment(local=True, parallelism=1, settings={"memory.segment_size": "4 KiB"})
    env.set("network.buffers_per_channel", 4).set_buffer_timeout(20).set_max_parallelism(16)
    settings = env.settings
    assert settings.memory.segment_size == 4096
    assert settings.network.buffers_per_channel == 4
    assert str(settings.execution.buffer_timeout) == "20 ms"
    assert settings.execution.max_parallelism == 16


@pytest.mark.spec("T4")
def test_the_runtime_mode():
    assert hg.environment(local=True).settings.execution.runtime_mode is hg.RuntimeMode.STREAMING
    env = hg.environment(local=True, runtime_mode="BATCH", settings={"execution.runtime_mode": "AUTO"})
    assert env.settings.execution.runtime_mode is hg.RuntimeMode.BATCH, "an argument is nearer than a setting"
    assert env.set_runtime_mode(hg.RuntimeMode.AUTO).settings.execution.runtime_mode is hg.RuntimeMode.AUTO
    assert env.set_runtime_mode("streaming").settings.execution.runtime_mode is hg.RuntimeMode.STREAMING
    with pytest.raises(ConfigError, match="'STREAMING' or 'BATCH' or 'AUTO'"):
        hg.environment(runtime_mode="micro-batch")


def test_the_runtime_mode_of_the_command_line_is_the_default_of_an_environment():
    with use_defaults(Defaults(runtime_mode="BATCH", settings={"memory.segment_size": "4 KiB"})):
        assert hg.environment().settings.execution.runtime_mode is hg.RuntimeMode.BATCH
        assert hg.environment(runtime_mode="AUTO").settings.execution.runtime_mode is hg.RuntimeMode.AUTO
        said = hg.environment(settings={"execution.runtime_mode": "STREAMING"})
        assert said.settings.execution.runtime_mode is hg.RuntimeMode.STREAMING


@pytest.mark.spec("T4")
def test_the_plan_that_a_host_gets():
    host = Host()
    env = hg.environment(host=host, parallelism=2, runtime_mode="AUTO")
    env.from_collection([1]).for_each(print)
    env.execute_async()
    env.rate(1).for_each(print)
    env.execute_async()
    assert [plan.batch for plan in host.plans] == [True, False]


def test_a_stream_can_be_executed_after_its_mode_was_refused():
    host = Host()
    env = hg.environment(host=host, parallelism=2, runtime_mode="BATCH")
    env.rate(1).for_each(print)
    with pytest.raises(ConfigError, match="rate: this source has no end"):
        env.execute()
    env.set_runtime_mode("STREAMING").execute_async()
    assert [vertex.name for vertex in host.plans[0].vertices] == ["rate -> for_each(print)"]


def test_a_wrong_setting_is_refused_where_it_is_set():
    env = hg.environment(local=True)
    with pytest.raises(ConfigError, match=r"did you mean memory\.segment_size"):
        env.set("memory.segmentsize", 4096)
    with pytest.raises(ConfigError, match="too small"):
        env.set("memory.segment_size", 1)
    with pytest.raises(ConfigError, match="unknown setting"):
        hg.environment(local=True, settings={"nonesuch": 1})
    assert env.settings == load_settings()


def test_settings_of_spark_and_code_over_them():
    host = Host({"spark.headgate.memory.segment_size": "8 KiB", "spark.headgate.record.batch_size": "7"})
    env = hg.environment(host=host).set("record.batch_size", 9)
    env.from_collection([1]).print()
    env.execute_async()
    assert host.plans[0].settings.memory.segment_size == 8192
    assert host.plans[0].settings.record.batch_size == 9


def test_the_host_gives_the_number_of_slots():
    assert hg.environment(host=Host()).parallelism == 5
    assert hg.environment(host=Host(), parallelism=2).parallelism == 2


def test_local_and_a_session_contradict():
    with pytest.raises(ConfigError, match="not both"):
        hg.environment(object(), local=True)


def test_dataframes_need_spark():
    env = hg.environment(local=True)
    with pytest.raises(ConfigError, match="from_dataframe needs Spark"):
        env.from_dataframe(None)
    with pytest.raises(ConfigError, match="to_dataframe needs Spark"):
        env.from_collection([1]).to_dataframe("n long")


def test_dataframes_are_the_hosts():
    class Spark(Host):
        def session(self, slots):
            assert slots == 2

        def dataframe_sink(self, schema):
            self.sink = hg.MemorySink()
            return self.sink

        def to_dataframe(self, plan, sink, *, streamed):
            assert sink is self.sink
            return plan, streamed

    env = hg.environment(host=Spark(), parallelism=2)
    assert not env.from_dataframe("df").is_arrow
    stream = env.from_dataframe("df", form="arrow")
    assert stream.is_arrow
    stream.print()
    plan, streamed = stream.to_dataframe("n long", streamed=True)
    assert [vertex.name for vertex in plan.vertices] == ["dataframe -> to_dataframe"]
    assert streamed
    assert [node.name for node in env._graph.nodes()] == ["dataframe"] * 2 + ["print"], "it runs by itself"


def test_jobs_have_names_and_numbers_of_their_own():
    env = hg.environment(host=Host(), parallelism=1)
    for name in ("one", "two"):
        env.from_collection([1]).print()
        env.execute_async(name)
    one, two = env._own_host.plans
    assert (one.name, two.name) == ("one", "two")
    assert one.job != two.job


def test_ctrl_c_cancels(monkeypatch):
    host = Host()
    env = hg.environment(host=host, parallelism=1)
    env.from_collection([1]).print()

    def interrupted(self, timeout_s=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "await_termination", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.execute()
    assert len(host.cancelled) == 1


def test_an_unknown_form_of_explain():
    env = hg.environment(local=True, parallelism=1)
    env.from_collection([1]).print()
    assert env.explain().startswith("headgate job: STREAMING, 2 vertices on 1 worker and in the driver")
    with pytest.raises(ValueError, match="'text' or 'mermaid'"):
        env.explain("svg")
    assert len(env._graph.nodes()) == 2, "explaining is not executing"


# Results.


def running():
    return Host().run(type("Plan", (), {"job": JobId("1"), "name": "job"})())


def test_results_end_with_the_job():
    job = running()
    inbox = Inbox()
    inbox.put_batch([1, 2])
    results = hg.Results(inbox, job)
    assert next(results) == 1
    job.end(JobStatus.FINISHED)
    assert list(results) == [2]


def test_results_raise_the_failure_of_the_job():
    job = running()
    inbox = Inbox()
    inbox.put_batch([1])
    results = hg.Results(inbox, job)
    job.ending(hg.UserCodeError("boom", operator="map", subtask=0))
    job.end(JobStatus.FAILED)
    assert next(results) == 1
    with pytest.raises(hg.UserCodeError, match="boom"):
        next(results)


def test_results_raise_cancelled_if_the_job_is_cancelled_before_its_end():
    job = running()
    inbox = Inbox()
    inbox.put_batch([1])
    results = hg.Results(inbox, job)
    job.cancel()
    assert next(results) == 1
    with pytest.raises(Cancelled, match="before all its results were there"):
        next(results)


def test_enough_results_cancel_the_job():
    host = Host()
    job = host.run(type("Plan", (), {"job": JobId("1"), "name": "job"})())
    inbox = Inbox()
    inbox.put_batch([1, 2, 3])
    assert list(hg.Results(inbox, job, limit=2)) == [1, 2]
    assert job.status is JobStatus.CANCELLED
    inbox.put_batch([4])  # returns at once after the end


def test_unread_results_block_the_job_until_it_is_over():
    job = running()
    inbox = Inbox()
    results = hg.Results(inbox, job)
    inbox.put_batch(list(range(10_000)))
    putting = threading.Thread(target=inbox.put_batch, args=([10_000],))
    putting.start()
    putting.join(0.05)
    assert putting.is_alive()
    assert next(results) == 0
    putting.join(PATIENCE_S)
    assert not putting.is_alive()
    inbox.put_batch(list(range(10_000)))
    putting = threading.Thread(target=inbox.put_batch, args=([10_000],))
    putting.start()
    job.ending(hg.ConfigError("boom"))
    putting.join(PATIENCE_S)
    assert not putting.is_alive()
    job.end(JobStatus.FAILED)
    results.close()


# Imports.


def test_import_headgate_imports_next_to_nothing():
    script = "import sys, headgate; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("headgate")] == ["headgate", "headgate.version"]


def test_building_a_pipeline_imports_no_heavy_library():
    script = (
        "import sys, headgate as hg; env = hg.environment(local=True, parallelism=2);"
        "env.from_collection([1]).map(str).key_by(len).count().print();"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pyarrow", "pandas", "pyspark", "asyncio"} & set(loaded)


@pytest.mark.parametrize("name", hg.__all__)
def test_every_name_can_be_had(name):
    value = getattr(hg, name)
    assert value.__name__ == name
    assert name in dir(hg)


def test_type_checkers_and_programs_see_the_same_names():
    tree = ast.parse(Path(hg.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    checked = {alias.name: node.module for node in block.body for alias in node.names}
    assert checked == hg._HOMES
    assert sorted(checked) == sorted(hg.__all__)


def test_a_name_that_there_is_not():
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        hg.nonesuch  # noqa: B018 - asking is enough
