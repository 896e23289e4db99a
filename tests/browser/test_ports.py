"""A port of a task in a real browser: reached from the page of the task, on a host apart from the dashboard."""

from __future__ import annotations

import json
import sys
import urllib.request

import pytest

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

# Shows the headers that it got, and tries to act on the dashboard with the browser of its visitor.
PROGRAM = """
import html, http.server, json, os
from dgpu.wire.websocket import Decoder, accept_of, encode

PAGE = '''<!doctype html><meta charset=utf-8><title>of the task</title>
<pre id=seen>SEEN</pre><p id=echo></p><p id=attack></p>
<script>
const socket = new WebSocket("ws://" + location.host + "/socket");
socket.onopen = () => socket.send("hello through the proxy");
socket.onmessage = (event) => { echo.textContent = event.data; };
async function attempt(path, options) {
  try {
    const answer = await fetch("DASHBOARD" + path, {credentials: "include", ...options});
    return answer.type === "opaque" ? "sent" : await answer.text();
  } catch { return "blocked"; }
}
const json = {method: "POST", body: JSON.stringify({command: "true", name: "forged"})};
Promise.all([
  attempt("/api/v1/tasks", {...json, mode: "no-cors", headers: {"Content-Type": "text/plain"}}),
  attempt("/api/v1/tasks", {...json, headers: {"Content-Type": "application/json"}}),
  attempt("/api/v1/tasks"),
]).then((results) => { attack.textContent = results.join(" "); });
</script>'''

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if "Upgrade" in self.headers:
            return self.echo()
        seen = html.escape(json.dumps(dict(self.headers)))
        body = PAGE.replace("SEEN", seen).replace("DASHBOARD", os.environ["DASHBOARD"]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "own=1; Domain=localhost")
        self.send_header("Set-Cookie", "dgpu_port_1=stolen")
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_of(self.headers["Sec-WebSocket-Key"].encode()).decode())
        self.end_headers()
        decoder = Decoder(expects_masks=True, max_bytes=1 << 20)
        while received := self.connection.recv(65536):
            for message in decoder.feed(received):
                self.connection.sendall(encode(message.kind, message.body, masked=False))
        self.close_connection = True

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["DGPU_PORT"])), Handler).serve_forever()
"""


def test_a_port_opens_on_its_own_host_and_its_page_cannot_use_the_dashboard(visitor, stage):
    task_id = stage.ask(
        "POST",
        "/api/v1/tasks",
        {"command": [sys.executable, "-c", PROGRAM], "ports": [8888], "env": {"DASHBOARD": stage.url}},
    )["task_id"]
    stage.until(task_id, "running")
    code = stage.ask("POST", "/api/v1/session/code")["url_path"]
    visitor.allow(r"\.localhost|blocked by CORS|Failed to load resource")
    page = visitor.look(stage, code)
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
    assert any(cookie["name"].startswith("dgpu_session_") for cookie in page.context.cookies())

    page.goto(f"/tasks/{task_id}")
    with page.context.expect_page() as opened:
        page.get_by_test_id("open-port").click()
    port = opened.value
    expect(port.locator("#echo")).to_have_text("hello through the proxy")
    number = task_id.removeprefix("task-")
    assert port.url.startswith(f"http://task-{number}-8888.localhost:"), port.url
    assert port.url.endswith("/"), "the code is not in the address"
    assert "dgpu" not in port.locator("#seen").text_content(), "no credential of dgpu reaches the program"

    # The browser has the uid of the scheduler and a session of the dashboard: both must be worth nothing here.
    expect(port.locator("#attack")).to_have_text("sent blocked blocked")
    names = [task["name"] for task in stage.ask("GET", "/api/v1/tasks")["tasks"]]
    assert "forged" not in names
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies(port.url)}
    assert cookies["own"]["domain"] == f"task-{number}-8888.localhost"
    assert "dgpu_port_1" not in cookies
    (own,) = [cookie for name, cookie in cookies.items() if name.startswith("dgpu_port_")]
    assert own["httpOnly"]
    assert own["sameSite"] == "Lax"
    check_cookie(visitor, stage, port, own)


def check_cookie(visitor, stage, port, own):
    """It is no session of the API, and a second visit needs no link."""
    name = f"dgpu_session_{stage.url.rpartition(':')[2]}"
    asked = urllib.request.Request(
        f"{stage.url}/api/v1/session", headers={"Cookie": f"{name}={own['value']}"}
    )
    with urllib.request.urlopen(asked) as answer:
        assert json.load(answer)["access"] == "user", "admitted by its uid, not by a session"
    port.goto(port.url)
    expect(port.locator("#echo")).to_have_text("hello through the proxy")
    stranger = visitor.look(stage)
    answer = stranger.goto(port.url)
    assert answer.status == 401
    expect(stranger.locator("body")).to_contain_text("Open it with a new link")
