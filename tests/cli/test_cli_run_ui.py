"""`headgate run --ui`: the page of a script's jobs."""

import re
import socket
import sys
from textwrap import dedent
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from tests.support.commands import command
from tests.support.page_server import Client

from headgate.cli import main
from headgate.ui import process_page as page

ENDLESS = "env.rate(100).print()\nenv.execute('endless')\n"
SHORT = "env.from_collection(['to', 'be']).print()\nenv.execute('short')\n"


@pytest.fixture
def script(tmp_path):
    def write(text):
        file = tmp_path / "job.py"
        file.write_text(f"import sys\nimport headgate as hg\nenv = hg.environment()\n{dedent(text)}", encoding="utf-8")
        return str(file)

    return write


class Enter:
    """A stdin that opens the page before it returns Enter."""

    def __init__(self):
        self.seen = None

    def readline(self):
        self.seen = Client(page._server).get("/api/jobs").json
        return "\n"


@pytest.mark.parametrize(("body", "code", "status"), [(SHORT, 0, "finished"), (f"{SHORT}1 / 0", 1, "finished")])
def test_the_page_is_kept_until_enter_after_any_exit(body, code, status, script, monkeypatch, capsys):
    stdin = Enter()
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["run", script(body), "--local", "--parallelism", "1", "--ui", "--keep-ui", "--allow-control"]) == code
    assert [(row["name"], row["status"]) for row in stdin.seen] == [("short", status)]
    assert "until Enter or Ctrl-C" in capsys.readouterr().err
    assert page._server is None


def test_without_keep_it_ends_with_the_script(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["run", script(SHORT), "--local", "--parallelism", "1", "--ui"]) == 0
    out, err = capsys.readouterr()
    assert out == "to\nbe\n"
    assert re.fullmatch(r"headgate: the page is at http://127\.0\.0\.1:\d+/\?token=[\w-]{43}\n", err)
    assert page._server is None


def test_a_script_without_a_job_has_no_page_to_keep(script, capsys):
    assert main(["run", script("print('nothing')"), "--local", "--ui", "--keep-ui"]) == 0
    assert capsys.readouterr() == ("nothing\n", "")


@pytest.mark.parametrize("option", [["--ui-port", "8080"], ["--allow-control"], ["--keep-ui"]])
def test_options_of_the_page_need_the_page(option, script, capsys):
    assert main(["run", script(SHORT), "--local", *option]) == 2
    assert capsys.readouterr().err == f"headgate: {option[0]} needs the page: add --ui\n"


def test_a_port_that_is_in_use_is_one_line(script, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["run", script(SHORT), "--local", "--parallelism", "1", "--ui", "--ui-port", str(port)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"headgate: the page cannot listen on port {port} of 127.0.0.1")


def address(run):
    run.wait_until(lambda: re.search(r"token=[\w-]{43}\n", run.err))
    return re.search(r"http://\S+", run.err)[0]


def test_ctrl_c_ends_job_and_page(script):
    """In a process of its own, looked at as a browser would."""
    with command("run", script(ENDLESS), "--local", "--parallelism", "1", "--ui", "--keep-ui") as run:
        url = address(run)
        run.wait_until(lambda: "0\n" in run.out)
        browser = build_opener(HTTPCookieProcessor())
        with browser.open(url, timeout=30) as answer:
            assert answer.url == url.partition("?")[0], "the token is gone from the address"
            assert b"<html" in answer.read().lower()
        with browser.open(answer.url + "api/jobs", timeout=30) as rows:
            assert b'"endless"' in rows.read()
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0])), timeout=30) as odd:
            odd.sendall(b"no HTTP\r\n\r\n")
            assert odd.recv(100).startswith(b"HTTP/1.1 400")
        run.interrupt()
        assert run.end() == 130
        assert run.err == f"headgate: the page is at {url}\nheadgate: interrupted; its jobs are cancelled\n"


def test_ctrl_c_ends_a_page_that_is_kept(script):
    with command("run", script(SHORT), "--local", "--parallelism", "1", "--ui", "--keep-ui") as run:
        run.wait_until(lambda: "until Enter or Ctrl-C" in run.err)
        run.interrupt()
        assert run.end() == 0
        assert "Traceback" not in run.err
