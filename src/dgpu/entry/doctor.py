"""`dgpu doctor`: checks this machine and its services, with advice."""

from __future__ import annotations

import ctypes
import enum
import importlib.util
import itertools
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dgpu import __version__, core_form
from dgpu.agent.containers.engine import Engine, EngineError
from dgpu.agent.corral import group_of
from dgpu.entry.ask import ask
from dgpu.entry.config_types import Docker
from dgpu.entry.processes import is_alive, processes_of
from dgpu.entry.shared_uids import shared_uids
from dgpu.entry.stack import GRPC_PORT, HOST, HTTP_PORT
from dgpu.entry.state_dir import StateDir, UpRecord
from dgpu.wire import isolation

_PR_GET_CHILD_SUBREAPER = 37
_CLOCK_UNSYNCHRONISED = 5
PODMAN_SOCKET = "/run/podman/podman.sock"
_ENGINE_SECONDS = 5.0
FEW_FILES = 1_024  # leaves few connections, because the scheduler reserves files for itself
_LITTLE_MB, _TOO_LITTLE_MB = 2_048, 200
_APPLIES = f"for tasks with a Unix user of their own: {isolation.KEY}"


class Verdict(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    status: Verdict
    detail: str
    advice: str = ""  # what to do


def examine(servers: Sequence[str] = (), data_dir: Path | None = None) -> list[Check]:
    """Makes every check, whatever the others find. An explicit directory is checked even for another scheduler."""
    state_dir = StateDir(data_dir)
    record = state_dir.read_record()
    urls = servers or (record.url if record else f"http://{HOST}:{HTTP_PORT}",)
    url = next((each for each in urls if ask(each, "/health")), urls[0])
    is_its_own = data_dir is not None or not servers or any(_is_of(record, each) for each in urls)
    steps: list[Callable[[], Iterator[Check]]] = [
        _python,
        _core,
        lambda: _data_dir(state_dir) if is_its_own else _unseen_data_dir(state_dir, url),
        lambda: itertools.chain.from_iterable(map(_scheduler, urls)),
        lambda: _ports(record, url),
        _gpus,
        _kernel,
        lambda: _users(url),
        _boundaries,
        _uids,
        _containers,
        _clock,
        lambda: _leftovers(state_dir, record),
    ]
    checks: list[Check] = []
    for step in steps:
        checks.extend(step())
    return checks


def _ok(name: str, detail: str) -> Check:
    return Check(name=name, status=Verdict.OK, detail=detail)


def _warn(name: str, detail: str, advice: str) -> Check:
    return Check(name=name, status=Verdict.WARN, detail=detail, advice=advice)


def _fail(name: str, detail: str, advice: str) -> Check:
    return Check(name=name, status=Verdict.FAIL, detail=detail, advice=advice)


def _python() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036  said kindly instead of failing later
        yield _fail("python", version, "Install Python 3.11 or newer.")
    else:
        yield _ok("python", f"{version} ({sys.executable})")
    if not sys.platform.startswith("linux"):
        yield _fail("system", sys.platform, "Agents and dgpu up need Linux; the command line works anywhere.")


def _core() -> Iterator[Check]:
    """Both forms are correct. The compiled one decides in half the time."""
    yield _ok("core", core_form.FORM)


def _data_dir(state_dir: StateDir) -> Iterator[Check]:
    path = state_dir.path
    standing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=standing):
            pass
    except OSError as error:
        advice = f"Make it writable, or choose another directory: dgpu up --data-dir D ({error.strerror})."
        yield _fail("data directory", f"{path} is not writable", advice)
        return
    free_mb = shutil.disk_usage(standing).free >> 20
    detail = f"{path}, {free_mb / 1024:.1f} GiB free"
    if free_mb < _TOO_LITTLE_MB:
        yield _fail("data directory", detail, "Free some space: submits are refused without it (507).")
    elif free_mb < _LITTLE_MB:
        yield _warn(
            "data directory", detail, "Free some space soon: journal, history and output of tasks grow there."
        )
    else:
        yield _ok("data directory", detail)


def _unseen_data_dir(state_dir: StateDir, url: str) -> Iterator[Check]:
    """The directory of this user's `up` says nothing about the free space of another scheduler."""
    yield _ok("data directory", f"not checked: {state_dir.path} may not belong to {url} (see --data-dir)")


def _is_of(record: UpRecord | None, url: str) -> bool:
    return record is not None and _dialled(record.url) == _dialled(url)


