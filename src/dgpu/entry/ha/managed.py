"""`ha.mode: managed`: the checks of its keys, and the member that runs beside a scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dgpu.entry.config_problem import Problem
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.members import MemberAddress, why_not_members
from dgpu.entry.ha_types import Ha

if TYPE_CHECKING:
    from dgpu.entry.config_types import SchedulerConfig
    from dgpu.journal.etcd.settings import EtcdSettings

_FOR_EXTERNAL = ("endpoints", "prefix", "tls", "user", "password_file")


def check_managed(ha: Ha, journal: str) -> Iterator[Problem]:
    if journal != "etcd":
        yield Problem("ha.mode", f"managed needs storage.journal: etcd, which is {journal}")
    for name in _FOR_EXTERNAL:
        if getattr(ha, name) != getattr(Ha(), name):
            yield Problem(f"ha.{name}", "is for ha.mode: external; with managed, dgpu runs the engine itself")
    if why := why_not_members(ha.members):
        yield Problem("ha.members", why)
        return
    try:
        mine = str(MemberAddress.parse(ha.member))
    except ValueError as error:
        yield Problem(
            "ha.member", str(error) if ha.member else "expected the one of ha.members on this machine"
        )
        return
    if mine not in _addresses(ha):
        yield Problem("ha.member", f"{mine} is none of ha.members")


def managed_settings(config: SchedulerConfig) -> EtcdSettings:
    """Raises HaFailure if the directory has no member, or another one."""
    from dgpu.entry.ha.engine_cluster import engine_settings
    from dgpu.entry.ha.member_files import MemberFiles

    files = MemberFiles(_directory(config))
    member = files.member()
    mine = str(MemberAddress.parse(config.ha.member))
    if member.me != mine:
        raise HaFailure(
            f"ha.member is {mine}, but {files.directory} belongs to member {member.me}. Correct one of the two"
        )
    if set(member.members) != set(_addresses(config.ha)):
        # A machine was replaced by one with another address. A refusal would stop a scheduler that can work.
        import structlog

        structlog.get_logger("dgpu.ha").warning(
            "members_differ", configured=config.ha.members, members=member.members
        )
    return engine_settings(files, member.members)


@contextlib.contextmanager
def member_beside(config: SchedulerConfig) -> Iterator[None]:
    """The member of this machine runs inside. Raises HaFailure if it must not start."""
    if config.ha.mode != "managed":
        yield
        return
    from dgpu.entry.ha.supervisor import MemberSupervisor

    supervisor = MemberSupervisor(_directory(config))
    supervisor.start()
    try:
        yield
    finally:
        supervisor.stop()


def _addresses(ha: Ha) -> tuple[str, ...]:
    return tuple(str(MemberAddress.parse(each)) for each in ha.members)


def _directory(config: SchedulerConfig) -> Path:
    return Path(config.storage.snapshot_dir).expanduser().absolute()
