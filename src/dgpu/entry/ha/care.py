"""Does the chores of a managed engine while its member runs, in a thread: calls to other machines may take seconds."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
import structlog

from dgpu.entry.ha.chores import do_chore, next_chore
from dgpu.entry.ha.engine_cluster import EngineCluster, MemberState, engine_settings
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.machine_list import share_machines
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MEMBERS

_LEARNER_S = 1.0
_LOOK_S = 3.0  # how long a machine that joined may be unknown to the other scheduler
_CHORES_EVERY = 5  # looks: they ask every member

_log = structlog.get_logger("dgpu.ha")


class MemberCare:
    def __init__(self, files: MemberFiles) -> None:
        self._files = files
        self._stop = threading.Event()
        self._trouble = ""
        self._looks = 0
        self._thread = threading.Thread(target=self._run, name="engine-care", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = _LEARNER_S
        while not self._stop.wait(pause_s):
            try:
                is_settled = self._look()
            except (HaFailure, OSError) as error:
                if str(error) != self._trouble:  # once, not with every look
                    _log.warning("engine_care_failed", error=str(error))
                self._trouble, is_settled = str(error), False
            else:
                self._trouble = ""
            pause_s = _LOOK_S if is_settled else _LEARNER_S

    def _look(self) -> bool:
        """False: look again soon."""
        member = self._files.member()
        cluster = EngineCluster(self._files, member.members)
        own = cluster.state(member.me)
        if not own.answers:
            return False
        if own.is_learner or self._looks % _CHORES_EVERY == 0:
            chore = next_chore(self._states(cluster, own, member.members), member.me)
            if chore is not None:
                do_chore(cluster, chore, member.members)
            self._note_members(cluster)
        self._looks += 1
        if member.role == "scheduler" and not own.is_learner:
            share_machines(self._files.directory, engine_settings(self._files, member.members))
        return not own.is_learner

    def _states(self, cluster: EngineCluster, own: MemberState, members: Sequence[str]) -> list[MemberState]:
        """Only the leader needs to know the others."""
        others = [each for each in members if each != own.address] if own.is_leader else []
        return [own, *(cluster.state(each) for each in others)]

    def _note_members(self, cluster: EngineCluster) -> None:
        """A member may have been replaced by one with another address while this machine was not asked."""
        listed = tuple(each.address for each in cluster.members())
        member = self._files.member()
        if len(listed) == MEMBERS and set(listed) != set(member.members):
            self._files.write(msgspec.structs.replace(member, members=listed))
            _log.info("members_changed", members=listed)
