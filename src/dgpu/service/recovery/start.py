"""Start of the scheduler: compares the journal with all other records and chooses the new epoch."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec
import structlog

from dgpu.core.events import EpochBegan
from dgpu.core.model.ids import TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.state import ClusterState
from dgpu.journal.errors import JournalError, LostTail
from dgpu.journal.file import FileJournal
from dgpu.journal.journal import Recovery
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.outputs import CommittedGroup, Contradicted
from dgpu.service.recovery import cluster_file
from dgpu.service.recovery.cluster_file import KnownCluster, write_known
from dgpu.service.recovery.witnesses import ALONE, SHARED, check_cluster, check_state, explained, look_outside

_log = structlog.get_logger("dgpu.server")


class Start:
    """Order of the calls: constructor, recover, check, begin, then on_group for each durable group.

    With an engine, its journal recovers, and a second check follows when the local copy has all groups.
    """

    def __init__(self, directory: Path, *, accept_lost_tail: bool, is_shared: bool = False) -> None:
        """`is_shared`: an engine has the journal, so a loss cannot be accepted here."""
        self._directory = directory
        self._advice = SHARED if is_shared else ALONE
        self._may_accept = accept_lost_tail
        self._outside = look_outside(directory)
        self._accepted = False
        if accept_lost_tail:
            from dgpu.service.recovery.lost_tail import accept_lost_tail as accept

            self._accepted = accept(directory, self._outside) or bool(self._outside.known.heard_from)

    def recover(self, journal: FileJournal) -> Recovery:
        try:
            return journal.recover(least_index=self._outside.index)
        except LostTail as lost:
            raise explained(
                self._directory,
                lost.index,
                self._outside,
                state=self._readable(),
                at_least=lost.known,
            ) from lost

    def check(self, state: ClusterState, index: int, *, is_complete: bool = True) -> None:
        """`is_complete`: False while the engine has groups that the local copy may lack. Raises LostTail or
        ForeignState.
        """
        if not is_complete:
            check_cluster(self._directory, state, self._outside)
            return
        try:
            check_state(self._directory, state, index, self._outside, self._advice)
        except LostTail:
            if not self._may_accept:
                raise
            self._accepted = True
        if self._may_accept and not self._accepted:
            _log.info("no_lost_tail", detail="nothing is missing: --accept-lost-tail was not needed")
        elif known := self._unaccepted():
            detail = "start once with --accept-lost-tail if this state is the right one"
            _log.warning("epoch_unknown", epoch=known.heard_epoch, heard_from=known.heard_from, detail=detail)

    def begin(self, settings: Settings) -> Begin:
        """The new epoch is above every known number. Numbers reported by nodes count once they are accepted."""
        outside, known = self._outside, self._outside.known
        if self._accepted:
            detail = "a loss was accepted; no task is placed for the time of the task lease and its margin"
            _log.warning("lost_tail_begins", epoch_above=max(outside.epoch, known.heard_epoch), detail=detail)
        heard_epoch, heard_task = (known.heard_epoch, known.heard_task) if self._accepted else (0, 0)
        return Begin(
            settings=settings,
            nonce=secrets.token_hex(8),
            cluster_id=outside.cluster_id or secrets.token_hex(12),
            above_epoch=max(outside.epoch, heard_epoch),
            above_task=TaskId(max(outside.last_task, heard_task)),
            lost_tail=self._accepted,
        )

    def on_group(self, group: CommittedGroup, state: ClusterState) -> None:
        """The epoch is durable in the journal. Nodes get it only after it is in the file as well."""
        if not any(isinstance(event, EpochBegan) for event in group.events):
            return
        known = KnownCluster(cluster_id=state.cluster_id, epoch=state.epoch, nonce=state.nonce)
        if unaccepted := self._unaccepted():
            known = msgspec.structs.replace(
                known,
                heard_epoch=unaccepted.heard_epoch,
                heard_task=unaccepted.heard_task,
                heard_from=unaccepted.heard_from,
            )
        write_known(self._directory, known)

    def hear(self, contradicted: Contradicted) -> None:
        """A node obeyed an epoch that the journal does not have. The epoch is stored for the start that accepts it."""
        _log.warning("epoch_unknown", epoch=contradicted.epoch, heard_from=contradicted.node_id)
        cluster_file.hear(
            self._directory,
            epoch=contradicted.epoch,
            task_id=contradicted.task_id,
            node_id=contradicted.node_id,
        )

    def _readable(self) -> ClusterState | None:
        from dgpu.service.recovery.lost_tail import readable_state

        try:
            return readable_state(self._directory)[0]
        except JournalError:
            return None

    def _unaccepted(self) -> KnownCluster | None:
        known = self._outside.known
        return known if known.heard_from and not self._accepted else None
