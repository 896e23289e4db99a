"""`executor.docker`: its checks, and the agent's options made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dgpu.agent.containers.mounts import parse_allowed
from dgpu.agent.probe.detect import DetectionMethod
from dgpu.entry.config_problem import Problem
from dgpu.entry.config_types import AgentConfig
from dgpu.wire.container_fields import image
from dgpu.wire.fields import Unacceptable

if TYPE_CHECKING:
    from dgpu.agent.options import ContainerOptions

_OWN_LABELS = "dgpu."
_USER = re.compile(r"[1-9][0-9]{0,9}:[1-9][0-9]{0,9}")


def check_containers(config: AgentConfig) -> Iterator[Problem]:
    docker = config.executor.docker
    for label in config.agent.labels:
        if label.startswith(_OWN_LABELS):
            yield Problem(
                f"agent.labels.{label}", f"labels that begin with {_OWN_LABELS} are set by dgpu itself"
            )
    for path, text in (("socket", docker.socket), ("auth_file", docker.auth_file)):
        if (text and not text.startswith("/")) or (path == "socket" and not text):
            yield Problem(f"executor.docker.{path}", f"expected an absolute path, got {text!r}")
    try:
        image(docker.default_image)
    except Unacceptable as bad:
        yield Problem(
            "executor.docker.default_image", f"expected {bad.expected}, got {docker.default_image!r}"
        )
    for number, entry in enumerate(docker.allowed_mounts):
        given = PurePosixPath(parse_allowed(entry).path)
        if not given.is_absolute() or given == PurePosixPath("/") or ".." in given.parts:
            yield Problem(
                f"executor.docker.allowed_mounts[{number}]",
                f"expected an absolute path below /, with or without :ro at its end, got {entry!r}",
            )
    if docker.user and not _USER.fullmatch(docker.user):
        yield Problem(
            "executor.docker.user",
            f"expected UID:GID, both above 0 because root is refused, got {docker.user!r}",
        )
    if docker.network == "host" or docker.network.startswith("container:"):
        yield Problem(
            "executor.docker.network",
            f"expected a network of the engine, none or bridge, got {docker.network!r}",
        )


def container_options(config: AgentConfig, *, hidden: tuple[str, ...]) -> ContainerOptions | None:
    """None: this node runs no containers."""
    from dgpu.agent.options import ContainerOptions

    docker = config.executor.docker
    if config.executor.execution_method != "docker":
        return None
    return ContainerOptions(
        socket=docker.socket,
        default_image=docker.default_image,
        allowed_mounts=docker.allowed_mounts,
        user=docker.user,
        gpu_method=docker.gpu_method,
        network=docker.network,
        pids_limit=docker.pids_limit,
        shm_mb=docker.shm_mb,
        pull=docker.pull,
        auth_file=docker.auth_file,
        hidden=(*hidden, docker.socket),
        simulated_gpus=config.gpu.detection_method is DetectionMethod.SIMULATED,
    )
