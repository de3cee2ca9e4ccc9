"""`execute(ui=True)`: one page per process, which shows its jobs while they run and afterwards."""

import io
import sys
import time

import pytest
from tests.support.page_server import Client

import headgate as hg
from headgate.api.running import unfinished_jobs
from headgate.config.defaults import Defaults, Page, use_defaults
from headgate.errors import ConfigError
from headgate.ui import process_page as page
from headgate.ui.process_page import close_page, keep_page, open_page


@pytest.fixture(autouse=True)
def no_page_is_left():
    yield
    close_page()


@pytest.fixture
def env():
    return hg.environment(local=True, parallelism=1)


def client():
    return Client(page._server)


def test_without_the_option_there_is_no_page(env, capsys):
    env.from_collection([1]).for_each(lambda n: None)
    env.execute()
    assert page._server is None
    assert len(page._shown) == 0
    assert capsys.readouterr().err == ""


def test_a_job_can_be_seen_while_it_runs_and_afterwards(env, capsys):
    env.rate(100).for_each(lambda n: None)
    job = env.execute_async("endless", ui=True)
    try:
        err = capsys.readouterr().err
        assert err == f"headgate: the page is at {page._server.url}\n"
        rows = client().get("/api/jobs").json
        assert [(row["id"], row["name"], row["allow_control"]) for row in rows] == [(job.id, "endless", False)]
        assert client().post(f"/api/jobs/{job.id}/cancel").status == 403
    finally:
        job.cancel()
    deadline_s = time.monotonic() + 30
    while client().get(f"/api/jobs/{job.id}").json["progress"]["status"] != "cancelled":  # views are kept for a moment
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_the_address_is_printed_once_and_all_jobs_are_there(env, capsys):
    for name in ("first", "second"):
        env.from_collection([1]).for_each(lambda n: None)
        assert env.execute(name, ui=True).status.over
    env.from_collection([1]).for_each(lambda n: None)
    env.execute("third")
    assert capsys.readouterr().err.count("http://127.0.0.1:") == 1
    assert [row["name"] for row in client().get("/api/jobs").json] == ["first", "second", "third"]


def test_only_the_last_jobs_are_kept(env, monkeypatch):
    open_page(Page(), unfinished_jobs)
    monkeypatch.setattr(page, "_shown", page.deque(maxlen=2))
    for name in "abc":
        env.from_collection([1]).for_each(lambda n: None)
        env.execute(name)
    assert [row["name"] for row in client().get("/api/jobs").json] == ["b", "c"]


def test_the_options_of_headgate_run():
    with use_defaults(Defaults(local=True, parallelism=1, page=Page(allow_control=True))):
        env = hg.environment()
    assert list(env.from_collection([1]).execute_and_collect()) == [1]
    assert page._server.allow_control
    close_page()
    env.from_collection([1]).for_each(lambda n: None)
    env.execute(ui=False)
    assert page._server is None


def test_more_control_than_the_page_has():
    first = open_page(Page(), unfinished_jobs)
    assert open_page(Page(), unfinished_jobs) == first
    with pytest.raises(ConfigError, match="only shows jobs"):
        open_page(Page(allow_control=True), unfinished_jobs)


def test_a_page_that_cannot_start_prevents_the_job(env, monkeypatch):
    other = hg.environment(local=True, parallelism=1)
    open_page(Page(), unfinished_jobs)
    port = page._server.port
    server, page._server = page._server, None
    try:
        with use_defaults(Defaults(local=True, parallelism=1, page=Page(port=port))):
            other = hg.environment()
        other.from_collection([1]).for_each(lambda n: None)
        with pytest.raises(ConfigError, match=f"cannot listen on port {port}"):
            other.execute()
    finally:
        server.close()
    monkeypatch.delitem(vars(sys.modules["headgate.ui"]), "UiServer", raising=False)
    monkeypatch.delitem(sys.modules, "headgate.ui.server")
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [name for name in sys.modules if name.startswith(("starlette.", "headgate.ui.api"))]:
        monkeypatch.delitem(sys.modules, name)
    env.from_collection([1]).for_each(lambda n: None)
    with pytest.raises(ConfigError, match=r"pip install 'headgate\[ui\]'"):
        env.execute(ui=True)
    assert unfinished_jobs() == []


def test_closing_twice_and_opening_again():
    first = open_page(Page(), unfinished_jobs)
    close_page()
    close_page()
    assert open_page(Page(), unfinished_jobs) != first


@pytest.mark.parametrize("typed", ["\n", "go\n"])
def test_it_is_kept_until_enter(typed, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    url = open_page(Page(), unfinished_jobs)
    keep_page()
    assert f"stays at {url} until Enter or Ctrl-C" in capsys.readouterr().err


@pytest.mark.parametrize("stdin", [io.StringIO(""), None])
def test_without_a_terminal_the_page_is_kept_until_ctrl_c(stdin, monkeypatch):
    waits = []

    def interrupted(condition, predicate):
        waits.append(predicate())
        raise KeyboardInterrupt

    open_page(Page(), unfinished_jobs)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(page, "wait_until", interrupted)
    keep_page()
    assert waits == [False]
