"""The answers of the JSON interface: correct, as described, and small if they are requested every second."""

import gzip
import json
import socket
import threading
import time
from dataclasses import replace

import jsonschema
import msgspec
import pytest
from tests.support.job_views import NASTY, FakeWatched, synthetic_view
from tests.support.page_server import serving
from tests.support.waiting import PATIENCE_S

import headgate as hg
from headgate.errors import HeadgateError
from headgate.observe import ChannelProgress, JobStatus, JobView, Pressure, Timeline, VertexProgress
from headgate.ui.openapi import describe
from headgate.ui.routes import OPERATIONS

DOCUMENT = json.loads(msgspec.json.encode(describe(OPERATIONS)))


@pytest.fixture(scope="module")
def shared():
    jobs = {
        "1": FakeWatched(synthetic_view()),
        "new": FakeWatched(synthetic_view(3, 2, sampled=False, job="new", name="fresh")),
        "over": FakeWatched(synthetic_view(7, 3, status=JobStatus.FAILED, nasty=True, job="over")),
    }
    with serving(jobs, allow_control=True) as client:
        client.jobs = jobs
        yield client


@pytest.fixture
def client(shared):
    yield shared
    for job in shared.jobs.values():
        job.error = None
    shared.settle()


def described(answer, path, method="get"):
    """An answer's JSON, once it was found to be what the description says; no more fields, either."""
    content = DOCUMENT["paths"][path][method]["responses"][str(answer.status)]["content"]
    assert answer.headers.get_content_type() in content
    schema = {**content["application/json"]["schema"], "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json)
    return answer.json


def test_jobs(client):
    rows = described(client.get("/api/jobs"), "/api/jobs")
    assert [row["id"] for row in rows] == ["1", "new", "over"]
    view = client.jobs["1"].shown
    first = {
        "id": "1",
        "name": "synthetic",
        "status": "running",
        "started_ms": view.at_ms - 90_000,
        "allow_control": True,
    }
    assert rows[0] == first
    assert rows[2]["allow_control"] is False, "it is over"


def test_a_job_without_its_subtasks(client):
    found = described(client.get("/api/jobs/1"), "/api/jobs/{job}")
    whole = client.jobs["1"].shown
    read = JobView.from_json(json.dumps(found))
    assert read.progress.vertices == tuple(replace(one, subtasks=()) for one in whole.progress.vertices)
    assert read.progress.workers == whole.progress.workers
    assert read.graph.edges == whole.graph.edges
    assert [one.workers for one in read.graph.vertices] == [()] * 5
    assert (read.events, read.settings, read.diagnosis) == (whole.events, whole.settings, whole.diagnosis)
    assert read.pressure is read.timeline is None
    consumer = whole.progress.vertices[2]
    assert read.edges[1].backlog == sum(one.backlog for one in consumer.subtasks)


@pytest.mark.parametrize("job", ["1", "new", "over"])
def test_every_answer_about_a_job_is_as_described(client, job):
    for one in OPERATIONS:
        if one.method != "GET" or "{job}" not in one.path:
            continue
        answer = client.get(one.path.format(job=job, vertex=1, edge=0))
        if answer.status == 204:
            assert (job, one.empty, answer.body) == ("new", True, b"")
        else:
            assert answer.status == 200
            described(answer, one.path)


def test_a_vertex_with_its_subtasks(client):
    found = described(client.get("/api/jobs/1/vertices/2"), "/api/jobs/{job}/vertices/{vertex}")
    assert msgspec.convert(found, VertexProgress) == client.jobs["1"].shown.progress.vertices[2]


def test_the_channels_of_an_edge(client):
    found = described(client.get("/api/jobs/1/edges/1"), "/api/jobs/{job}/edges/{edge}")
    assert (found["exchange"], found["producers"], found["consumers"]) == (1, 4, 4)
    assert {(one["producer"], one["consumer"]) for one in found["channels"]} == {
        (p, c) for p in range(4) for c in range(4)
    }
    for one in found["channels"]:
        task = client.jobs["1"].shown.progress.vertices[2].subtasks[one.pop("consumer")]
        assert msgspec.convert(one, ChannelProgress) in task.channels


def test_timelines(client):
    path = "/api/jobs/{job}/timeline"
    every = msgspec.convert(described(client.get("/api/jobs/1/timeline"), path), Timeline)
    assert (every.steps, [(one.vertex, one.subtask) for one in every.tasks]) == (300, [(v, -1) for v in range(5)])
    one = described(client.get("/api/jobs/1/timeline?seconds=10&points=50&vertex=2"), path)
    assert one["steps"] == 50
    assert [(line["vertex"], line["subtask"]) for line in one["tasks"]] == [(2, s) for s in (-1, 0, 1, 2, 3)]
    assert all(len(line["busy"]) == 50 for line in one["tasks"])


@pytest.mark.parametrize(
    "query",
    [
        *(f"seconds={value}" for value in ("0", "-1", "nan", "inf", "3601", "x", "")),
        *(f"points={value}" for value in ("0", "2001", "1.5", "-1", "99999999999")),
        *(f"vertex={value}" for value in ("", "x", "-1", "²")),
    ],
)
def test_invalid_timelines_are_refused(client, query):
    found = described(client.get(f"/api/jobs/1/timeline?{query.replace('²', '%C2%B2')}"), "/api/jobs/{job}/timeline")
    assert found["error"].startswith(query.partition("=")[0])


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/api/jobs/none", "/api/jobs/{job}"),
        ("/api/jobs/..%2f1", None),
        ("/api/jobs/1/vertices/5", "/api/jobs/{job}/vertices/{vertex}"),
        ("/api/jobs/1/edges/4", "/api/jobs/{job}/edges/{edge}"),
        ("/api/jobs/none/edges/0", "/api/jobs/{job}/edges/{edge}"),
        ("/api/jobs/1/timeline?vertex=5", "/api/jobs/{job}/timeline"),
        ("/api/jobs/none/timeline", "/api/jobs/{job}/timeline"),
        ("/api", None),
        ("/api/", None),
        ("/api/jobs/", None),
    ],
)
def test_unknown_jobs_vertices_and_edges_are_404(client, path, operation):
    answer = client.get(path)
    assert answer.status == 404
    assert list(answer.json) == ["error"]
    if operation:
        described(answer, operation)


