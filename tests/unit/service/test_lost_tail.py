"""A journal whose end is gone, against what snapshot, history, mark and cluster file still know. Real files, real
SQLite.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from dgpu.core import commands
from dgpu.core.digest import digest
from dgpu.core.model.ids import TaskId, first_lease_of
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskStatus
from dgpu.journal.errors import ForeignState, LostTail
from dgpu.journal.file import FileJournal
from dgpu.journal.journal import Recovery
from dgpu.journal.mark import MARK_NAME, AcknowledgedMark, Mark, read_mark
from dgpu.journal.segments import live_segments, scan_segment
from dgpu.journal.snapshot import write_snapshot
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.reader import HISTORY_NAME, History
from dgpu.service.history.writer import HistoryWriter
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.recovery.cluster_file import KnownCluster, hear, read_known, write_known
from dgpu.service.recovery.history_rebuild import rebuild_history
from dgpu.service.recovery.start import Start
from dgpu.wire.records import encode_group
from unit.journal.samples import Cluster, register, spec


class Made(Cluster):
    """A scheduler's directory: one group for each submit, all witnesses up to date."""

    def __init__(self, directory: Path, submits: int = 8, *, starts_one: bool = False) -> None:
        super().__init__()
        self.directory = directory
        begin = commands.BeginEpoch(settings=Settings(), nonce="n1", cluster_id="ours")
        self.do(begin, register("n1"), register("n2", 2))
        for number in range(submits):
            self.do(commands.SubmitTasks(entries=((1, spec(f"t{number}")),)), commands.RunPass(limit=1))
        if starts_one:
            self.do(commands.ReportStarted(lease_id=min(self.state.leases)))
        self._write()

    def _write(self) -> None:
        journal = FileJournal.open(self.directory, segment_bytes=1 << 16, reserve_bytes=4096)
        history = HistoryWriter(self.directory / HISTORY_NAME)
        replayed = journal.recover().snapshot_state
        mark = AcknowledgedMark(self.directory)
        from dgpu.core.apply.table import apply

        for index, group in enumerate(self.groups, start=1):
            journal.append(1, index, encode_group(group))
            for position, event in enumerate(group):
                apply(replayed, event)
                history.note(event, replayed, index=index, position=position)
        history.commit(self.index)
        mark.note(Mark(index=self.index, epoch=1, last_task=self.state.next_task_id - 1))
        write_known(self.directory, KnownCluster(cluster_id="ours", epoch=1, nonce="n1"))
        for each in (mark, history, journal):
            each.close()

    @property
    def index(self) -> int:
        return len(self.groups)

    def zero_tail(self, size: int) -> None:
        path = live_segments(self.directory)[-1].path
        content = bytearray(path.read_bytes())
        end = len(content.rstrip(b"\0"))
        content[end - size : end] = bytes(size)
        path.write_bytes(content)

    def drop_groups(self, count: int) -> None:
        """Cleanly: as if they had never been written."""
        segment = live_segments(self.directory)[-1]
        offset = scan_segment(segment).records[-count].offset
        content = segment.path.read_bytes()
        segment.path.write_bytes(content[:offset] + bytes(len(content) - offset))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "state")


def started(directory: Path, *, accept: bool = False) -> tuple[Start, Recovery, FileJournal]:
    start = Start(directory, accept_lost_tail=accept)
    journal = FileJournal.open(directory, segment_bytes=1 << 16, reserve_bytes=4096)
    try:
        return start, start.recover(journal), journal
    except BaseException:
        journal.close()
        raise


def restart(directory: Path, *, accept: bool = False) -> tuple[Start, Cluster, int]:
    """As the service does it, up to the new epoch."""
    start, recovery, journal = started(directory, accept=accept)
    try:
        state = recovery.replayed()
        start.check(state, recovery.index)
        cluster = Cluster()
        cluster.state, cluster.at = state, state.last_at
        begin = start.begin(Settings())
        cluster.do(
            commands.BeginEpoch(
                settings=begin.settings,
                nonce=begin.nonce,
                cluster_id=begin.cluster_id,
                above_epoch=begin.above_epoch,
                above_task=begin.above_task,
                lost_tail=begin.lost_tail,
                lost_wait_ms=65_000,
            )
        )
        journal.append(state.epoch, recovery.index + 1, encode_group(cluster.groups[-1]))
        start.on_group(CommittedGroup(index=recovery.index + 1, events=cluster.groups[-1]), state)
        return start, cluster, recovery.index + 1
    finally:
        journal.close()


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name.startswith(("segment", "snapshot", "torn"))
    }


def test_a_whole_journal_starts_and_the_next_epoch_is_told_outside(made: Made) -> None:
    start, cluster, index = restart(made.directory)
    assert index == made.index + 1
    assert (cluster.state.epoch, cluster.state.cluster_id) == (2, "ours")
    known = read_known(made.directory)
    assert (known.cluster_id, known.epoch, known.nonce) == ("ours", 2, cluster.state.nonce)
    assert not start.begin(Settings()).lost_tail


