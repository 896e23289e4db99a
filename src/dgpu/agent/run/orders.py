"""Orders and ends between the agent's machines and its keeper: values in, frames out, and back."""

from __future__ import annotations

import os
import pwd
import shlex
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec

from dgpu.agent.accounts import NoAccount, Person
from dgpu.agent.boundaries import minors_of
from dgpu.agent.chunks import read_at
from dgpu.agent.frames import (
    CONTAINER_TERMINALS_PROTOCOL,
    PROTOCOL,
    SECRETS_PROTOCOL,
    TERMINALS_PROTOCOL,
    UPLOADS_PROTOCOL,
    USERS_PROTOCOL,
)
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.oom import TAIL_BYTES, out_of_memory
from dgpu.agent.options import ContainerOptions
from dgpu.agent.run.containers import NotHereError, container_account, container_order
from dgpu.agent.run.output_files import files_order
from dgpu.agent.run.runner import KnownRun, RunEnd, RunOrder
from dgpu.agent.run.slurm import slurm_variables
from dgpu.agent.run.task_ports import TaskPorts
from dgpu.agent.run.worker_orders import check_worker, worker_argv, worker_error, worker_variables
from dgpu.agent.secret_dirs import SECRETS_VARIABLE
from dgpu.agent.spawn import SHELL
from dgpu.agent.tree import KEEPER_MARKER, LEASE_MARKER
from dgpu.agent.unpack import CannotUnpack
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId, task_name
from dgpu.core.model.secrets import REGISTRY_FILE
from dgpu.core.model.task import Outcome, TaskDetail
from dgpu.wire.port_fields import port_variables
from dgpu.wire.ranks import LAUNCHER_PREFIX, attempt_of
from dgpu.wire.run_dirs import TMP_SUFFIX, run_dir_name

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SERVER_VARIABLE = "DGPU_SERVER"  # an address, never a token: the program has the rights of its Unix user
_SCRIPT_FILE = ".script"  # no secret can have this name

_decode_detail = msgspec.json.Decoder(TaskDetail).decode


def spawn_order(
    order: RunOrder,
    *,
    node_id: NodeId,
    keeper_id: str,
    surroundings: dict[str, str],
    grace_ms: int,
    start_ms: int,
    person: Person | None = None,
    work_dir: str = "",
    containers: ContainerOptions | None = None,
    keeper_protocol: int = PROTOCOL,
    ports: TaskPorts | None = None,
    worker_dir: str = "",
) -> dict[str, Any]:
    """`person`: the Unix user of the task; None: the agent's own. Raises DecodeError and ValueError for a task that
    can never start, NotHereError for one that may start elsewhere.
    """
    detail = _decode_detail(order.detail)
    container = container_order(order, detail, containers, person, keeper_protocol=keeper_protocol)
    _check_terminal(detail, keeper_protocol, in_container=container is not None)
    directory = run_dir_name(order.task_id, order.attempt)
    if container is not None:
        surroundings = {}  # an image brings its own, and its loopback may be another one
    else:
        surroundings = surroundings | _around(order, person, detail.workdir, f"{work_dir}/{directory}")
    given = (ports or TaskPorts()).give(order.lease_id, detail.ports, **_may_have(container, person))
    extra = port_variables(given) | worker_variables(order, worker_dir)
    asked = {
        **_which_run(order, node_id),
        "argv": _argv(detail) if order.worker is None else worker_argv(order.worker),
        "env": surroundings | _own_variables(order, detail, node_id, keeper_id) | extra,
        "cwd": detail.workdir,
        "dir": directory,
        "tmp": directory + TMP_SUFFIX if person is not None and container is None else "",
        "account": container_account(container) if container else person and [*person.account],
        "ram_mb": order.ram_mb,
        "cpus_milli": order.cpus_milli,
        "minors": minors_of(order.gpu_ids) if person is not None else None,
        "timeout_ms": order.timeout_ms,
        "grace_ms": detail.grace_ms or grace_ms,
        "signal": detail.signal or None,
        "start_by_ms": boot_ms() + start_ms,
        "most_mb": order.gpu_memory_mb if order.kill_outgrown else 0,
        "secrets": _private_files(order, detail, keeper_protocol),
        "terminal": detail.terminal,
        "ports": list(given.items()),
        "files": files_order(order, detail, node_id, keeper_protocol),
    }
    return asked if container is None else asked | {"container": container}