@pytest.mark.parametrize("number", ["x", "-1", "1.0", "99999999999999999999"])
def test_invalid_numbers_are_refused(client, number):
    assert client.get(f"/api/jobs/1/vertices/{number}").status == 400
    assert client.get(f"/api/jobs/1/edges/{number}").status == 400


def test_reading_does_not_sample(client):
    job = client.jobs["1"]
    before = len(job.calls)
    assert client.get("/api/jobs/1/pressure").status == client.get("/api/jobs/1/why").status == 200
    for path in ("", "/workers", "/timeline", "/edges/0", "/vertices/0"):
        assert client.get(f"/api/jobs/1{path}").status == 200
    assert set(job.calls[before:]) <= {"view", "timeline"}


def test_sampling_and_asking_why():
    job = FakeWatched(synthetic_view(sampled=False))
    with serving({"1": job}) as client:
        assert client.get("/api/jobs/1/pressure").status == client.get("/api/jobs/1/why").status == 204
        pressure = described(client.post("/api/jobs/1/pressure"), "/api/jobs/{job}/pressure", "post")
        assert msgspec.convert(pressure, Pressure) == job.shown.pressure
        assert described(client.get("/api/jobs/1/pressure"), "/api/jobs/{job}/pressure") == pressure
        why = described(client.post("/api/jobs/1/why"), "/api/jobs/{job}/why", "post")
        assert (why["cause"], why["operator"]) == ("cpu", "map(enrich)")
        assert described(client.get("/api/jobs/1/why"), "/api/jobs/{job}/why") == why
        assert client.get("/api/jobs/1").json["diagnosis"] == why
        assert job.calls.count("pressure") == job.calls.count("why") == 1


