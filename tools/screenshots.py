"""Takes the README's pictures of the page, of a back-pressured pipeline: `make screenshots`.

Runs a pipeline on the local host, whose third step is slow for one key that most records have, opens its page in a
Chromium without a window, requests the cause, and writes docs/images/page-{light,dark,phone}.png. Takes about a minute.
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.browser import HOW_TO_GET_ONE, find_browser, launch

import headgate as hg
from headgate.ui import UiServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from headgate.coordinator import Job

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
MOST_BYTES: Final = 300 * 1024
CITIES: Final = ("london", "paris", "oslo", "rome", "lima", "cairo", "delhi", "tokyo")
_SETTLE_S: Final = 30.0  # until there is enough history to draw
_PATIENCE_MS: Final = 30_000


def order(number: int) -> str:
    """Return a line of input; most are of one city."""
    city = CITIES[0] if number % 5 < 3 else CITIES[number % len(CITIES)]
    return json.dumps({"city": city, "cents": number % 977, "at": number})


def parse(line: str) -> dict[str, Any]:
    """Parse a line of `order`."""
    return json.loads(line)  # type: ignore[no-any-return] # JSON


def exchange_rate(cents: int) -> float:
    """Compute slowly, in user code."""
    rate = 1.0
    for step in range(220):
        rate = (rate * 1.0003 + cents * step % 7) % 2.0
    return rate


def enrich(record: dict[str, Any]) -> dict[str, Any]:
    """Run the slow step."""
    return {**record, "euros": record["cents"] * exchange_rate(record["cents"])}


def start() -> Job:
    """Start a pipeline of six vertices, four subtasks each."""
    env = hg.environment(local=True, parallelism=4)
    strategy = hg.WatermarkStrategy.for_bounded_out_of_orderness(200).with_timestamp_assigner(
        lambda _: time.time_ns() // 1_000_000
    )
    orders = env.generate(order).name("orders").assign_timestamps_and_watermarks(strategy)
    parsed = orders.rebalance().map(parse).name("parse")
    priced = parsed.key_by(lambda record: record["city"]).map(enrich).name("enrich")
    totals = (
        priced.key_by(lambda record: record["cents"] % 16)
        .window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
        .apply(lambda key, _, records: [(key, sum(record["euros"] for record in records))])
        .name("totals")
    )
    totals.rebalance().for_each(lambda _: None).name("store")
    parsed.rebalance().for_each(lambda _: None).name("archive")
    return env.execute_async("orders")


def take(page: Page, name: str) -> None:
    """Save a picture of the visible part, in 256 colours."""
    picture = Image.open(io.BytesIO(page.screenshot(scale="device")))
    few = picture.convert("RGB").quantize(colors=256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"page-{name}.png"
    few.save(path, optimize=True)
    size = path.stat().st_size
    sys.stdout.write(f"{path.relative_to(IMAGES.parents[1])}: {size // 1024} KiB\n")
    assert size < MOST_BYTES, f"{path} is too large for a README"


def show(browser: Browser, url: str, *, size: tuple[int, int], scheme: str, ask: bool, scale: float = 1.0) -> Page:
    """Return the page once it has figures and a cause."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, device_scale_factor=scale
    )
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    page.goto(url)
    page.locator(".vertex .state", has_text="%").first.wait_for()
    if ask:
        page.get_by_role("button", name="Find out why").click()
    page.locator(".cause").wait_for()
    return page


def pictures(browser: Browser, url: str) -> None:
    """Take all three pictures."""
    light = show(browser, url, size=(1280, 1080), scheme="light", ask=True)
    light.locator(".vertex", has_text="enrich").click()
    light.get_by_role("button", name="Sample stacks").click()
    light.locator(".slice").first.wait_for()
    light.evaluate("scrollTo(0, 0)")
    light.wait_for_timeout(1500)
    take(light, "light")
    dark = show(browser, url, size=(1280, 1080), scheme="dark", ask=False)
    dark.locator(".edge", has_text="parse to enrich").click()
    dark.locator(".choice label", has_text="Backlog").click()
    dark.evaluate("scrollTo(0, 0)")
    dark.wait_for_timeout(2500)
    take(dark, "dark")
    phone = show(browser, url, size=(390, 844), scheme="light", ask=False, scale=2.0)
    phone.locator(".graph-part").evaluate("element => element.scrollIntoView()")
    phone.wait_for_timeout(1500)
    take(phone, "phone")


def main() -> int:
    """Return the exit code."""
    path = find_browser()
    if path is None:
        sys.stderr.write(f"{HOW_TO_GET_ONE}\n")
        return 1
    job = start()
    try:
        time.sleep(_SETTLE_S)
        with UiServer(lambda: {str(job.id): job}) as server, sync_playwright() as playwright:
            browser = launch(playwright, path)
            pictures(browser, server.url)
            browser.close()
    finally:
        job.cancel()
    return 0


if __name__ == "__main__":
    sys.exit(main())
