"""The container that the engine is asked to create. Standard library only; pure.

Everything that would give a container more than a process has is refused by not being there: it is never privileged,
shares no namespace of the host, has no capability and cannot gain one.
"""

from __future__ import annotations

import resource
from typing import Any

from dgpu.agent.secret_dirs import HOST_FILE_VARIABLE, SECRETS_VARIABLE

KEEPER_LABEL = "dgpu.keeper"
LEASE_LABEL = "dgpu.lease"
SECRETS_TARGET = "/run/secrets"  # files with secrets, in the container
SPEC_VARIABLE = "DGPU_INSIDE"  # of a command inside a container; other users can read a command line
WORDS_FD = 3  # of the runner: the pipe to its keeper
FILES_FD = 4  # of the runner: the socket for its output files, if there are any
_NANO_PER_MILLI = 1_000_000
_MB = 1 << 20
_LIMITS = (  # the second counts all processes of the user on the node; PidsLimit counts those of the container
    ("nofile", resource.RLIMIT_NOFILE, 1_048_576),
    ("nproc", resource.RLIMIT_NPROC, 32_768),
)


def container_name(keeper_id: str, lease: int) -> str:
    return f"dgpu-{keeper_id}-{lease:d}"


def create_body(spec: dict[str, Any], mounts: list[tuple[str, str, bool]]) -> dict[str, Any]:
    """`mounts`: source, target, whether it is read-only; checked before."""
    limits: dict[str, int] = spec["limits"]
    host: dict[str, Any] = {
        "CapDrop": ["ALL"],
        "GroupAdd": [str(gid) for gid in spec["groups"]],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},  # the scribe keeps the output
        "RestartPolicy": {"Name": "no"},
        "PidsLimit": limits["pids"],
        "ShmSize": limits["shm_mb"] * _MB,
        "Ulimits": _ulimits(),
        "ReadonlyRootfs": spec["read_only"],
        "Mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
            for source, target, read_only in mounts
        ],
    }
    if spec["read_only"]:
        host["Tmpfs"] = {"/tmp": "rw,nosuid,nodev,mode=1777"}  # noqa: S108 - in the container
    if spec["network"]:
        host["NetworkMode"] = spec["network"]
    if limits["memory_mb"]:
        host["Memory"] = host["MemorySwap"] = limits["memory_mb"] * _MB
    if limits["cpus_milli"]:
        host["NanoCpus"] = limits["cpus_milli"] * _NANO_PER_MILLI
    if requests := _device_requests(spec["gpus"], spec["gpu_method"]):
        host["DeviceRequests"] = requests
    return {
        "Image": spec["image"],
        # The task's command is the whole program: the entry point of the image is not called.
        "Entrypoint": spec["argv"],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in _environment(spec).items()],
        "User": spec["user"],
        "WorkingDir": spec["dir"],
        "Labels": spec["labels"],
        "Tty": spec["terminal"],
        "OpenStdin": spec["terminal"],
        "AttachStdin": spec["terminal"],
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": host,
    }


def _environment(spec: dict[str, Any]) -> dict[str, str]:
    env = {"HOME": spec["dir"], **spec["env"]}
    if spec["secrets_dir"]:
        env[SECRETS_VARIABLE] = SECRETS_TARGET
        if path := env.get(HOST_FILE_VARIABLE):
            env[HOST_FILE_VARIABLE] = f"{SECRETS_TARGET}/{path.rpartition('/')[2]}"
    # The NVIDIA runtime hands out the GPUs that this variable names, and an image may name all of them.
    by_variable = spec["gpu_method"] == "gpus" and spec["gpus"]
    env["NVIDIA_VISIBLE_DEVICES"] = ",".join(spec["gpus"]) if by_variable else "void"
    return env


def _device_requests(gpus: list[str], method: str) -> list[dict[str, Any]]:
    if not gpus:
        return []
    if method == "cdi":
        return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in gpus]}]
    return [{"Driver": "", "DeviceIDs": gpus, "Capabilities": [["gpu"]]}]


def _ulimits() -> list[dict[str, Any]]:
    """Explicit: the defaults of an engine may exceed what its machine allows."""
    found = []
    for name, which, most in _LIMITS:
        _, hard = resource.getrlimit(which)
        value = most if hard == resource.RLIM_INFINITY else min(hard, most)
        found.append({"Name": name, "Soft": value, "Hard": value})
    return found
