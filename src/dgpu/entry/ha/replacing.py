"""`dgpu ha replace-member`: a dead member leaves, and its successor may join as a learner."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dgpu.entry.ha.engine_cluster import EngineCluster
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress, why_not_members


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    old: str
    new: str
    members: tuple[str, ...]
    removed: bool  # False: an earlier call had removed it


def replace_member(directory: Path, old_text: str, new_text: str | None) -> Replaced:
    """Removes the old member first: while it counts, adding another one would need three of four. Raises HaFailure."""
    files = MemberFiles(directory)
    own = files.member()
    try:
        old = str(MemberAddress.parse(old_text))
        new = MemberAddress.parse(new_text) if new_text else MemberAddress.parse(old)
    except ValueError as error:
        raise HaFailure(str(error)) from None
    cluster = EngineCluster(files, own.members)
    members = tuple(str(new) if each == old else each for each in own.members)
    _check(cluster, own.me, old, str(new), own.members, members)
    listed = next((member for member in cluster.members() if member.address == old), None)
    is_removed = False
    if listed is not None and (listed.is_started or old != str(new)):
        cluster.remove(listed.id)
        is_removed = True
    cluster.add_learner(new)
    files.write(msgspec.structs.replace(own, members=members))
    return Replaced(old=old, new=str(new), members=members, removed=is_removed)


def _check(
    cluster: EngineCluster, me: str, old: str, new: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    if old not in before and new not in before:
        raise HaFailure(f"{old} is none of the members {', '.join(before)}")
    if old == me:
        raise HaFailure(
            f"{old} is the member of this machine. Run the command on a machine whose member runs"
        )
    if why := why_not_members(after):
        raise HaFailure(f"the members after the change: {why}")
    for address in before:
        if address not in {old, new} and not (state := cluster.state(address)).answers:
            raise HaFailure(
                f"{address} does not answer ({state.trouble}). Both other members must run: without them the cluster "
                f"would stop when {old} is removed. Nothing was changed"
            )
    if old != new and cluster.state(old).answers:
        raise HaFailure(
            f"{old} runs and answers. Stop it first: a member that leaves while it runs may still hold a vote"
        )
    if old == new and cluster.state(old).answers:
        raise HaFailure(
            f"{old} runs and answers. It needs no replacement; if its machine is to be rebuilt, stop it"
        )