def _around(order: RunOrder, person: Person | None, workdir: str, directory: str) -> dict[str, str]:
    server = {_SERVER_VARIABLE: order.server} if order.server else {}
    return server if person is None else server | _environment_of(person, workdir, directory)


def _may_have(container: dict[str, Any] | None, person: Person | None) -> dict[str, bool]:
    """Which ports the program can listen on, as `TaskPorts.give` takes it."""
    return {
        "as_root": os.geteuid() == 0 and person is None,
        "own_network": container is not None and container["network"] != "host",
    }


def _which_run(order: RunOrder, node_id: NodeId) -> dict[str, Any]:
    return {
        "lease": order.lease_id,
        "task": order.task_id,
        "attempt": order.attempt,
        "node": node_id,
        "gpus": order.gpu_ids,
        "nonce": order.nonce,
        "cluster": order.cluster_id,
        "worker_silence_ms": order.worker.heartbeat_timeout_ms if order.worker is not None else 0,
    }


def _own_variables(order: RunOrder, detail: TaskDetail, node_id: NodeId, keeper_id: str) -> dict[str, str]:
    slurm = slurm_variables(order, node_id) if detail.slurm_env else {}
    return _variables(order, detail) | _identity(order, node_id, keeper_id) | slurm


def _variables(order: RunOrder, detail: TaskDetail) -> dict[str, str]:
    fixed = {name: value for name, value in order.env.items() if not name.startswith(LAUNCHER_PREFIX)}
    return order.env | detail.env | fixed


def _check_terminal(detail: TaskDetail, keeper_protocol: int, *, in_container: bool) -> None:
    """Raises NotHereError: another node may have a terminal."""
    needed = CONTAINER_TERMINALS_PROTOCOL if in_container else TERMINALS_PROTOCOL
    if detail.terminal and keeper_protocol < needed:
        raise NotHereError("this node's keeper is older and has no terminals; it ends with its tasks")


def _private_files(order: RunOrder, detail: TaskDetail, keeper_protocol: int) -> dict[str, str]:
    """Files of secrets, without the one that only the pull of an image gets, and the script."""
    files = {name: value for name, value in order.secret_files.items() if name != REGISTRY_FILE}
    if detail.script:
        if keeper_protocol < SECRETS_PROTOCOL:
            raise ValueError("this node's keeper is older and runs no scripts; it ends with its tasks")
        files[_SCRIPT_FILE] = detail.script.encode()
    return {name: b64encode(value).decode() for name, value in files.items()}


def _argv(detail: TaskDetail) -> list[str]:
    command = detail.command
    if not command:
        raise ValueError("the task has no command")
    if isinstance(command, str):
        return [SHELL, "-c", command]
    if not detail.script:
        return list(command)
    run = f'exec {shlex.join(_interpreter(detail.script))} "${SECRETS_VARIABLE}/{_SCRIPT_FILE}" "$@"'
    return [SHELL, "-c", run, *command]


def _interpreter(script: str) -> list[str]:
    """From the first line, as the kernel reads it: a program and at most one argument."""
    return script.split("\n", 1)[0][2:].strip().split(None, 1)


def check_keeper(order: RunOrder, protocol: int) -> None:
    """Raises ValueError, NoAccount and NotHereError: a task must not start without the files that it relies on, nor as
    root.
    """
    check_worker(order, protocol)
    if order.upload and protocol < UPLOADS_PROTOCOL:
        raise NotHereError("this node's keeper is older and knows no uploads; it ends with its tasks")
    if order.user is not None and protocol < USERS_PROTOCOL:
        raise NoAccount(
            "this node's keeper is older and would start the task as root; it ends with its tasks",
            is_of_node=True,
        )
    if order.secret_files and protocol < SECRETS_PROTOCOL:
        raise ValueError(
            "this node's keeper is older and knows no files with secrets; it ends with its tasks"
        )


def _identity(order: RunOrder, node_id: NodeId, keeper_id: str) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(order.gpu_ids),
        "DGPU_TASK_ID": task_name(order.task_id),
        "DGPU_ATTEMPT": str(attempt_of(order.attempt)),
        "DGPU_NODE": node_id,
        LEASE_MARKER: str(order.lease_id),
        KEEPER_MARKER: keeper_id,
    }


