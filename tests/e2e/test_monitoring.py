"""A real Prometheus reads a real scheduler; the logs of a whole site report the events and reveal no secret."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import urllib.parse

import pytest
import yaml

from dgpu.entry.chaos.ports import free_port

from .conftest import eventually, files_in

DEPLOYMENTS = pathlib.Path(__file__).parents[2] / "deployments" / "prometheus"
NOBODY = 65_534


def ask(host, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(host, timeout=30)
    with contextlib.closing(connection):
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


class Prometheus:
    """Uses the shipped configuration; only the address, the token file and the interval differ."""

    def __init__(self, site):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-prom-"))
        self.port = free_port()
        token = pathlib.Path(site.record["token_file"]).read_text()
        config = yaml.safe_load((DEPLOYMENTS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        job = config["scrape_configs"][0]
        job["static_configs"][0]["targets"] = [site.record["url"].removeprefix("http://")]
        (self.folder / job["authorization"]["credentials_file"]).write_text(token)
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(DEPLOYMENTS / "alerts.yml", self.folder)
        # As root, the scheduler would need no token from us: so Prometheus is somebody else.
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        if self.user:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    "--config.file=prometheus.yml",
                    "--storage.tsdb.path=data",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                **self.user,
            )

    def get(self, path):
        if self.process.poll() is not None:
            pytest.fail((self.folder / "log").read_text()[-2_000:])
        try:
            status, _, body = ask(f"127.0.0.1:{self.port}", "GET", path)
        except OSError:
            return None
        return json.loads(body)["data"] if status == 200 else None

    def query(self, expression):
        found = self.get(f"/api/v1/query?query={urllib.parse.quote(expression)}")
        return [float(each["value"][1]) for each in found["result"]] if found else []

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def prometheus(running_site):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian's package prometheus)")
    process = Prometheus(running_site)
    yield process
    process.close()


def test_a_real_prometheus_reads_a_real_scheduler(running_site, prometheus):
    """With the token, as the user that Prometheus mostly is: not the scheduler's."""
    task_id = running_site.submit("--", "true")
    running_site.good("wait", task_id)
    eventually(
        lambda: prometheus.query('task_finished_total{status="success"}') == [1.0],
        "Prometheus to know of the finished task",
    )
    assert prometheus.query("gpu_total") == [2.0]
    assert prometheus.query('up{job="dgpu"}') == [1.0]
    eventually(
        lambda: len(prometheus.query("gpu_utilization_percent")) == 2,
        "both GPUs to be known to Prometheus",
    )
    assert prometheus.query("journal_fsync_seconds_count")[0] > 0
    rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert len(rules) >= 10
    eventually(
        lambda: all(
            rule["health"] == "ok"
            for group in prometheus.get("/api/v1/rules")["groups"]
            for rule in group["rules"]
        ),
        "every rule to be evaluated without an error",
    )


SECRETS = ("s3cret-of-the-env", "s3cret-in-a-header", "s3cret-in-a-query", "s3cret-in-a-cookie")
# Where the contract lets the values of env be, with mode 0600; the last is the token itself.
KEEPS_SECRETS = ("scheduler/journal", "scheduler/archive", "scheduler/snapshot", "scheduler/token")


def log_lines(site):
    lines = (site.data_dir / "scheduler.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_logs_tell_the_story_and_no_secret(site):
    """One task from the request to its failure, found by the request's id and the task's; env and tokens nowhere."""
    site.env["DGPU__LOGGING__FORMAT"] = "json"
    site.env["DGPU__LOGGING__LEVEL"] = "debug"
    site.up()
    host = site.record["url"].removeprefix("http://")
    token = pathlib.Path(site.record["token_file"]).read_text().strip()
    task = {"command": ["false"], "env": {"API_KEY": SECRETS[0]}, "name": "fails", "max_retries": 0}
    headers = {
        "X-Request-ID": "deploy-7",
        "Authorization": f"Bearer {token}",
        "X-Api-Key": SECRETS[1],
        "Cookie": f"session={SECRETS[3]}",
    }
    status, answered, body = ask(host, "POST", "/api/v1/tasks", task, headers)
    assert (status, {k.lower(): v for k, v in answered.items()}["x-request-id"]) == (201, "deploy-7")
    task_id = json.loads(body)["task_id"]
    assert site.dgpu("wait", task_id).code == 1
    assert ask(host, "GET", f"/api/v1/tasks?token={SECRETS[2]}")[0] == 400
    refused = {**task, "gpu_count": 99}
    assert ask(host, "POST", "/api/v1/tasks", refused, {"X-Request-ID": 'bad id"\t'})[0] == 422
    told = [
        site.good(*verb).out
        for verb in (("show", task_id, "--json"), ("ps", "-a", "--json"), ("why", task_id))
    ]
    told += [ask(host, "GET", path)[2] for path in ("/metrics", f"/api/v1/tasks/{task_id}/events")]
    lines = eventually(
        lambda: [x for x in log_lines(site) if x["event"] == "task_failed"] and log_lines(site),
        "the end of the task in the log",
    )
    site.good("down")

    asked = next(line for line in lines if line.get("request_id") == "deploy-7")
    assert (asked["event"], asked["task"], asked["status"]) == ("request_done", task_id, 201)
    story = [line["event"] for line in lines if line.get("task") == task_id]
    assert {"task_submitted", "task_scheduled", "task_failed"} <= set(story)
    failed = next(line for line in lines if line["event"] == "task_failed")
    assert (failed["task"], failed["reason"], failed["exit_code"]) == (task_id, "exit_code", 1)
    never = next(line for line in lines if line["event"] == "request_refused" and line["method"] == "POST")
    assert never["cause"] == "never_fits"
    assert never["request_id"] != 'bad id"\t'
    assert {"agent_registered", "role_changed"} <= {line["event"] for line in lines}

    for secret in (*SECRETS, token):
        assert not any(secret in text for text in told)
        for path, content in files_in(site.data_dir):
            place = str(path.relative_to(site.data_dir))
            assert place.startswith(KEEPS_SECRETS) or secret.encode() not in content, place
