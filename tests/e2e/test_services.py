"""A service with real processes: replicas, a kill, an update under load, scaling, and its end."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import signal
import sys
import threading

import pytest

from e2e.conftest import PATIENCE_SECONDS, Site, eventually

pytestmark = pytest.mark.slow

APP = """
import json, os, time
def factory():
    def app(environ, start):
        if environ["PATH_INFO"] == "/slow":
            while not os.path.exists("go"):
                time.sleep(0.02)
        body = json.dumps({"pid": os.getpid(), "version": os.environ["VERSION"]}).encode()
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]
    return app
"""


@pytest.fixture(scope="module")
def place():
    place = Site()
    place.env["PATH"] = f"{pathlib.Path(sys.executable).parent}:{place.env['PATH']}"
    (place.home / "web.py").write_text(APP)
    place.up("--fake", "6xV100")
    yield place
    place.close()


def serve(place, version, replicas="2"):
    place.good(
        "serve", "web:factory", "--replicas", replicas, "--health", "/healthz", "--requests", "2",
        "-e", f"VERSION={version}", "-G", "1",
    )  # fmt: skip


def service(place):
    return json.loads(place.good("services", "show", "web", "-o", "json").out)


def get(url, path="/"):
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers={"Host": f"{host}:{port}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def is_ready(place, generation, number=2):
    def look():
        seen = service(place)
        generations = [each["generation"] for each in seen["replicas"]]
        return seen if generations == [generation] * number and seen["ready"] == number else None

    return eventually(look, f"{number} replicas of generation {generation}")


class Load:
    """Requests one after another, until told to stop."""

    def __init__(self, url):
        self.url, self.answers, self.is_over = url, [], False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.is_over:
            self.answers.append(get(self.url))

    def stop(self):
        self.is_over = True
        self.thread.join()
        return self.answers


def test_two_replicas_survive_a_kill_and_an_update_loses_no_request(place):
    serve(place, "1")
    url = is_ready(place, 1)["url"]
    pids = {get(url)[1]["pid"] for _ in range(4)}
    assert len(pids) == 2, "requests are spread over both"

    os.kill(pids.pop(), signal.SIGKILL)
    eventually(lambda: len({get(url)[1].get("pid") for _ in range(4)} - {None}) == 2, "a new process")
    is_ready(place, 1)

    load = Load(url)
    serve(place, "2")
    is_ready(place, 2)
    eventually(lambda: load.answers[-1][1].get("version") == "2", "answers of the new version")
    answers = load.stop()
    assert {status for status, _ in answers} == {200}
    assert {body["version"] for _, body in answers} == {"1", "2"}
    assert "gets no new requests" in place.good("services", "show", "web").out

    place.good("services", "rollback", "web")
    is_ready(place, 1)
    assert get(url)[1]["version"] == "1"


def test_the_number_follows_the_requests_and_the_end_ends_all(place):
    serve(place, "3", replicas="1-3")
    seen = eventually(lambda: (found := service(place))["status"] == "ready" and found, "ready")
    slow = [threading.Thread(target=get, args=(seen["url"], "/slow")) for _ in range(6)]
    for each in slow:
        each.start()
    eventually(lambda: service(place)["ready"] == 3, "three replicas")
    assert "scaled from" in place.good("services", "show", "web").out
    for folder in {place.task(each["task_id"])["workdir"] for each in service(place)["replicas"]}:
        (pathlib.Path(folder) / "go").touch()
    for each in slow:
        each.join(PATIENCE_SECONDS)
        assert not each.is_alive()
    place.good("services", "scale", "web", "1")
    eventually(lambda: len(service(place)["replicas"]) == 1, "one replica", seconds=2 * PATIENCE_SECONDS)
    tasks = [each["task_id"] for each in service(place)["replicas"]]
    place.good("services", "delete", "web")
    eventually(
        lambda: all(place.task(each)["status"] == "cancelled" for each in tasks), "the end of its replicas"
    )
    assert place.dgpu("services", "show", "web").code != 0