def _environment_of(person: Person, workdir: str, directory: str) -> dict[str, str]:
    """A user without an entry in the system's list gets a private directory of the task as its home."""
    return {
        "PATH": _DEFAULT_PATH,
        "HOME": person.home or directory + (TMP_SUFFIX if workdir else ""),
        "USER": person.name,
        "LOGNAME": person.name,
        "SHELL": SHELL,
        "TMPDIR": directory + TMP_SUFFIX,
    }


def base_environment() -> dict[str, str]:
    """The environment of a task besides its own variables: only a few variables of the agent."""
    try:
        user = pwd.getpwuid(os.geteuid())
        found = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell}
    except KeyError:
        found = {"HOME": "/", "USER": str(os.geteuid())}
    return {
        **found,
        "PATH": os.environ.get("PATH", _DEFAULT_PATH),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        # Output of a script must not be lost in its buffer when it is stopped.
        "PYTHONUNBUFFERED": "1",
    }


def known_run(record: dict[str, Any], output_dir: str) -> KnownRun:
    end = record.get("end")
    return KnownRun(
        lease_id=LeaseId(record["lease"]),
        task_id=TaskId(record["task"]),
        attempt=record["attempt"],
        gpu_ids=tuple(GpuId(gpu) for gpu in record["gpus"]),
        started_at_ms=record["started_ms"],
        frozen=record.get("frozen", False),
        end=_known_end(record, end, output_dir) if end else None,
        max_mb=record.get("most_mb", 0),
        nonce=record.get("nonce", ""),
        cluster_id=record.get("cluster", ""),
        worker_silence_ms=record.get("worker_silence_ms", 0),
    )


def _known_end(record: dict[str, Any], end: dict[str, Any], output_dir: str) -> RunEnd:
    is_worker = bool(record.get("worker_silence_ms"))
    return read_end({"lease": record["lease"], **end}, output_dir, is_worker=is_worker)


def read_end(entry: dict[str, Any], output_dir: str, *, is_worker: bool = False) -> RunEnd:
    """The end as the keeper saw it, or out of memory if the output says so. A failed worker has its last line as the
    error. Reads files.
    """
    end = end_of(entry)
    if not may_lack_memory(end):
        return end
    directory = Path(f"{output_dir}/{end.lease_id:d}")
    try:
        _, tail = read_at(directory, max(0, end.output_bytes - TAIL_BYTES), TAIL_BYTES)
    except OSError:
        return end
    said = out_of_memory(tail)
    if not said and is_worker and not end.error:
        return msgspec.structs.replace(end, error=worker_error(tail))
    return msgspec.structs.replace(end, outcome=Outcome.OUT_OF_MEMORY, error=said) if said else end


def may_lack_memory(end: RunEnd) -> bool:
    failed = end.outcome is Outcome.SIGNALED or (end.outcome is Outcome.EXITED and end.exit_code != 0)
    return failed and end.output_bytes > 0


def not_started(lease_id: LeaseId, error: Exception) -> RunEnd:
    is_of_node = isinstance(error, NotHereError) or (
        isinstance(error, (NoAccount, CannotUnpack)) and error.is_of_node
    )
    return RunEnd(
        lease_id=lease_id,
        outcome=Outcome.NODE_FAULT if is_of_node else Outcome.CANNOT_START,
        at_ms=boot_ms(),
        exit_code=126,
        error=str(error),
    )


def withdrawn(lease_id: LeaseId) -> RunEnd:
    return RunEnd(
        lease_id=lease_id, outcome=Outcome.STOPPED, at_ms=boot_ms(), error="stopped before it was started"
    )


def end_of(entry: dict[str, Any]) -> RunEnd:
    return RunEnd(
        lease_id=LeaseId(entry["lease"]),
        outcome=Outcome(entry["outcome"]),
        at_ms=entry["ended_ms"],
        exit_code=entry.get("exit_code", 0),
        signal=entry.get("signal", 0),
        error=entry.get("error", ""),
        output_bytes=entry.get("output_bytes", 0),
        output_lost=entry.get("output_lost", 0),
        unkilled=entry.get("unkilled", 0),
        cpu_ms=entry.get("cpu_ms", 0),
        rss_mb=entry.get("rss_mb", 0),
    )
