"""A real job of another process: `headgate jobs`, `top`, `why`, `report` and `ui`."""

import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import webbrowser
from importlib.metadata import PackageNotFoundError
from textwrap import dedent
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest
from tests.support.commands import PATIENCE_S, command
from tests.support.job_views import synthetic_view
from tests.support.terminal import terminal
from tests.support.threads import Thread
from tests.support.waiting import wait_until

import headgate.ui
from headgate.attach import KeptJob, find, kept, running
from headgate.attach.directories import PrivateDirectory
from headgate.attach.kept_jobs import keep
from headgate.cli import main
from headgate.observe import JobStatus, JobView
from headgate.ui import page

ENDLESS = """
    import sys, time
    import headgate as hg

    settings = {"backpressure.samples": 10, "backpressure.delay": "10ms"}
    env = hg.environment(local=True, parallelism=2, settings=settings)

    def slow(pair):
        time.sleep(0.002)
        return pair

    words = env.rate(2000).map(lambda n: (n % 7, n))
    words.key_by(lambda pair: pair[0]).map(slow).for_each(lambda pair: None)
    job = env.execute_async("slow words")
    print(job.id, flush=True)
    sys.stdin.readline()
    print(job.cancel(), flush=True)
"""


class Driver:
    """A process with a job that is held back, until it is told to end."""

    def __init__(self, root, uptime_s=2.0):
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-c", dedent(ENDLESS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HEADGATE_STATE_DIR": str(root)},
            text=True,
        )
        self.job = self.process.stdout.readline().strip()
        wait_until(lambda: self.view is not None and self.view.progress.uptime_s > uptime_s)

    @property
    def view(self):
        return next((one.view() for one in running(self.root)), None)

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "True\n"
        assert self.process.wait(PATIENCE_S) == 0

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    one = Driver(tmp_path_factory.mktemp("state") / "headgate")
    yield one
    one.end()
    one.close()


@pytest.fixture
def there(driver, monkeypatch):
    """The commands of this process look where the driver is."""
    monkeypatch.setenv("HEADGATE_STATE_DIR", str(driver.root))
    return driver


@pytest.fixture
def empty(tmp_path, monkeypatch):
    root = tmp_path / "state"
    monkeypatch.setenv("HEADGATE_STATE_DIR", str(root))
    return root


@pytest.fixture
def over(empty):
    """A job that was kept."""
    with PrivateDirectory("jobs", root=empty, create=True) as directory:
        keep(synthetic_view(status=JobStatus.FINISHED, name="long over", job="job-0ld"), directory, 20)
    return empty