@pytest.mark.parametrize("size", [20, 400, 900])
def test_a_zeroed_tail_is_refused_with_the_names_of_the_lost_tasks(made: Made, size: int) -> None:
    """Zeros look like room that was never used: the journal alone cannot tell."""
    made.zero_tail(size)
    end = len(scan_segment(live_segments(made.directory)[-1]).records)
    assert end < made.index
    before = files(made.directory)
    with pytest.raises(LostTail) as refused:
        started(made.directory)
    lost = [f"task-{number}" for number in range(end, made.index)]  # one for each group after the first
    assert f"Lost tasks ({len(lost)}): {', '.join(lost)}." in str(refused.value)
    assert "--accept-lost-tail" in str(refused.value)
    assert files(made.directory) == before, "a refused start changes nothing"


@pytest.mark.parametrize("witness", [HISTORY_NAME, MARK_NAME])
def test_each_witness_alone_is_enough(made: Made, witness: str) -> None:
    """The history lags behind; the mark may be old after a power cut."""
    made.drop_groups(2)
    other = {HISTORY_NAME: MARK_NAME, MARK_NAME: HISTORY_NAME}[witness]
    for path in made.directory.glob(f"{other}*"):
        path.unlink()
    with pytest.raises(LostTail, match=f"{witness} records group {made.index} of epoch 1"):
        started(made.directory)


def test_a_lost_epoch_is_refused_although_no_group_is_known_to_be_missing(made: Made) -> None:
    restart(made.directory)
    for path in made.directory.glob(f"{MARK_NAME}*"):
        path.unlink()
    made.drop_groups(1)  # the history never saw it
    with pytest.raises(LostTail, match=r"cluster\.json records epoch 2"):
        restart(made.directory)
    _, cluster, _ = restart(made.directory, accept=True)
    assert cluster.state.epoch == 3


def test_a_snapshot_ahead_of_the_journal_is_refused_and_may_be_accepted(made: Made) -> None:
    write_snapshot(made.directory, made.state, index=made.index, epoch=1)
    for path in (*made.directory.glob(f"{MARK_NAME}*"), *made.directory.glob(f"{HISTORY_NAME}*")):
        path.unlink()
    made.drop_groups(3)
    with pytest.raises(LostTail, match=f"ends with group {made.index - 3}"):
        started(made.directory)
    _, cluster, index = restart(made.directory, accept=True)
    assert set(cluster.state.tasks) == set(made.state.tasks), "the snapshot has them all"
    assert index == made.index + 1


def test_witnesses_that_are_behind_are_no_contradiction(made: Made) -> None:
    """The follower lags, and a mark may be old after a power cut."""
    shutil.rmtree(made.directory / "archive", ignore_errors=True)
    mark = AcknowledgedMark(made.directory)
    mark.note(Mark(index=2, epoch=1, last_task=1))
    mark.close()
    for path in made.directory.glob(f"{HISTORY_NAME}*"):
        path.unlink()
    _, _, index = restart(made.directory)
    assert index == made.index + 1


def test_a_torn_group_that_was_never_acknowledged_is_cut_as_before(made: Made) -> None:
    path = live_segments(made.directory)[-1].path
    content = bytearray(path.read_bytes())
    end = len(content.rstrip(b"\0"))
    content[end + 8 : end + 30] = b"half a record, no more"
    path.write_bytes(content)
    _, recovery, journal = started(made.directory)
    journal.close()
    assert recovery.cut is not None
    assert recovery.index == made.index


def test_a_spoiled_mark_proves_nothing(made: Made) -> None:
    (made.directory / MARK_NAME).write_bytes(
        b"99999999999999999999 0000000009 00000000000000000099 00000000\n"
    )
    assert read_mark(made.directory) is None
    restart(made.directory)


def test_accepting_goes_on_above_every_number_and_keeps_what_proves_the_loss(made: Made) -> None:
    made.drop_groups(3)
    start, cluster, index = restart(made.directory, accept=True)
    assert index == made.index + 1
    assert cluster.state.epoch == 2
    assert cluster.state.next_lease_id == first_lease_of(2)
    cluster.do(commands.SubmitTasks(entries=((1, spec("new")),)))
    assert max(cluster.state.tasks) == made.state.next_task_id
    lost = [TaskId(each) for each in made.state.tasks if each not in cluster.state.tasks]
    assert len(lost) == 3
    history = History(made.directory / HISTORY_NAME)
    for task_id in lost:
        task = history.task(task_id)
        assert task is not None
        assert (task.status, task.reason, task.forgotten) == (TaskStatus.FAILED, "lost_tail", True)
        assert task.finished_at > 0
    assert [task.id for task in history.list_tasks(TaskFilters())] == sorted(lost, reverse=True)
    assert history.reach().index == made.index
    history.close()
    (kept,) = made.directory.glob("lost-tail-*")
    assert list((kept / "journal").glob("segment-*")), "the old journal is kept"
    assert start.begin(Settings()).lost_tail


