"""The rules of a task's fields about its container."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from dgpu.core.model.task import Mount
from dgpu.wire.fields import Unacceptable, workdir
from dgpu.wire.secret_fields import A_NAME, SECRET_NAME

MAX_IMAGE_CHARS = 512
MAX_MOUNTS = 64
MAX_SHM_MB = 1_048_576
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_MOUNT = "a text SOURCE:TARGET or SOURCE:TARGET:ro with two absolute paths, without '..' parts"


def image(value: Any) -> str:
    """Empty: none."""
    if value == "" or (
        type(value) is str and len(value) <= MAX_IMAGE_CHARS and _IMAGE.fullmatch(value) is not None
    ):
        return str(value)
    raise Unacceptable(
        f"the name of an image such as ubuntu:24.04 or registry.example.org/team/train:1, at most {MAX_IMAGE_CHARS} "
        "characters"
    )


def secret_name(value: Any) -> str:
    """Empty: none."""
    if type(value) is str and (not value or SECRET_NAME.fullmatch(value)):
        return value
    raise Unacceptable(f"the name of a secret: {A_NAME}")


def mounts(value: Any) -> tuple[Mount, ...]:
    if type(value) is not list or len(value) > MAX_MOUNTS:
        raise Unacceptable(f"a list of at most {MAX_MOUNTS} mounts like /data:/data:ro")
    found = [_mount(text, f"[{number}]") for number, text in enumerate(value)]
    targets = [target for _, target, _ in found]
    for number, target in enumerate(targets):
        if target in targets[:number]:
            raise Unacceptable("each target once", at=f"[{number}]", value=value[number])
    return tuple(found)


def mount_text(mount: Mount) -> str:
    source, target, read_only = mount
    return f"{source}:{target}" + (":ro" if read_only else "")


def _mount(text: Any, at: str) -> Mount:
    parts = text.split(":") if type(text) is str else []
    if len(parts) not in {2, 3} or (len(parts) == 3 and parts[2] not in {"ro", "rw"}):
        raise Unacceptable(_MOUNT, at=at, value=text)
    try:
        source, target = (posixpath.normpath(workdir(path)) for path in parts[:2])
    except Unacceptable:
        raise Unacceptable(_MOUNT, at=at, value=text) from None
    if target == "/":
        raise Unacceptable("a target below /", at=at, value=text)
    return source, target, len(parts) == 3 and parts[2] == "ro"