def test_jobs(there, capsys):
    assert main(["jobs"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["job", "name", "status"]
    assert re.match(rf"{there.job} +slow words +running +2.* +\d+(\.\d)?s +process {there.process.pid}$", row)
    assert main(["jobs", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["id"], one["pid"], one["file"], one["status"]) == (there.job, there.process.pid, None, "running")


def test_top_without_a_terminal_is_printed_once(there, capsys):
    assert main(["top", "slow words"]) == 0
    out = capsys.readouterr().out
    assert f"slow words  {there.job}  running" in out
    assert re.search(r"^  map\(slow\) -> for_each +x2 █.* +\d+% +0% ", out, re.MULTILINE)
    assert "\x1b" not in out


def test_why_prints_cause_and_location(there, capsys):
    assert main(["why", there.job[:8], "--refresh"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cause: ")
    assert "map(slow)" in out
    assert "\ntry: " in out
    assert main(["why", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] in {"waiting", "cpu", "sink", "skew"}
    assert found["vertex"] == 1


def test_a_report_of_a_running_job(there, capsys, tmp_path):
    file = tmp_path / "slow.html"
    assert main(["report", "slow words", "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    text = file.read_text()
    assert "<title>slow words - headgate</title>" in text
    data = re.search(r'id="headgate-view">(.*?)</script>', text)[1]
    view = JobView.from_json(data)
    assert view.progress.job == there.job
    assert view.timeline.steps > 0
    assert view.diagnosis.vertex == 1
    assert [one.name for one in tmp_path.iterdir()] == ["slow.html"]


def test_the_page_of_a_job_of_another_process(there):
    with command("ui", "--port", "0", HEADGATE_STATE_DIR=str(there.root)) as run:
        run.wait_until(lambda: re.search(r"token=\S+\n", run.out))
        url = run.out.strip()
        run.wait_until(lambda: run.err == "headgate: the page of slow words; Ctrl-C ends it\n")
        browser = build_opener(HTTPCookieProcessor())
        with browser.open(url, timeout=30) as answer:
            root = answer.url
        with browser.open(root + "api/jobs", timeout=30) as rows:
            assert [one["id"] for one in json.loads(rows.read())] == [there.job]
        with browser.open(root + f"api/jobs/{there.job}", timeout=30) as view:
            assert json.loads(view.read())["progress"]["status"] == "running"
        cancel = Request(root + f"api/jobs/{there.job}/cancel", method="POST")
        with pytest.raises(HTTPError, match="403"):
            browser.open(cancel, timeout=30)
        with pytest.raises(HTTPError, match=r"40[13]"):
            urlopen(root + "api/jobs", timeout=30)
        run.interrupt()
        assert run.end() == 130
        assert "Traceback" not in run.err


def test_top_in_a_terminal(there):
    with terminal("top", "--interval", "0.1", HEADGATE_STATE_DIR=str(there.root)) as top:
        top.see("slow words", "> rate -> map", "  map(slow)", "q quit")
        lines = top.screen.split("\n")
        assert len(lines) == 24
        assert all(len(line) <= 80 for line in lines)
        top.press("j")
        top.see("> map(slow)", "reads rate -> map (hash)")
        top.press("\r")
        top.see("task  on state", "   1   1 running")
        top.press("e")
        top.see("credit/backlog", "task    p0      p1")
        top.press("\x1b[A")
        top.see("> rate -> map", "it has no input")
        top.press("w")
        top.see("cause: ", "try: ", "map(slow)")
        top.press("\x1b")
        top.wait_until(lambda: "try: " not in top.screen)
        first = top.screen
        top.wait_until(lambda: top.screen != first)
        top.press("q")
        assert top.end() == 0
        assert top.is_restored


def test_ctrl_z_and_ctrl_c_restore_the_terminal(there):
    with terminal("top", HEADGATE_STATE_DIR=str(there.root)) as top:
        top.see("slow words")
        assert top.modes() != top.before
        top.press("\x1a")
        top.wait_until(lambda: top.stopped)
        top.read()
        assert top.is_restored
        top.data = b""
        top.process.send_signal(signal.SIGCONT)
        top.see("slow words", "q quit")
        top.press("\x03")
        assert top.end() == 130
        assert top.is_restored
        assert b"Traceback" not in top.data


def test_a_dumb_terminal_gets_one_screen(there, monkeypatch):
    class Dumb(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", Dumb())
    assert main(["top"]) == 0
    assert "slow words" in sys.stdout.getvalue()
    assert "\x1b" not in sys.stdout.getvalue()


def test_a_terminal_without_colours_is_as_it_was_after_a_signal(there):
    ascii_only = {"NO_COLOR": "1", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    with terminal("top", HEADGATE_STATE_DIR=str(there.root), **ascii_only) as top:
        top.see("> rate -> map")
        top.process.send_signal(signal.SIGTERM)
        assert top.end() == 128 + signal.SIGTERM
        assert top.is_restored
        assert b"Traceback" not in top.data
        assert top.data.isascii()
        assert not re.search(rb"\x1b\[[0-9;]*3[0-7]", top.data)


def test_a_job_that_ends_is_shown_from_its_file(tmp_path, monkeypatch, capsys):
    driver = Driver(tmp_path / "state")
    monkeypatch.setenv("HEADGATE_STATE_DIR", str(driver.root))
    try:
        with terminal("top", "--interval", "0.1", HEADGATE_STATE_DIR=str(driver.root)) as top:
            top.see("slow words", "running")
            driver.end()
            top.see("cancelled", "busy held    in   out queue")
            top.press("q")
            assert top.end() == 0
    finally:
        driver.close()
    assert main(["jobs"]) == 0
    assert re.search(rf"{driver.job} +slow words +cancelled .* {driver.root}/jobs/", capsys.readouterr().out)
    (line,) = kept()
    job = find(str(line.path))
    assert isinstance(job, KeptJob)
    assert job.why().vertex == 1, "it was looked at while it ran"
    assert job.timeline(seconds=600, vertex=1).steps > 10
    assert job.view().events[-1].text


def test_a_killed_driver_is_not_listed(tmp_path, monkeypatch, capsys):
    driver = Driver(tmp_path / "state", uptime_s=0)
    monkeypatch.setenv("HEADGATE_STATE_DIR", str(driver.root))
    driver.process.kill()
    driver.close()
    assert main(["jobs"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"headgate: no job runs, and none was kept in {driver.root}\n")
    assert not list((driver.root / "run").iterdir())


def test_jobs_of_a_script_are_kept_unless_switched_off(empty, tmp_path, capsys):
    script = tmp_path / "job.py"
    body = "env = hg.environment()\nenv.from_collection('abc').print()\nenv.execute('abc')\n"
    script.write_text(f"import headgate as hg\n{body}")
    run = ["run", str(script), "--local", "--parallelism", "1"]
    assert main([*run, "--set", "metrics.keep=0"]) == 0
    assert not (empty / "jobs").exists()
    assert main(run) == 0
    assert capsys.readouterr().err == ""
    (line,) = kept()
    assert (line.name, line.status) == ("abc", "finished")


def test_all_commands_read_kept_jobs(over, capsys, tmp_path, monkeypatch):
    assert main(["top"]) == 0
    assert "long over  job-0ld  finished" in capsys.readouterr().out
    assert main(["why", "long over"]) == 0
    assert "cause: " in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    assert main(["report", "--open"]) == 0
    assert capsys.readouterr().out == "headgate-job-0ld.html\n"
    assert opened == [(tmp_path / "headgate-job-0ld.html").as_uri()]
    assert main(["report", str(next((over / "jobs").iterdir())), "-o", "-"]) == 0
    assert "<title>long over - headgate</title>" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["top", "why", "report", "ui"])
@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("nonesuch", "there is no job 'nonesuch': there are job-0ld (long over)"),
        ("nonesuch.json", "nonesuch.json cannot be read: No such file or directory"),
        ("broken.json", "broken.json: this is not the view of a job"),
    ],
)
def test_an_unknown_job_is_one_line(name, job, said, over, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"at_ms": 1, "progress"')
    assert main([name, job]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("headgate: ")
    assert said in err


@pytest.mark.parametrize("name", ["top", "why", "report", "ui"])
def test_without_a_job_there_is_an_error(name, empty, capsys):
    assert main([name]) == 2
    assert capsys.readouterr().err == f"headgate: there is no job: none runs, and none was kept in {empty}\n"
    assert not empty.exists()


def test_a_directory_of_another_user_is_one_line(empty, capsys):
    empty.mkdir()
    empty.chmod(0o777)
    for name in ("jobs", "top"):
        assert main([name]) == 2
        assert re.match(r"headgate: .* can be written to by others .*: chmod 700 .*\n$", capsys.readouterr().err)


def test_a_file_that_cannot_be_read_is_listed_as_such(over, capsys):
    (over / "jobs" / "20270115T080000.001-job-bad.json").write_text("torn")
    assert main(["jobs"]) == 0
    assert re.search(r"^job-bad +- +unreadable +- +- +/", capsys.readouterr().out, re.MULTILINE)


def test_names_cannot_control_the_terminal(empty, capsys):
    with PrivateDirectory("jobs", root=empty, create=True) as directory:
        keep(synthetic_view(nasty=True, name="\x1b[2J\nx", status=JobStatus.FINISHED), directory, 20)
    for name in ("jobs", "top", "why"):
        assert main([name]) == 0
        assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("where", ["/nonesuch/a.html", "."])
def test_a_report_that_cannot_be_written_is_one_line(where, over, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "-o", where]) == 2
    assert re.match(r"headgate: the report cannot be written to .*: .*\n$", capsys.readouterr().err)


def test_a_report_replaces_files_and_nothing_else(over, capsys, tmp_path):
    file, link = tmp_path / "a.html", tmp_path / "link.html"
    file.write_text("old")
    link.symlink_to(file)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["report", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert "<html" in file.read_text()
    written = Thread(lambda: main(["report", "-o", str(pipe)]))
    assert b"<html" in pipe.read_bytes()
    assert written.end() == 0
    assert pipe.is_fifo()


@pytest.mark.parametrize("before", [None, 0o644], ids=["new", "there already"])
def test_only_its_owner_can_read_a_report(before, over, tmp_path, monkeypatch):
    file = tmp_path / "a.html"
    if before is not None:
        file.touch(before)
    opened = []
    real = os.open

    def note(path, flags, mode=0o777, **more):
        descriptor = real(path, flags, mode, **more)
        if ".a.html." in str(path):
            opened.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", note)
    umask = os.umask(0)
    try:
        assert main(["report", "-o", str(file)]) == 0
    finally:
        os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert opened == [0o600], "from its first byte on"


def test_without_the_extra_the_error_names_it(over, capsys, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.delitem(vars(headgate.ui), "UiServer", raising=False)
    monkeypatch.delitem(sys.modules, "headgate.ui.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr(page, "distribution", absent)
    page.static_files.cache_clear()
    for name in ("ui", "report"):
        assert main([name]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("headgate: the page needs ")
        assert err.endswith(": pip install 'headgate[ui]'\n")
