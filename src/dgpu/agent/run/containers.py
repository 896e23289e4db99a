"""Which tasks run in containers, and the keeper's order for one."""

from __future__ import annotations

import os
from typing import Any

from dgpu.agent.accounts import Person
from dgpu.agent.frames import CONTAINERS_PROTOCOL
from dgpu.agent.options import ContainerOptions
from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.secrets import REGISTRY_FILE
from dgpu.core.model.task import TaskDetail

_NOBODY = "65534:65534"


class NotHereError(Exception):
    """The task cannot run on this node now, but on another one or later. One line for people."""


def container_order(
    order: RunOrder,
    detail: TaskDetail,
    options: ContainerOptions | None,
    person: Person | None,
    *,
    keeper_protocol: int,
) -> dict[str, Any] | None:
    """`person`: the Unix user of the task, if tenants have their own. None: the task runs as a process. Raises
    NotHereError, and ValueError for a task that can never start.
    """
    image = detail.image or (options.default_image if options is not None else "")
    if not image:
        return None
    if options is None:
        raise NotHereError("this node runs no containers: executor.execution_method is not docker")
    if keeper_protocol < CONTAINERS_PROTOCOL:
        # It would run the command outside of the container.
        raise NotHereError("the keeper of this node is of an earlier version and runs no containers")
    return {
        "socket": options.socket,
        "image": image,
        "pull": options.pull,
        "auth_file": options.auth_file,
        "registry_auth": _registry_auth(order.secret_files.get(REGISTRY_FILE)),
        "user": f"{person.account.uid}:{person.account.gid}" if person else options.user or _default_user(),
        "groups": person.account.groups if person else (),
        "mounts": detail.mounts,
        "allowed": options.allowed_mounts,
        "hidden": options.hidden,
        "read_only": detail.read_only_root,
        "network": options.network,
        "gpus": [] if options.simulated_gpus else order.gpu_ids,
        "gpu_method": options.gpu_method,
        "limits": {
            "memory_mb": order.ram_mb,
            "cpus_milli": order.cpus_milli,
            "pids": options.pids_limit,
            "shm_mb": detail.shm_mb or options.shm_mb,
        },
    }


def _registry_auth(secret: bytes | None) -> dict[str, str] | None:
    """Raises ValueError without the value: it would reach the task's error."""
    if secret is None:
        return None
    user, colon, password = secret.decode("utf-8", "replace").strip().partition(":")
    if not colon:
        raise ValueError("the secret of image_secret has no colon: expected USER:PASSWORD")
    return {"username": user, "password": password}


def container_account(container: dict[str, Any]) -> list[Any] | None:
    """The owner of the run's directory, as in `launch_as.Account`. None: the agent's own user."""
    uid, _, gid = container["user"].partition(":")
    return [int(uid), int(gid), [], 0] if os.geteuid() == 0 else None


def _default_user() -> str:
    """The agent's own user. Never root: it would be root on every mounted file of the node."""
    return f"{os.geteuid()}:{os.getegid()}" if os.geteuid() != 0 else _NOBODY
