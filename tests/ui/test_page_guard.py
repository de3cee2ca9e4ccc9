"""The guard in a browser: without the token, with another name, and from a page of another site."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import expect
from tests.ui.support_browser import ELSEWHERE, moving, vertex


@contextmanager
def other_site() -> Iterator[str]:
    """A page of another origin; its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"<!doctype html><title>elsewhere</title><link rel=icon href='data:,'>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://{ELSEWHERE}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_token_is_removed_from_the_address(serve, visit):
    job = moving()
    client = serve({"job-5eed": job})
    home = f"http://127.0.0.1:{client.port}/"
    page = visit(home, strict=False)
    expect(page.locator("body")).to_contain_text("forbidden")
    assert page.goto(f"{home}?token=wrong").status == 403
    assert page.goto(f"{home}static/app.js").status == 403
    assert page.goto(f"{home}api/jobs").status == 403
    assert job.calls == []
    page.goto(client.server.url)
    expect(vertex(page, 2)).to_contain_text("Busy")
    assert client.server.token not in page.url
    kept = page.context.cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in kept] == [(True, "Strict")]
    assert client.server.token not in kept[0]["value"]
    assert page.evaluate("() => document.cookie") == ""
    assert page.goto(home).status == 200, "the cookie is enough from now on"


def test_another_name_for_the_same_machine_is_refused(serve, visit):
    """As after DNS rebinding: the browser believes that it speaks to that name."""
    job = moving()
    client = serve({"job-5eed": job})
    page = visit(f"http://{ELSEWHERE}:{client.port}/?token={client.server.token}", strict=False)
    expect(page.locator("body")).to_contain_text("forbidden")
    assert page.context.cookies() == []
    assert job.calls == []


def test_a_page_of_another_site_can_read_and_change_nothing(serve, visit):
    job = moving()
    client = serve({"job-5eed": job}, allow_control=True)
    own = visit(client.server.url, strict=False)
    expect(vertex(own, 2)).to_contain_text("Busy")
    own.get_by_role("button", name="Pause").click()
    with other_site() as address:
        page = own.context.new_page()  # of the same user, with the same cookies
        page.goto(address)
        own.wait_for_timeout(300)
        before = list(job.calls)
        said = page.evaluate(
            """async (home) => {
              const ask = async (path, options) => {
                try {
                  const answer = await fetch(home + path, { credentials: "include", ...options });
                  return [answer.type, answer.status];
                } catch (error) {
                  return [error.name, 0];
                }
              };
              const headers = { "Content-Type": "application/json" };
              return [
                await ask("api/jobs", {}),
                await ask("api/jobs/job-5eed", { mode: "no-cors" }),
                await ask("api/jobs/job-5eed/cancel", { method: "POST", mode: "no-cors" }),
                await ask("api/jobs/job-5eed/pressure", { method: "POST", headers }),
              ];
            }""",
            f"http://127.0.0.1:{client.port}/",
        )
        assert all(kind in {"TypeError", "opaque"} and status == 0 for kind, status in said)
        assert job.calls == before, "it did not even reach the job"
        page.close()


def test_the_policy_blocks_inline_scripts_and_other_hosts(serve, visit):
    page = visit(serve({"job-5eed": moving()}).server.url, strict=False)
    expect(vertex(page, 2)).to_contain_text("Busy")
    done = page.evaluate(
        """async () => {
          const inline = document.createElement("script");
          inline.textContent = "window.injected = true";
          document.body.append(inline);
          let fetched = "no";
          try { await fetch("http://elsewhere.test:9/"); fetched = "yes"; } catch {}
          // Playwright itself may evaluate; what the page calls by itself may not.
          const evaluated = await new Promise((resolve) => setTimeout(() => {
            try { resolve(new Function("return 'yes'")()); } catch { resolve("no"); }
          }));
          return [window.injected ?? "no", fetched, evaluated];
        }"""
    )
    assert done == ["no", "no", "no"]
