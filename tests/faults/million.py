"""A million tasks through one scheduler: does anything grow?  `python -m tests.faults.million --tasks 1000000`

Real processes: a scheduler with its follower, and an agent with simulated nodes whose tasks end at once. While tasks
flow, the program samples the memory of each process, the time of a list page and of `why`, and the sizes of all files.
The exit code is 1 if something grew. Nine tenths of the tasks come in batches of 100 with one idempotency key each, as
sweeps do; of the others, every second one carries a key of its own, as `dgpu submit` does. The rate is below what two
cores can do: at their limit, the times of list pages say how long the queue for a core is.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import pathlib
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from tests.faults.site import children, command_line, wait_until

from dgpu.entry.chaos.ports import free_port

_SCHEDULER = """\
server: {{http_address: "127.0.0.1:{http}", grpc_address: "127.0.0.1:{grpc}"}}
quota: {{mode: borrow, reclaim: wait, unknown_tenants: create}}
storage: {{snapshot_dir: {home}/scheduler}}
scheduler: {{snapshot_interval: 15}}
logging: {{level: warning}}
"""
_AGENT = """\
agent: {{id: million, simulated_nodes: {nodes}}}
scheduler: {{master_address: "127.0.0.1:{grpc}"}}
gpu: {{detection_method: simulated, simulated: 8xV100}}
executor: {{execution_method: simulated, work_dir: {home}/agent}}
logging: {{level: warning}}
"""
_NODES = 20  # an agent remembers 4,096 ended leases for each: full before the memory is compared
_BATCH = 100
_CLIENTS = 6
_MAX_OPEN = 5_000  # tasks that wait or run; beyond it the clients pause
_MAX_LAG = 300  # journal groups that the history has still to read
_LOOKS = 50  # list pages and `why` of one sample
_RATE = 2_000  # tasks per second

_SETTLED = 100_000  # tasks; until then memory may grow
_MAX_GROWTH = 1.10
_MAX_RATIO = 3.0  # of p99, the last samples against the first
_FLOOR_MS = 25.0  # a p99 below it is never a failure: the machine has other work, too
_KEY_BYTES = 170  # keys live for a day by contract: they are allowed on top, in scheduler and follower
_KEY_LINE_BYTES = 200
_HISTORY_BYTES = 1_200  # of a task with its attempt and its events


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    tasks: int  # finished
    seconds: float
    rss_mb: dict[str, float]
    page_ms: list[float]
    filtered_ms: list[float]
    why_ms: list[float]
    files_mb: dict[str, float]
    keys: int


class Million:
    def __init__(self, tasks: int, nodes: int = _NODES, rate: int = _RATE) -> None:
        self._tasks = tasks
        self._nodes = nodes
        self._rate = rate
        self._home = pathlib.Path(tempfile.mkdtemp(prefix=".million-", dir=pathlib.Path.cwd()))
        self._http, self._grpc = free_port(), free_port()
        self._services: list[subprocess.Popen[bytes]] = []
        self._numbers = itertools.count()
        self._submitted = 0
        self._keys = 0
        self._lock = threading.Lock()
        self._failed: list[str] = []
        self._may_submit = threading.Event()
        self._may_submit.set()

    def run(self) -> tuple[list[Sample], list[str]]:
        try:
            self._start()
            return self._flow()
        finally:
            for service in reversed(self._services):
                service.send_signal(signal.SIGTERM)
                service.wait(120)
            shutil.rmtree(self._home, ignore_errors=True)

    # processes

    def _start(self) -> None:
        for name, text in (("scheduler", _SCHEDULER), ("agent", _AGENT)):
            config = self._home / f"{name}.yaml"
            config.write_text(
                text.format(home=self._home, http=self._http, grpc=self._grpc, nodes=self._nodes)
            )
            with (self._home / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", "dgpu", name, "--config", str(config)]
                self._services.append(subprocess.Popen(command, stdout=log, stderr=log))
        wait_until(self._is_up, 120)

    def _is_up(self) -> bool:
        try:
            nodes = self._get(
                http.client.HTTPConnection("127.0.0.1", self._http, timeout=60), "/api/v1/nodes"
            )["nodes"]
        except (OSError, http.client.HTTPException, KeyError):
            return False
        return len(nodes) == self._nodes

    def _processes(self) -> dict[str, int]:
        scheduler, agent = (service.pid for service in self._services)
        follower = [pid for pid in children(scheduler) if b"follower" in command_line(pid)]
        return {"scheduler": scheduler, "agent": agent, **({"follower": follower[0]} if follower else {})}

    # load

    def _flow(self) -> tuple[list[Sample], list[str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._http, timeout=120)
        held = self._post(connection, "/api/v1/tasks", {"command": "true", "held": True}, "")["task_id"]
        clients = [threading.Thread(target=self._submit, daemon=True) for _ in range(_CLIENTS)]
        for each in (*clients, threading.Thread(target=self._pace, daemon=True)):
            each.start()
        samples: list[Sample] = []
        began_s = time.monotonic()
        step = max(1_000, self._tasks // 40)
        while not self._failed:
            finished = self._finished(connection)
            if finished >= step * (len(samples) + 1) or finished >= self._tasks:
                samples.append(self._sample(connection, held, finished, time.monotonic() - began_s))
                print(_line(samples[-1]), flush=True)
            if finished >= self._tasks:
                break
            time.sleep(0.2)
        return samples, self._failed

    def _pace(self) -> None:
        """Clients pause while much is open, or the history is behind: what is measured is the flow, not a queue."""
        connection = http.client.HTTPConnection("127.0.0.1", self._http, timeout=120)
        began_s = time.monotonic()
        try:
            while not self._failed and (finished := self._finished(connection)) < self._tasks:
                lag = self._get(connection, "/ready").get("history_lag") or 0
                is_full = self._submitted - finished > _MAX_OPEN or lag > _MAX_LAG
                is_early = self._submitted > self._rate * (time.monotonic() - began_s)
                (self._may_submit.clear if is_full or is_early else self._may_submit.set)()
                time.sleep(0.05)
        except (OSError, http.client.HTTPException) as error:
            self._failed.append(f"the number of tasks is unknown: {type(error).__name__}: {error}")

    def _finished(self, connection: http.client.HTTPConnection) -> int:
        return int(self._get(connection, "/api/v1/tasks?status=success&limit=1")["total"])

    def _submit(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._http, timeout=120)
        try:
            for number in self._numbers:
                self._may_submit.wait()
                with self._lock:
                    if self._submitted >= self._tasks:
                        return
                    is_batch = number % 11 != 0  # ten batches, then 100 tasks one by one
                    count = min(_BATCH, self._tasks - self._submitted)
                    self._submitted += count
                self._submit_some(connection, number, count, is_batch=is_batch)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self._failed.append(f"a submit failed: {type(error).__name__}: {error}")
            self._may_submit.set()

    def _submit_some(
        self, connection: http.client.HTTPConnection, number: int, count: int, *, is_batch: bool
    ) -> None:
        task = {"command": f"python train.py --seed {number}", "name": f"train-{number}", "gpu_count": 1}
        if is_batch:
            self._post(
                connection, "/api/v1/tasks/batch", {"task": task, "count": count}, secrets.token_hex(16)
            )
            self._keys += 1
            return
        for place in range(count):
            self._post(connection, "/api/v1/tasks", task, secrets.token_hex(16) if place % 2 else "")
            self._keys += place % 2

    def _post(self, connection: http.client.HTTPConnection, path: str, body: Any, key: str) -> Any:
        headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 201, content[:300]
        return json.loads(content)

    def _get(self, connection: http.client.HTTPConnection, path: str) -> Any:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    # looks

    def _sample(
        self, connection: http.client.HTTPConnection, held: str, finished: int, seconds: float
    ) -> Sample:
        looks: dict[str, list[float]] = {}
        paths = ("/api/v1/tasks", "/api/v1/tasks?status=failed&pool=batch", f"/api/v1/tasks/{held}/why")
        for path in paths:
            for _ in range(_LOOKS):
                began_s = time.perf_counter()
                self._get(connection, path)
                looks.setdefault(path, []).append((time.perf_counter() - began_s) * 1_000)
        return Sample(
            tasks=finished,
            seconds=seconds,
            rss_mb={name: _rss_mb(pid) for name, pid in self._processes().items()},
            page_ms=looks[paths[0]],
            filtered_ms=looks[paths[1]],
            why_ms=looks[paths[2]],
            files_mb=_files_mb(self._home / "scheduler"),
            keys=self._keys,
        )


def judge(samples: list[Sample], tasks: int) -> list[str]:
    """What grew."""
    wrong = []
    settled = [sample for sample in samples if sample.tasks <= min(_SETTLED, tasks // 2)] or samples[:1]
    last = samples[-max(1, len(samples) // 10) :]
    for name in settled[-1].rss_mb:
        before = max(sample.rss_mb[name] for sample in settled)
        after = statistics.median(sample.rss_mb.get(name, 0.0) for sample in last)
        for_keys = (last[-1].keys - settled[-1].keys) * _KEY_BYTES / 2**20 if name != "agent" else 0.0
        if after > before * _MAX_GROWTH + for_keys:
            wrong.append(
                f"memory of the {name}: {before:.0f} MiB, then {after:.0f} MiB ({for_keys:.0f} for keys)"
            )
    for what in ("page_ms", "filtered_ms", "why_ms"):
        first = p99(itertools.chain(*(getattr(sample, what) for sample in samples[: len(last)])))
        final = p99(itertools.chain(*(getattr(sample, what) for sample in last)))
        if final > max(_FLOOR_MS, first * _MAX_RATIO):
            wrong.append(f"p99 of {what}: {first:.1f} ms, then {final:.1f} ms")
    files, keys = last[-1].files_mb, last[-1].keys
    # A fast machine finishes 100,000 tasks before the first snapshot is due.
    first_snapshot = next(
        (sample.files_mb["snapshot"] for sample in samples if "snapshot" in sample.files_mb), 0.0
    )
    bounds = {
        "journal": 256.0,  # the segment being written, spares, and those that both snapshots do not cover yet
        "keys": 2 * keys * _KEY_LINE_BYTES / 2**20 + 16.0,
        "snapshot": 4.0 * first_snapshot + 4.0,  # two, and one being written
        "archive": 10_240.0,
        "history": tasks * _HISTORY_BYTES / 2**20 + 64.0,  # it keeps a million tasks
        "forecasts": 16.0,
    }
    wrong += [
        f"{name}: {files.get(name, 0.0):.0f} MiB of files, the bound is {bound:.0f}"
        for name, bound in bounds.items()
        if files.get(name, 0.0) > bound
    ]
    return wrong


def p99(values: Iterator[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) * 99 // 100]


def _rss_mb(pid: int) -> float:
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _files_mb(folder: pathlib.Path) -> dict[str, float]:
    """By the first part of the name: journal, archive, keys, snapshot, history, ..."""
    found: dict[str, float] = {}
    for path in folder.rglob("*"):
        try:
            size = path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:
            continue
        name = path.relative_to(folder).parts[0].split(".")[0]
        found[name] = found.get(name, 0.0) + size / 2**20
    return found


def _line(sample: Sample) -> str:
    rss = "  ".join(f"{name} {value:.0f}" for name, value in sorted(sample.rss_mb.items()))
    looks = "  ".join(
        f"{name} {statistics.median(values):.1f}/{p99(iter(values)):.1f}"
        for name, values in (
            ("page", sample.page_ms),
            ("filtered", sample.filtered_ms),
            ("why", sample.why_ms),
        )
    )
    files = "  ".join(
        f"{name} {value:.1f}" for name, value in sorted(sample.files_mb.items()) if value >= 0.1
    )
    figures = f"MiB: {rss} | p50/p99 ms: {looks} | MiB of files: {files}"
    return f"{sample.tasks:>9,} tasks {sample.seconds:7.0f} s | {figures}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=_NODES)
    parser.add_argument("--rate", type=int, default=_RATE, help="tasks per second at most")
    given = parser.parse_args()
    samples, failed = Million(given.tasks, given.nodes, given.rate).run()
    wrong = [*failed, *(judge(samples, given.tasks) if samples else ["no sample was taken"])]
    for line in wrong:
        print(f"GREW  {line}")
    print("nothing grew" if not wrong else f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
