"""The metrics for Prometheus are valid and correct, and their number does not depend on users' data."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.job_views import NASTY, FakeWatched, synthetic_view
from tests.support.page_server import serving

from headgate.observe import HotKey, JobStatus, OperatorProgress
from headgate.ui.prometheus import exposition


def scraped(**views):
    """Metrics by name; of each, values by labels."""
    text, media_type = exposition(views)
    assert media_type == "text/plain; version=0.0.4; charset=utf-8"
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.name.startswith("headgate_")
        assert family.documentation.endswith(".")
        assert family.type in {"gauge", "counter"}
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), "a series is there once"
            found[sample.name][labels] = sample.value
    return found


def of(values, **labels):
    """The one value that has these labels."""
    wanted = {(name, str(value)) for name, value in labels.items()}
    (value,) = [value for key, value in values.items() if wanted <= set(key)]
    return value


def test_metrics_equal_the_figures_of_the_view():
    view = synthetic_view()
    found = scraped(one=view)
    slow = view.progress.vertices[2]
    assert of(found["headgate_job"], job="one", name="synthetic", version=view.headgate) == 1
    assert of(found["headgate_job_status"], status="running") == 1
    assert sum(found["headgate_job_status"].values()) == 1
    assert of(found["headgate_vertex_records_in_total"], vertex=2, operator=slow.name) == slow.records_in
    assert of(found["headgate_vertex_busy_ratio"], vertex=2) == pytest.approx(slow.busy)
    assert of(found["headgate_vertex_back_pressured_max_ratio"], vertex=0) == pytest.approx(0.85)
    assert of(found["headgate_vertex_watermark_lag_seconds"], vertex=2) == 1.5
    assert of(found["headgate_vertex_latency_seconds"], vertex=2, source=0, quantile="0.99") == pytest.approx(0.022)
    assert of(found["headgate_vertex_hot_key_ratio"], vertex=1, exchange=1) == 0.61
    assert of(found["headgate_vertex_counter_total"], vertex=2, counter="late_records") == 6
    task = slow.subtasks[3]
    assert of(found["headgate_subtask_backlog_buffers"], vertex=2, subtask=3, worker=3) == task.backlog
    assert of(found["headgate_exchange_channels"], exchange=1, producer=1, consumer=2) == 16
    channels = [one for task in slow.subtasks for one in task.channels]
    assert of(found["headgate_exchange_backlog"], exchange=1) == sum(one.backlog for one in channels)
    assert of(found["headgate_worker_segments_free"], worker=3) == 1500
    assert of(found["headgate_connection_round_trip_seconds"], worker=0, peer=1) == pytest.approx(0.00008)


def test_unknown_figures_are_left_out():
    view = synthetic_view(2, 1)
    vertices = tuple(
        replace(one, watermark_lag_ms=None, subtasks=tuple(replace(task, cpu=None) for task in one.subtasks))
        for one in view.progress.vertices
    )
    found = scraped(one=replace(view, progress=replace(view.progress, vertices=vertices)))
    assert "headgate_vertex_watermark_lag_seconds" not in found
    assert "headgate_subtask_cpu_ratio" not in found
    assert "headgate_connection_bytes_out_total" not in found


def test_several_jobs_and_nasty_names():
    found = scraped(
        one=synthetic_view(job="one"),
        two=synthetic_view(nasty=True, status=JobStatus.FAILED),
        three=synthetic_view(name='a "quoted"\nname\\ \ud800'),
    )
    assert of(found["headgate_job_status"], job="two", status="failed") == 1
    names = [dict(labels)["name"] for labels in found["headgate_job"]]
    assert names == ["synthetic", f"synthetic {NASTY}", 'a "quoted"\nname\\ \\ud800']


def test_keys_are_not_labels_and_counters_are_bounded():
    view = synthetic_view()
    keys = tuple(HotKey(exchange=1, key=f"user-{n}@example.org", share=n / 100) for n in range(30))
    counters = {f"counter {n:03}": n for n in range(500)}
    vertices = tuple(replace(one, hot_keys=keys, counters=counters) for one in view.progress.vertices)
    text = exposition({"1": replace(view, progress=replace(view.progress, vertices=vertices))})[0]
    assert b"@example.org" not in text
    found = scraped(one=replace(view, progress=replace(view.progress, vertices=vertices)))
    assert of(found["headgate_vertex_hot_key_ratio"], vertex=1) == 0.29
    assert len(found["headgate_vertex_counter_total"]) == 5 * 50


@pytest.mark.parametrize(("subtasks", "each"), [(99, True), (100, False)])
def test_subtasks_have_series_of_their_own_up_to_1000(subtasks, each):
    view = synthetic_view(11, subtasks, timeline=False, sampled=False)
    assert sum(len(one.subtasks) for one in view.progress.vertices) == 10 * subtasks + 1
    found = scraped(one=view)
    assert ("headgate_subtask_records_in_total" in found) == each
    assert len(found["headgate_vertex_records_in_total"]) == 11
    assert len(found["headgate_exchange_credit"]) == len(view.graph.edges)


def test_the_route():
    with serving({"1": FakeWatched(synthetic_view()), "2": FakeWatched(synthetic_view())}) as client:
        answer = client.get("/metrics")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert len(list(text_string_to_metric_families(answer.body.decode()))) > 30
        assert client.ask("/metrics").status == 403
        assert client.ask("/metrics", Cookie=client.cookie()).status == 200


@pytest.mark.spec("K1", "B2")
def test_operators_have_series_of_records_in_out_and_side_outputs():
    view = synthetic_view()
    vertex, place = view.progress.vertices[1], view.graph.vertices[1]
    found = scraped(one=view)
    for position, (one, name) in enumerate(zip(vertex.operators, place.operators, strict=True)):
        labels = {"vertex": 1, "position": position, "operator": name}
        assert of(found["headgate_operator_records_in_total"], **labels) == one.records_in
        assert of(found["headgate_operator_records_out_total"], **labels) == one.records_out
    assert of(found["headgate_operator_side_output_records_total"], vertex=1, position=1, output="late") == 7


def test_side_outputs_are_bounded():
    view = synthetic_view(2, 1)
    many = OperatorProgress(side_outputs={f"tag {n}": n for n in range(500)})
    vertices = tuple(replace(one, operators=(many,)) for one in view.progress.vertices)
    found = scraped(one=replace(view, progress=replace(view.progress, vertices=vertices)))
    assert len(found["headgate_operator_side_output_records_total"]) == 2 * 50