def test_a_job_has_one_round_at_a_time():
    """Who asks for the same gets the same round; who asks for another waits; everything else goes on."""
    job, other = FakeWatched(synthetic_view(sampled=False)), FakeWatched(synthetic_view())
    job.gate.clear()
    answers = []
    with serving({"1": job, "2": other}) as client:
        asking = [
            threading.Thread(target=lambda path=path: answers.append(client.post(f"/api/jobs/1/{path}")))
            for path in ["pressure", "pressure", "pressure", "why", "why"]
        ]
        for thread in asking:
            thread.start()
        assert client.post("/api/jobs/2/pressure").status == 200
        assert client.get("/api/jobs/1").status == 200
        assert client.get("/metrics").status == 200
        assert len([one for one in job.calls if one in {"pressure", "why"}]) <= 1
        job.gate.set()
        for thread in asking:
            thread.join(PATIENCE_S)
        assert sorted(one for one in job.calls if one != "view") == ["pressure", "why"]
        assert [one.status for one in answers] == [200] * 5


def test_a_cancelled_request_does_not_end_the_round():
    job = FakeWatched(synthetic_view(sampled=False))
    job.gate.clear()
    with serving({"1": job}) as client:
        head = f"POST /api/jobs/1/pressure HTTP/1.1\r\nHost: {client.host}\r\nContent-Length: 0\r\n"
        with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE_S) as gone:
            gone.sendall(f"{head}Authorization: Bearer {client.server.token}\r\n\r\n".encode())
            assert job.asked.wait(PATIENCE_S)
        client.settle()
        job.gate.set()
        assert client.post("/api/jobs/1/pressure").status == 200
        assert job.calls.count("pressure") in {1, 2}


def test_cancelling_needs_to_be_allowed(client):
    job = FakeWatched(synthetic_view())
    with serving({"1": job}) as reader:
        answer = reader.post("/api/jobs/1/cancel")
        assert answer.status == 403
        assert "allow-control" in described(answer, "/api/jobs/{job}/cancel", "post")["error"]
        assert "cancel" not in job.calls
        assert reader.get("/api/jobs").json[0]["allow_control"] is False
    with serving({"1": job}, allow_control=True) as controller:
        assert controller.get("/api/jobs").json[0]["allow_control"] is True
        assert controller.ask("/api/jobs/1/cancel", "POST", b"", Cookie=controller.cookie()).status == 403, "no origin"
        assert described(controller.post("/api/jobs/1/cancel"), "/api/jobs/{job}/cancel", "post") == {"over": True}
        assert controller.get("/api/jobs/1").json["progress"]["status"] == "cancelled"
    assert job.calls.count("cancel") == 1


def test_a_job_that_is_gone_does_not_hide_the_others(client):
    client.jobs["1"].error = HeadgateError("its process has ended")
    client.jobs["new"].error = ZeroDivisionError("a bug")
    client.server._views._snapshots.clear()
    answer = client.get("/api/jobs/1")
    assert answer.status == 503
    assert described(answer, "/api/jobs/{job}") == {"error": "its process has ended"}
    assert client.get("/api/jobs/new").status == 500
    client.jobs["new"].error = None
    assert [row["id"] for row in client.get("/api/jobs").json] == ["new", "over"]
    assert b'job="over"' in client.get("/metrics").body


def test_names_of_users_are_only_json_strings(client):
    answer = client.get("/api/jobs/over")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert NASTY in answer.json["progress"]["name"]