def test_after_an_accepted_loss_the_next_starts_need_no_flag(made: Made) -> None:
    made.drop_groups(3)
    _, cluster, index = restart(made.directory, accept=True)
    _, again, next_index = restart(made.directory)
    assert (again.state.epoch, next_index) == (3, index + 1)
    assert set(again.state.tasks) == set(cluster.state.tasks)
    assert len(again.state.nonces) == 2, "the epoch of the loss, and the one after it"


def test_an_accepting_start_that_is_interrupted_is_completed_by_the_next(made: Made, monkeypatch) -> None:
    made.drop_groups(3)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dgpu.service.recovery.lost_tail.make_folder", stop)
        with pytest.raises(KeyboardInterrupt):
            Start(made.directory, accept_lost_tail=True)
    with pytest.raises(LostTail):
        started(made.directory)
    _, cluster, index = restart(made.directory, accept=True)
    assert (cluster.state.epoch, index) == (2, made.index + 1)


def test_a_loss_accepted_by_a_start_that_died_before_its_epoch_is_waited_for_by_the_next(
    tmp_path: Path,
) -> None:
    """The journal was set aside already, and no task is lost: nothing outside the state tells of the loss any more."""
    made = Made(tmp_path / "state", starts_one=True)
    made.drop_groups(1)
    Start(made.directory, accept_lost_tail=True)
    _, cluster, _ = restart(made.directory)
    assert cluster.state.no_pass_before == cluster.at + 65_000
    assert len(cluster.state.nonces) == 1, "earlier epochs prove nothing"


def test_the_flag_without_a_loss_changes_nothing(made: Made) -> None:
    before = digest(made.state)
    start, recovery, journal = started(made.directory, accept=True)
    journal.close()
    state = recovery.replayed()
    start.check(state, recovery.index)
    assert digest(state) == before
    assert not start.begin(Settings()).lost_tail
    assert not list(made.directory.glob("lost-tail-*"))


def test_a_lost_journal_folder_is_refused_and_may_be_accepted(made: Made) -> None:
    shutil.rmtree(made.directory / "journal")
    with pytest.raises(LostTail, match=f"history.sqlite records group {made.index}"):
        started(made.directory)
    _, cluster, index = restart(made.directory, accept=True)
    assert index == made.index + 1
    assert cluster.state.cluster_id == "ours", "its nodes still belong to it"
    assert cluster.state.next_task_id == made.state.next_task_id


def test_files_of_another_cluster_are_refused_by_name(made: Made) -> None:
    write_known(made.directory, KnownCluster(cluster_id="theirs", epoch=1))
    with pytest.raises(ForeignState, match=r"cluster\.json belongs to cluster theirs, the journal to ours"):
        restart(made.directory)
    with pytest.raises(ForeignState):
        restart(made.directory, accept=True)


def test_epochs_and_tasks_that_nodes_told_count_once_an_operator_accepts_them(made: Made) -> None:
    """A whole directory restored from a backup: only its nodes know better."""
    hear(made.directory, epoch=8, task_id=70, node_id="n1")
    hear(made.directory, epoch=7, task_id=60, node_id="n2")
    _, cluster, _ = restart(made.directory)
    assert cluster.state.epoch == 2
    assert read_known(made.directory).heard_epoch == 8, "not forgotten by a restart"
    _, cluster, _ = restart(made.directory, accept=True)
    assert (cluster.state.epoch, cluster.state.next_task_id) == (9, 71)
    assert list(cluster.state.nonces) == [9]
    assert read_known(made.directory) == KnownCluster(cluster_id="ours", epoch=9, nonce=cluster.state.nonce)


def test_rebuilding_the_history_does_not_delete_what_proves_a_loss(made: Made) -> None:
    made.drop_groups(2)
    with pytest.raises(LostTail, match=r"Lost tasks \(2\)"):
        rebuild_history(made.directory, lambda _: None)
    history = History(made.directory / HISTORY_NAME)
    assert history.reach().index == made.index
    history.close()


def test_a_file_that_cannot_be_read_is_named(made: Made) -> None:
    (made.directory / "cluster.json").write_text("{")
    with pytest.raises(Exception, match=r"cluster\.json cannot be read"):
        Start(made.directory, accept_lost_tail=False)


def test_a_cluster_file_holds_no_more_than_it_must(made: Made) -> None:
    assert msgspec.json.decode((made.directory / "cluster.json").read_bytes()) == {
        "cluster_id": "ours",
        "epoch": 1,
        "nonce": "n1",
    }
