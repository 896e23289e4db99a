"""The `etcd` program of this machine: where it is and whether its version is safe."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from dgpu.entry.ha.errors import MemberRefused
from dgpu.journal.engine import EngineRefused
from dgpu.journal.etcd.versions import check_version

_VERSION = re.compile(r"^etcd Version:\s*(\d+)\.(\d+)\.(\d+)", re.MULTILINE)
_PATIENCE_S = 30.0
_GET_ONE = "Install one: apt install etcd-server (Debian), or a release of etcd"

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
    try:
        check_version(shown(version), path)
    except EngineRefused as error:
        raise MemberRefused(f"{error}. {_GET_ONE}") from error
    return EtcdProgram(path=str(Path(path).resolve()), version=version)


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