def test_concurrent_requests_share_one_view():
    job = FakeWatched(synthetic_view())
    with serving({"1": job}) as client:
        for path in ("", "/vertices/1", "/edges/1", "/pressure", "/workers"):
            client.get(f"/api/jobs/1{path}")
        assert job.calls.count("view") < 5


def test_the_page_and_its_files(client):
    page = client.get("/")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<script>" not in page.body, "the policy would not let it run"
    script = client.get("/static/app.js")
    assert (script.status, script.headers.get_content_type()) == (200, "text/javascript")
    tag = script.headers["ETag"]
    again = client.get("/static/app.js", If_None_Match=tag)
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    packed = client.get("/static/plotly.min.js", Accept_Encoding="gzip")
    assert packed.headers["Content-Encoding"] == "gzip"
    plain = client.get("/static/plotly.min.js")
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


def test_200_vertices_of_100_subtasks():
    job = FakeWatched(synthetic_view(200, 100, timeline=False, sampled=False))
    with serving({"1": job}) as client:
        small = client.get("/api/jobs/1")
        assert len(small.body) < 400_000
        found = small.json
        assert len(found["progress"]["vertices"]) == 200
        assert sum(len(one["connections"]) for one in found["progress"]["workers"]) == 0
        assert sum(len(one["connections"]) for one in client.get("/api/jobs/1/workers").json) == 1600
        assert len(client.get("/api/jobs/1/vertices/100").json["subtasks"]) == 100
        edge = next(one.id for one in job.shown.graph.edges if one.consumer == 100)
        assert len(client.get(f"/api/jobs/1/edges/{edge}").json["channels"]) == 10_000
        text = client.get("/metrics").body
        assert b"headgate_subtask_" not in text
        assert text.count(b"\n") < 15_000


def test_a_real_job():
    env = hg.environment(local=True, parallelism=2, settings={"backpressure.samples": 10, "backpressure.delay": "5ms"})
    env.rate(500).map(lambda n: (n % 7, n)).key_by(lambda pair: pair[0]).map(lambda pair: pair).for_each(
        lambda pair: None
    )
    job = env.execute_async("a real one")
    try:
        with serving({job.id: job}, allow_control=True) as client:
            here = f"/api/jobs/{job.id}"
            for _ in range(300):
                view = described(client.get(here), "/api/jobs/{job}")
                if sum(one["records_out"] for one in view["progress"]["vertices"]):
                    break
                time.sleep(0.1)
            assert view["progress"]["status"] == "running"
            assert view["progress"]["name"] == "a real one"
            assert len(view["edges"]) == len(view["graph"]["edges"]) >= 1
            last = view["graph"]["vertices"][-1]["id"]
            vertex = described(client.get(f"{here}/vertices/{last}"), "/api/jobs/{job}/vertices/{vertex}")
            assert [one["subtask"] for one in vertex["subtasks"]] == [0, 1]
            for _ in range(300):  # until both workers have told of theirs
                channels = described(client.get(f"{here}/edges/0"), "/api/jobs/{job}/edges/{edge}")["channels"]
                if len(channels) == 4:
                    break
                time.sleep(0.1)
            assert {(one["producer"], one["consumer"]) for one in channels} == {(0, 0), (0, 1), (1, 0), (1, 1)}
            described(client.get(f"{here}/timeline?seconds=10"), "/api/jobs/{job}/timeline")
            sampled = described(client.post(f"{here}/pressure"), "/api/jobs/{job}/pressure", "post")
            assert [one["vertex"] for one in sampled["vertices"]] == [one["id"] for one in view["graph"]["vertices"]]
            assert client.get(f"{here}/pressure").json == sampled
            described(client.post(f"{here}/why"), "/api/jobs/{job}/why", "post")
            assert b"headgate_vertex_records_out_total" in client.get("/metrics").body
            assert client.post(f"{here}/cancel").json == {"over": True}
            assert client.get(here).json["progress"]["status"] == "cancelled"
    finally:
        job.cancel()
