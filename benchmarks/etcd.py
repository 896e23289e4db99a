"""Durable appends with etcd against the file journal, alternating in one run. Needs `etcd` in PATH."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _cluster import agent_host, scheduler
from _load import PART
from drain import ALL_GPUS, NODES, NULL_TASKS, drain, idle_starts
from journal import submitted

from dgpu.journal.engine import Candidate, EngineError
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.journal.file import FileJournal
from dgpu.journal.replicated import ReplicatedJournal
from dgpu.wire.records import encode_group

ROUNDS = 6
APPENDS = 100
SUBMIT_ROUNDS = 3
SUBMITS = {"single": 1_000, "hundred": 10_000, "bulk": 40_000}
BATCHES = (1, 32, 1_000)  # submits that share a group


def run() -> Iterator[dict[str, Any]]:
    """Beside the working directory, not in the temp dir, which may be memory."""
    if shutil.which("etcd") is None:
        yield {"figure": "no etcd in PATH"}
        return
    directory = Path(tempfile.mkdtemp(prefix=".bench-etcd-", dir=Path.cwd()))
    try:
        for members in (1, 3):
            with cluster(directory / f"etcd-{members}", members) as endpoints:
                yield from appends(directory / f"journals-{members}", endpoints, members)
                if members == 3:
                    yield from submits(endpoints)
                    yield from tasks(endpoints)
    finally:
        shutil.rmtree(directory)


def appends(directory: Path, endpoints: tuple[str, ...], members: int) -> Iterator[dict[str, Any]]:
    engine = EtcdEngine(EtcdSettings(endpoints=endpoints, patience_s=30, attempt_s=10, ttl_s=600))
    term = engine.campaign(Candidate(name="bench", http="", grpc="", nonce=""))
    journals: dict[str, Any] = {"file": FileJournal.open(directory / "file")}
    journals["etcd"] = ReplicatedJournal.open(directory / "etcd", engine)
    for journal in journals.values():
        journal.recover()
    journals["etcd"].lead(term)
    index = 0
    for batch in BATCHES:
        payload = encode_group(submitted(batch, batch=batch)[0][1])
        took: dict[str, list[float]] = {name: [] for name in journals}
        for _ in range(ROUNDS):
            for name, journal in journals.items():
                for number in range(APPENDS // ROUNDS):
                    started = time.perf_counter()
                    journal.append(1, index + 1 + number, payload)
                    took[name].append(time.perf_counter() - started)
            index += APPENDS // ROUNDS
        rate = {name: batch * len(times) / sum(times) for name, times in took.items()}
        yield figure(
            f"submits/s in groups of {batch}, etcd with {members} members",
            rate["etcd"],
            "submits/s",
            file=rate["file"],
            percent_of_file=100 * rate["etcd"] / rate["file"],
            p50_ms=1e3 * statistics.median(took["etcd"]),
            file_p50_ms=1e3 * statistics.median(took["file"]),
            group_kib=len(payload) / 1024,
        )
    for journal in journals.values():
        journal.close()
    engine.close()


def submits(endpoints: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Whole submits through REST, in turns. Etcd has three members on the same disk as everything else."""
    with scheduler() as file, scheduler(_shared(endpoints, "submits"), "etcd") as etcd:
        servers = {"file": file, "etcd": etcd}
        for kind, number in SUBMITS.items():
            for server in servers.values():
                server.load(kind, number // 10)  # warm
            seconds = dict.fromkeys(servers, 0.0)
            for _ in range(SUBMIT_ROUNDS):
                for name, server in servers.items():
                    seconds[name] += server.load(kind, number)["seconds"]
            rate = {name: SUBMIT_ROUNDS * number / took for name, took in seconds.items()}
            yield figure(
                f"durable submits through REST, {PART[kind]} in a request, etcd with 3 members",
                rate["etcd"],
                "tasks/s",
                file=rate["file"],
                percent_of_file=100 * rate["etcd"] / rate["file"],
                aim_percent=15,
            )


def tasks(endpoints: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The whole way of a task, first with files, then with etcd."""
    began: dict[str, list[dict[str, Any]]] = {}
    for journal, rules in (("file", ""), ("etcd", _shared(endpoints, "starts"))):
        with scheduler(f"{ALL_GPUS}\n{rules}", journal) as server, agent_host(server, nodes=1):
            began[journal] = list(idle_starts(server))
    start = {journal: float(lines[0]["value"]) for journal, lines in began.items()}
    yield figure(
        "idle: submit to process start, p50, etcd with 3 members",
        start["etcd"],
        "ms",
        file=start["file"],
        times_file=start["etcd"] / start["file"],
        aim_times=2.5,
    )
    shared = f"{ALL_GPUS}\n{_shared(endpoints, 'drain')}"
    with scheduler(shared, "etcd") as server, agent_host(server, nodes=NODES, method="simulated"):
        drain(server, "bulk", 1_000, "true")  # warm
        rate = drain(server, "bulk", NULL_TASKS, "true")
        yield figure(f"drain, {NODES} simulated nodes, etcd with 3 members", rate, "tasks/s", aim=1_000)


def _shared(endpoints: tuple[str, ...], name: str) -> str:
    return f"ha: {{mode: external, endpoints: {json.dumps(endpoints)}, prefix: /{name}/}}"


@contextlib.contextmanager
def cluster(directory: Path, members: int) -> Iterator[tuple[str, ...]]:
    directory.mkdir(parents=True)
    ports = [free_port() for _ in range(2 * members)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    clients, peers = urls[:members], urls[members:]
    names = [f"m{number}={peer}" for number, peer in enumerate(peers)]
    processes = []
    with (directory / "log").open("wb") as log:
        for number in range(members):
            command = [
                "etcd",
                f"--name=m{number}",
                f"--data-dir={directory / str(number)}",
                f"--listen-client-urls={clients[number]}",
                f"--advertise-client-urls={clients[number]}",
                f"--listen-peer-urls={peers[number]}",
                f"--initial-advertise-peer-urls={peers[number]}",
                f"--initial-cluster={','.join(names)}",
                "--logger=zap",
            ]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        try:
            wait_for(tuple(clients))
            yield tuple(clients)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def wait_for(endpoints: tuple[str, ...]) -> None:
    engine = EtcdEngine(EtcdSettings(endpoints=endpoints))
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        with contextlib.suppress(EngineError):
            engine.head()
            engine.close()
            return
    raise SystemExit("etcd did not start within 60 s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def figure(name: str, value: float, unit: str, **more: float) -> dict[str, Any]:
    return {"figure": name, "value": round(value, 1), "unit": unit} | {
        key: round(one, 2) for key, one in more.items()
    }


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line))