def _dialled(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return (HOST if parts.hostname == "localhost" else parts.hostname, parts.port)


def _scheduler(url: str) -> Iterator[Check]:
    health = ask(url, "/health")
    if health is None:
        yield _warn("scheduler", f"none answers at {url}", "Start one: dgpu up")
        return
    version = (health.body or {}).get("version", "") if isinstance(health.body, dict) else ""
    if health.status != 200 or not version:
        yield _fail("scheduler", f"{url} is not a dgpu scheduler", "Give the right address: --server URL.")
        return
    ready = ask(url, "/ready")
    state = ready.body if ready and isinstance(ready.body, dict) else {}
    if ready is None or ready.status != 200:
        detail = f"{url}, version {version}, not ready: {state.get('detail') or 'no reason given'}"
        is_full = state.get("storage_full")
        todo = "Free some space on its disk." if is_full else "Wait a moment, then check its log."
        yield _fail("scheduler", detail, todo)
    elif state.get("epoch_unknown"):
        todo = (
            "If its state is the right one: dgpu up --accept-lost-tail, or dgpu scheduler --accept-lost-tail."
        )
        yield _fail("scheduler", f"{url} refuses nodes: {state['epoch_unknown']}", todo)
    elif version != __version__:
        detail = f"{url} has version {version}, this is {__version__}"
        yield _warn("scheduler", detail, "Restart it with this version: dgpu down, dgpu up.")
    else:
        yield _ok("scheduler", f"{url}, version {version}, ready, {state.get('role', 'master')}")
    if isinstance(state.get("connections"), dict):
        yield _connections(state["connections"])
    yield from _clocks(state)


def _connections(counts: dict[str, int]) -> Check:
    http, http_max = counts.get("http", 0), counts.get("http_max", 0)
    agents, agents_max = counts.get("agents", 0), counts.get("agents_max", 0)
    files, files_max = counts.get("files", 0), counts.get("files_max", 0)
    detail = (
        f"{http} of {http_max} for HTTP ({counts.get('http_refused', 0)} refused since its start), "
        f"{agents} of {agents_max} for agents; {files} of {files_max} files open"
    )
    if files_max < FEW_FILES:
        advice = "Raise the hard limit of open files: ulimit -Hn, LimitNOFILE= of the service."
        return _warn("connections", detail, advice)
    if http * 10 >= http_max * 9 or agents * 10 >= agents_max * 9 or files * 10 >= files_max * 9:
        advice = "List the clients: ss -tnp. Idle connections of other users are closed automatically."
        return _warn("connections", detail, advice)
    return _ok("connections", detail)


def _clocks(ready: dict[str, Any]) -> Iterator[Check]:
    """The clocks of the scheduler and its nodes, as the scheduler sees them."""
    detail = str(ready.get("detail") or "")
    if ready.get("clock_jump_seconds") or ready.get("clocks_ahead_seconds"):
        advice = (
            "Start a time service there. Limits, order and retention do not depend on it; shown times do."
        )
        yield _warn("clocks", detail, advice)
    elif "clock_jump_seconds" in ready:
        yield _ok("clocks", "scheduler and nodes agree")


def _ports(record: UpRecord | None, url: str) -> Iterator[Check]:
    dialled = urlsplit(url)
    # A remote scheduler holds no port of this machine.
    here = dialled.hostname in {HOST, "localhost", "::1"}
    ours = {f"{HOST}:{dialled.port}" if here else "", record.grpc_address if record else ""}
    for name, port in (("http port", HTTP_PORT), ("grpc port", GRPC_PORT)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                if f"{HOST}:{port}" in ours:
                    yield _ok(name, f"{port}, held by dgpu")
                else:
                    yield _warn(
                        name,
                        f"{port}: {error.strerror}",
                        "No problem: dgpu up uses another port and prints it.",
                    )
            else:
                yield _ok(name, f"{port} is free")


def _gpus() -> Iterator[Check]:
    if importlib.util.find_spec("pynvml") is None:
        yield _ok("gpus", "not checked: only the client is installed; a node needs dgpu[agent]")
        return
    from dgpu.agent.probe.detect import DetectionMethod, detect

    found = 0
    for method in (DetectionMethod.NVML, DetectionMethod.NVIDIA_SMI):
        detection = detect(method)
        if detection.probe is None:
            yield _warn(f"gpus by {method}", detection.attempts[-1].reason, _gpu_advice(found))
            continue
        detection.probe.close()
        found += len(detection.gpus)
        models = sorted({gpu.model for gpu in detection.gpus})
        faults = [f"GPU {gpu.index}: {gpu.fault}" for gpu in detection.gpus if gpu.fault]
        detail = f"{len(detection.gpus)} ({', '.join(models)})"
        if faults:
            yield _warn(
                f"gpus by {method}", f"{detail}; {'; '.join(faults)}", "See nvidia-smi and the kernel log."
            )
        else:
            yield _ok(f"gpus by {method}", detail)


def _gpu_advice(found: int) -> str:
    return (
        "The other method works."
        if found
        else "Without a GPU, dgpu up simulates some. If there is a GPU, check its driver."
    )


def _kernel() -> Iterator[Check]:
    try:
        os.close(os.pidfd_open(os.getpid()))
        yield _ok("pidfd", "available")
    except (OSError, AttributeError) as error:
        yield _fail("pidfd", str(error), "Needs Linux 5.3 or newer.")
    libc = ctypes.CDLL(None, use_errno=True)
    value = ctypes.c_int()
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0) == 0:
        yield _ok("subreaper", "available: runaway children of tasks are found")
    else:
        yield _fail("subreaper", os.strerror(ctypes.get_errno()), "A sandbox forbids prctl; allow it.")
    yield _cgroup()


def _containers() -> Iterator[Check]:
    """The engine that the agent of this machine would use. Without one, tasks run as processes: that is no problem."""
    path = os.environ.get("DGPU__EXECUTOR__DOCKER__SOCKET") or next(
        (path for path in (Docker().socket, PODMAN_SOCKET) if Path(path).exists()), ""
    )
    if not path:
        yield _ok("containers", "no engine found; tasks run as processes")
        return
    try:
        version = Engine(path).ping(seconds=_ENGINE_SECONDS)
    except EngineError as error:
        advice = "Start the engine, or give this user access to its socket. Access to it is equal to root."
        yield _warn("containers", str(error), advice)
        return
    yield _ok("containers", f"{version} at {path}; used with executor.execution_method: docker")


def _cgroup() -> Check:
    group = group_of("self")
    if group is None:
        return _warn(
            "cgroup", "no cgroup v2 here", "Process trees are found by subreaper and environment instead."
        )
    if os.access(group, os.W_OK):
        return _ok("cgroup", f"v2, writable at {group}")
    advice = "Process trees are found by other means. For cgroups: dgpu install-service."
    return _warn("cgroup", "v2, but not writable for you", advice)


def _users(url: str) -> Iterator[Check]:
    """The boundary between users, as the scheduler and its nodes have it."""
    told = ask(url, "/api/v1/whoami")
    if told is None or told.status != 200 or not isinstance(told.body, dict):
        return
    word = told.body.get("isolation", "")
    if notice := isolation.NOTICES.get(word):
        advice = f"If they do not trust each other, set {isolation.KEY}: docs/security.md, Users on nodes."
        if word == isolation.OPEN:
            advice = "Use auth.mode: local with tokens: docs/security.md."
        yield _warn("users", notice, advice)
    elif not word:
        detail = "one: tasks run as the agent's user, and there is no boundary between tasks and scheduler"
        yield _ok("users", detail)
    else:
        nodes = ask(url, "/api/v1/nodes")
        found = nodes.body.get("nodes", []) if nodes and isinstance(nodes.body, dict) else []
        lacking = [
            f"{node['id']} ({', '.join(node['not_enforced'])})" for node in found if node.get("not_enforced")
        ]
        detail = "tasks run as the Unix users of their tenants"
        if lacking:
            advice = "Not enforced there is what the brackets name; see docs/security.md, Users on nodes."
            yield _warn("users", f"{detail}; incomplete on {', '.join(lacking[:8])}", advice)
        else:
            yield _ok("users", detail)


def _boundaries() -> Iterator[Check]:
    """What an agent of this user could enforce here."""
    from dgpu.agent.boundaries import find_boundaries

    found = find_boundaries(Path("/var/lib/dgpu-tasks"))
    missing = [name for name in isolation.FEATURES if name not in found.enforced]
    if found.not_isolated:
        advice = "Needed only for several users: run the agent as root."
        yield _ok("isolation", f"nothing can be enforced between users here: {found.not_isolated}. {advice}")
    elif missing:
        detail = f"can be enforced: {', '.join(found.enforced)}; not: {', '.join(missing)} ({_APPLIES})"
        yield _warn("isolation", detail, "Needs control groups of version 2 and a kernel with eBPF filters.")
    else:
        yield _ok("isolation", f"can be enforced: {', '.join(found.enforced)} ({_APPLIES})")


def _uids() -> Iterator[Check]:
    """Two agents that are root know nothing of each other's uids."""
    if os.geteuid() == 0 and (shared := shared_uids()):
        advice = (
            "Tasks of these tenants can read and end each other. Give each agent of this machine a range of its own: "
            f"{isolation.KEY} of its scheduler; docs/security.md, Users on nodes."
        )
        yield _warn("uids", "; ".join(shared), advice)


def _clock() -> Iterator[Check]:
    libc = ctypes.CDLL(None, use_errno=True)
    timex = ctypes.create_string_buffer(256)  # larger than struct timex; mode 0 only reads
    try:
        state = libc.adjtimex(timex)
    except AttributeError:
        state = -1
    if state == _CLOCK_UNSYNCHRONISED:
        advice = (
            "Start a time service (chrony, systemd-timesyncd). dgpu does not need it, but shown times do."
        )
        yield _warn("clock", "not synchronised", advice)
    else:
        yield _ok("clock", "synchronised" if state >= 0 else "state unknown here")


def _leftovers(state_dir: StateDir, record: UpRecord | None) -> Iterator[Check]:
    alive = [
        f"{name} {ref.pid}"
        for name in ("scheduler", "agent")
        for ref in processes_of(state_dir.hold_file(name), getattr(record, name, None))
    ]
    if record is None and not alive:
        yield _ok("leftovers", "none")
    elif record is not None and is_alive(record.supervisor):
        yield _ok("leftovers", f"none; dgpu up runs (pid {record.pid})")
    elif alive:
        detail = f"dgpu up was killed, but {' and '.join(alive)} still run"
        yield _warn("leftovers", detail, "dgpu up takes over; dgpu down ends them.")
    else:
        detail = f"{state_dir.record_file} names processes that are gone"
        yield _warn("leftovers", detail, "No problem: dgpu up takes over; dgpu down removes it.")
