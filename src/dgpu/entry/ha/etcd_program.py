"""The `etcd` program of this machine: where it is and whether its version is safe."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from dgpu.entry.ha.errors import MemberRefused

MIN_VERSION = (3, 4, 23)  # earlier ones may revoke a living lease and lose data in a defragmentation
_FIRST_DAMAGED, _LAST_DAMAGED = (3, 5, 0), (3, 5, 2)
_VERSION = re.compile(r"^etcd Version:\s*(\d+)\.(\d+)\.(\d+)", re.MULTILINE)
_PATIENCE_S = 30.0
_GET_ONE = (
    "Install one: apt install etcd-server (Debian), or a release of etcd 3.4.23 or later, 3.5.3 or later"
)

Version = tuple[int, int, int]


class EtcdProgram(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: Version


def find_etcd() -> EtcdProgram:
    """The first `etcd` in PATH. Raises MemberRefused if there is none or its version is refused."""
    path = shutil.which("etcd")
    if path is None:
        raise MemberRefused(f"no etcd in PATH. {_GET_ONE}")
    version = _version_of(path)
    if why := why_refused(version):
        raise MemberRefused(f"{path} is etcd {shown(version)}: {why}")
    return EtcdProgram(path=str(Path(path).resolve()), version=version)


def why_refused(version: Version) -> str:
    """Empty: the version is accepted."""
    if _FIRST_DAMAGED <= version <= _LAST_DAMAGED:
        return f"the versions 3.5.0 to 3.5.2 can lose data when they are killed. {_GET_ONE}"
    if version < MIN_VERSION:
        return f"it is older than {shown(MIN_VERSION)}. {_GET_ONE}"
    return ""


def parse_version(text: str) -> Version | None:
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def shown(version: Version) -> str:
    return ".".join(map(str, version))


def _version_of(path: str) -> Version:
    try:
        told = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemberRefused(f"{path} --version cannot be run: {error}. {_GET_ONE}") from error
    version = parse_version(told.stdout.decode("utf-8", "replace"))
    if version is None:
        raise MemberRefused(f"{path} --version names no version of etcd. {_GET_ONE}")
    return version
