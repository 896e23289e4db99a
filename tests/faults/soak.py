"""A soak: `python -m tests.faults.soak --minutes 10 --rate 300`.

Tasks are submitted at a steady rate (simulated nodes, null runner) and an owner makes ordinary requests, first in
quiet, then while another user floods both ports with idle connections and slow readers hold streams, then in quiet
again. Prints one JSON line: failed requests of the owner, its p50 and p99 with the load against without, memory of the
scheduler. Exit code 1 if a request of the owner failed, a task was lost, or the scheduler died. The ratio of p99 is
reported, and judged with --max-ratio only: it depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.faults.site import wait_until

from dgpu.entry.chaos.ports import free_port

_SCHEDULER = """\
server: {{http_address: "127.0.0.1:{http}", grpc_address: "127.0.0.1:{grpc}"}}
quota: {{mode: borrow, unknown_tenants: create}}
storage: {{snapshot_dir: {home}/scheduler, segment_mb: 4}}
"""
_AGENT = """\
agent: {{id: n, simulated_nodes: 8}}
scheduler: {{master_address: "127.0.0.1:{grpc}", retry_interval: 0.2, max_retry_interval: 1}}
gpu: {{detection_method: simulated, simulated: "8xA100"}}
executor: {{work_dir: {home}/agent, execution_method: simulated}}
"""
_TASK = {"command": "true", "gpu_count": 1, "name": "owner"}
_ROUND: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/api/v1/nodes", None),
    ("POST", "/api/v1/tasks", _TASK),
    ("GET", "/api/v1/tasks?limit=20", None),
    ("GET", "/ready", None),
)
_PAUSE_SECONDS = 0.1
_NEW_CONNECTION_EVERY = 5  # rounds: the owner must also get in anew


class Owner:
    """Ordinary requests, one after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None
        self._rounds = 0
        self.requests = 0
        self.submitted = 0
        self.failures: list[str] = []

    def work(self, seconds: float) -> list[float]:
        """Returns how long each request took."""
        took: list[float] = []
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._rounds += 1
            if self._rounds % _NEW_CONNECTION_EVERY == 0:
                self._hang_up()
            for method, path, body in _ROUND:
                began_s = time.monotonic()
                self._ask(method, path, body)
                took.append(time.monotonic() - began_s)
            time.sleep(_PAUSE_SECONDS)
        return took

    def _ask(self, method: str, path: str, body: Any) -> None:
        self.requests += 1
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(f"{method} {path}: {error!r}")
            self._hang_up()
            return
        if response.status >= 400:
            self.failures.append(f"{method} {path}: {response.status} {text[:200]!r}")
        elif method == "POST":
            self.submitted += 1

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Cluster:
    def __init__(self, rlimit: int) -> None:
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-soak-"))
        self.http, self.grpc = free_port(), free_port()
        facts = {"home": self.home, "http": self.http, "grpc": self.grpc}
        (self.home / "scheduler.yaml").write_text(_SCHEDULER.format(**facts))
        (self.home / "agent.yaml").write_text(_AGENT.format(**facts))
        self.scheduler = self._start("scheduler", rlimit)
        self.agent = self._start("agent", 0)

    def _start(self, name: str, rlimit: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dgpu", name, "--config", str(self.home / f"{name}.yaml")]
        if rlimit:
            command = ["/bin/sh", "-c", f'ulimit -n {rlimit}; exec "$@"', "sh", *command]
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def ask(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return bool(self.ask("/ready")["ready"] and len(self.ask("/api/v1/nodes")["nodes"]) == 8)
        return False

    def resident_mb(self) -> int:
        status = pathlib.Path(f"/proc/{self.scheduler.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) >> 10

    def close(self) -> None:
        for process in (self.agent, self.scheduler):
            process.terminate()
        for process in (self.agent, self.scheduler):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


@contextlib.contextmanager
def role(cluster: Cluster, name: str, number: int, results: dict[str, Any]) -> Iterator[None]:
    """A process of `soak_load`, until the block ends."""
    command = [sys.executable, "-m", "tests.faults.soak_load", name]
    command += [str(cluster.http), str(cluster.grpc), str(number)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        output, _ = process.communicate("stop\n", timeout=120)
        results[name] = json.loads(output) if output else {"exit_code": process.returncode}


def run(cluster: Cluster, asked: argparse.Namespace) -> dict[str, Any]:
    owner = Owner(cluster.http)
    results: dict[str, Any] = {}
    quiet_s = max(10.0, asked.minutes * 60 / 10)
    with role(cluster, "submit", asked.rate, results):
        owner.work(5.0)  # the first answers load code
        quiet = owner.work(quiet_s)
        memory_mb = {"quiet": cluster.resident_mb()}
        with contextlib.ExitStack() as load:
            load.enter_context(role(cluster, "flood", asked.connections, results))
            load.enter_context(role(cluster, "readers", asked.readers, results))
            if asked.hoarders:
                load.enter_context(role(cluster, "hoard", asked.hoarders, results))
            time.sleep(3.0)
            loud = owner.work(asked.minutes * 60)
            memory_mb["loaded"] = cluster.resident_mb()
            connections = cluster.ask("/ready")["connections"]
        quiet += owner.work(quiet_s)
        memory_mb["quiet again"] = cluster.resident_mb()
    submitted = results["submit"]["submitted"] + owner.submitted
    total = cluster.ask("/api/v1/tasks?limit=1")["total"]
    wait_until(lambda: cluster.ask("/api/v1/tasks?limit=1&status=pending")["total"] == 0, 120)
    return {
        "minutes": asked.minutes,
        "rate": asked.rate,
        "owner_requests": owner.requests,
        "owner_failures": len(owner.failures),
        "first_failures": owner.failures[:5],
        "submit": results["submit"],
        "tasks_missing": submitted - total,
        "waiting_at_end": cluster.ask("/api/v1/tasks?limit=1&status=pending")["total"],
        "p50_ms": {"quiet": _ms(quiet, 0.5), "loaded": _ms(loud, 0.5)},
        "p99_ms": {"quiet": _ms(quiet, 0.99), "loaded": _ms(loud, 0.99)},
        "p50_ratio": round(_at(loud, 0.5) / _at(quiet, 0.5), 2),
        "p99_ratio": round(_at(loud, 0.99) / _at(quiet, 0.99), 2),
        "memory_mb": memory_mb,
        "connections": connections,
        "load": {name: told for name, told in results.items() if name != "submit"},
    }


def _at(took: list[float], share: float) -> float:
    return sorted(took)[int(len(took) * share)]


def _ms(took: list[float], share: float) -> float:
    return round(_at(took, share) * 1_000, 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="with the load; quiet comes before and after"
    )
    parser.add_argument("--rate", type=int, default=300, help="tasks per second")
    parser.add_argument("--connections", type=int, default=1_500, help="that the other user holds")
    parser.add_argument("--readers", type=int, default=50, help="slow readers of streams")
    parser.add_argument(
        "--hoarders", type=int, default=0, help="connections that ask for large pages and do not read"
    )
    parser.add_argument(
        "--files", type=int, default=0, help="limit of open files of the scheduler; 0: as given"
    )
    parser.add_argument(
        "--max-ratio", type=float, default=0.0, help="fail if p99 grows by more; 0: report only"
    )
    asked = parser.parse_args(arguments)
    if os.getuid() != 0:
        print(
            "not root: the flood comes from the owner's own uid, which has no share to exceed",
            file=sys.stderr,
        )
    cluster = Cluster(asked.files)
    try:
        if not wait_until(cluster.is_ready, 120):
            print((cluster.home / "scheduler.log").read_text()[-2_000:], file=sys.stderr)
            return 1
        verdict = run(cluster, asked)
        died = cluster.scheduler.poll() is not None or cluster.agent.poll() is not None
    finally:
        cluster.close()
    print(json.dumps(verdict | {"died": died}), flush=True)
    failed = verdict["owner_failures"] or verdict["submit"]["failures"] or verdict["tasks_missing"] or died
    too_slow = asked.max_ratio and verdict["p99_ratio"] > asked.max_ratio
    return 1 if failed or too_slow else 0


if __name__ == "__main__":
    sys.exit(main())
