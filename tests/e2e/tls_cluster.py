"""A cluster of real processes with certificates of its own, on free ports."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from dgpu.entry.chaos.ports import free_port
from dgpu.entry.keepers import end_keepers
from e2e.conftest import PATIENCE_SECONDS, Answer, eventually

SCHEDULER = """\
server: {{http_address: "{host}:{http}", grpc_address: "{host}:{grpc}", grpc_tls: true,
  join_address: "{host}:{join}", certificate_seconds: 3600, {more}}}
quota: {{mode: borrow, unknown_tenants: create}}
storage: {{snapshot_dir: {home}/scheduler}}
"""
AGENT = """\
agent: {{id: {name}, heartbeat_interval: 1}}
scheduler: {{master_address: "{host}:{grpc}", retry_interval: 0.2, max_retry_interval: 1, tls: {tls}}}
gpu: {{detection_method: simulated, simulated: {gpus}}}
executor: {{work_dir: {home}/{name}, stop_grace_seconds: 1}}
"""


class Cluster:
    def __init__(self, *, host="127.0.0.1", gpus="2xV100", **server):
        self.host, self.gpus = host, gpus
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-tls-"))  # short, for Unix sockets
        self.http, self.grpc, self.join_port = free_port(), free_port(), free_port()
        self.services = {}
        self.names = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DGPU")}
        self.env = {
            **kept,
            "HOME": str(self.home),
            "NO_COLOR": "1",
            "DGPU__ISOLATION__USERS": "none",  # several users get tokens
            "DGPU_SERVER": f"http://{host}:{self.http}",
        }
        self.configure(**server)

    def configure(self, **server):
        """`server`: further keys of that section."""
        more = json.dumps(server)[1:-1]
        text = SCHEDULER.format(
            host=self.host, home=self.home, http=self.http, grpc=self.grpc, join=self.join_port, more=more
        )
        (self.home / "scheduler.yaml").write_text(text)

    def add(self, name, **tls):
        self.names.append(name)
        text = AGENT.format(
            host=self.host, gpus=self.gpus, home=self.home, name=name, grpc=self.grpc, tls=json.dumps(tls)
        )
        (self.home / f"{name}.yaml").write_text(text)

    def dgpu(self, *arguments, **options):
        command = [sys.executable, "-m", "dgpu", *map(str, arguments)]
        done = subprocess.run(
            command,
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )
        return Answer(done)

    def good(self, *arguments, **options):
        answer = self.dgpu(*arguments, **options)
        assert answer.code == 0, answer
        return answer

    def ca(self, verb, *arguments):
        return self.good("ca", verb, *arguments, "--config", self.home / "scheduler.yaml")

    def token(self, *nodes):
        return self.ca("token", *(word for node in nodes for word in ("--node", node))).out.strip()

    def join(self, name, token):
        server = f"{self.host}:{self.join_port}"
        return self.dgpu(
            "agent", "join", "--server", server, "--token", token, "-c", self.home / f"{name}.yaml"
        )

    def start(self, name, *, stdout=None):
        """`stdout`: subprocess.PIPE, to read the first token; it is shown on no file."""
        verb = "scheduler" if name == "scheduler" else "agent"
        with (self.home / f"{name}.log").open("ab") as log:
            self.services[name] = subprocess.Popen(
                [sys.executable, "-m", "dgpu", verb, "--config", str(self.home / f"{name}.yaml")],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=stdout or log,
                stderr=log,
                start_new_session=True,
            )
        if name == "scheduler":
            eventually(lambda: "scheduler_ready" in self.log(name), "the scheduler to start")

    def stop(self, name, number=signal.SIGTERM):
        process = self.services.pop(name)
        process.send_signal(number)
        return process.wait(PATIENCE_SECONDS)

    def log(self, name):
        path = self.home / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def nodes(self):
        return {node["id"]: node["status"] for node in json.loads(self.good("nodes", "--json").out)["nodes"]}

    def is_ready(self, name):
        eventually(lambda: self.nodes().get(name) == "ready", f"{name} to be ready")

    def up(self, *names):
        """An authority, a scheduler, and an agent for each name that joined by its own token."""
        self.ca("init")
        self.start("scheduler")
        for name in names:
            self.add(name)
            assert self.join(name, self.token(name)).code == 0
            self.start(name)
        for name in names:
            self.is_ready(name)

    def close(self):
        for name in list(self.services):
            self.stop(name)
        for name in self.names:
            end_keepers(self.home / name)
        shutil.rmtree(self.home, ignore_errors=True)
