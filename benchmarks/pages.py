"""How fluent the dashboard is with an array of 10,000 tasks: a real browser, frame by frame.

Half of 200 simulated nodes' GPUs run tasks of the array that end after a second, so the pages change all the time.
Needs Chromium (Debian: chromium) and the development packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from _cluster import Server, agent_host, scheduler
from drain import ALL_GPUS

NODES = 200
TASKS = 10_000
CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 60_000
# Times between frames while `work` runs; an idle browser draws 60 frames per second.
FRAMES = """
async (work) => {
  const times = [];
  let last = performance.now(), going = true;
  const frame = () => {
    const now = performance.now();
    times.push(now - last);
    last = now;
    if (going) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  await new Function('return (async () => {' + work + '})()')();
  going = false;
  times.sort((a, b) => a - b);
  return [times[Math.floor(times.length / 2)], times[Math.floor(times.length * 0.95)], times.at(-1), times.length];
}
"""
SCROLL = """
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const pane = document.scrollingElement;
  for (let step = 0; step < 200; step++) { pane.scrollTop = (step % 40) * 40; await pause(16); }
"""
FILTER = """
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const box = document.querySelector('[data-testid=task-search]');
  for (const text of ['s', 'sw', 'swe', 'swee', 'sweep', 'swee', 'no such task', '']) {
    box.value = text; box.dispatchEvent(new Event('input', {bubbles: true})); await pause(400);
  }
"""
IDLE = "await new Promise((done) => setTimeout(done, 3000));"


def run() -> Iterator[dict[str, Any]]:
    from playwright.sync_api import sync_playwright

    with scheduler(ALL_GPUS) as server, agent_host(server, nodes=NODES, method="simulated"):
        body = {"name": "sweep", "command": "sleep 1", "array": f"0-{TASKS - 1}", "gpu_count": 1}
        server.post("/api/v1/tasks", body)
        with sync_playwright() as started:
            browser = started.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
            for path, works in (
                ("/tasks", {"idle": IDLE, "scrolling": SCROLL, "filtering": FILTER}),
                ("/tasks?array=task-1", {"scrolling": SCROLL}),
                ("/tasks/task-1", {"idle": IDLE}),
                ("/", {"idle": IDLE, "scrolling": SCROLL}),
            ):
                yield from page_figures(browser, server, path, works)
            browser.close()


def page_figures(browser: Any, server: Server, path: str, works: dict[str, str]) -> Iterator[dict[str, Any]]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"http://127.0.0.1:{server.http_port}{path}")
    page.wait_for_selector("main h1")
    page.wait_for_timeout(1_500)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    elements = page.evaluate("document.getElementsByTagName('*').length")
    yield {
        "figure": f"{path}: first paint",
        "value": round(painted),
        "unit": "ms",
        "elements": elements,
        "tasks": TASKS,
    }
    for name, work in works.items():
        p50, p95, longest, frames = page.evaluate(FRAMES, work)
        yield {
            "figure": f"{path}: time between frames, {name}, p95",
            "value": round(p95, 1),
            "unit": "ms",
            "p50": round(p50, 1),
            "longest": round(longest, 1),
            "frames": frames,
        }
    page.close()
