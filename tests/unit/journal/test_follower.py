"""The follower, without its process: it follows what is committed, whatever it finds when it begins."""

import contextlib
import shutil
from types import SimpleNamespace

import pytest

from dgpu.core.commands import SubmitTasks
from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.journal.archive import Retention
from dgpu.journal.checkpoint import Checkpoint, begin_after_snapshot
from dgpu.journal.errors import JournalLocked, LostTail
from dgpu.journal.file import FileJournal
from dgpu.journal.key_files import KEYS_FOLDER
from dgpu.journal.segments import ARCHIVE_FOLDER, JOURNAL_FOLDER, archived_segments, live_segments
from dgpu.journal.snapshot import load_newest, load_snapshot, write_snapshot
from dgpu.service.follower.follower import Follower
from dgpu.service.follower.words import Ask, FillOrder, FollowerSettings
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.past_words import Fill
from dgpu.service.history.reader import HISTORY_NAME, History, HistoryDamaged
from dgpu.service.history.writer import HistoryWriter, begin_again, remove_history
from dgpu.service.recovery.history_rebuild import rebuild_history
from dgpu.wire.questions import Hastening
from unit.journal.samples import append_groups, busy_cluster, spec, write_journal

EAGER = FollowerSettings(snapshot_interval_ms=0)


def follow(directory, committed: int, settings=EAGER, *, final_snapshot: bool = True) -> tuple[str, list]:
    said: list = []
    follower = Follower(directory, settings, said.append)
    follower.commit_seen(committed)
    follower.finish(final_snapshot=final_snapshot)
    follower.close()
    return digest(follower.state), said


def rows(directory) -> list:
    """All that a history says, to compare two of them."""
    history = History(directory / HISTORY_NAME)
    tasks = history.list_tasks(TaskFilters(), live=True, limit=1000)
    found = [(task, history.task_events(task.id), history.attempts(task.id)) for task in tasks]
    query = "SELECT node, type, body FROM node_events ORDER BY node, journal_index, position"
    found.append([tuple(row) for row in history.rows(query, ())])
    history.close()
    return found


@pytest.fixture
def cluster(tmp_path):
    cluster = busy_cluster(7, steps=150)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    return cluster


def test_it_reaches_the_state_of_the_scheduler_and_snapshots_it(tmp_path, cluster) -> None:
    found, said = follow(tmp_path, len(cluster.groups))
    assert found == digest(cluster.state)
    assert {"snapshot": len(cluster.groups)} in said
    snapshot, notes = load_newest(tmp_path)
    assert (snapshot.index, notes) == (len(cluster.groups), ())
    assert digest(snapshot.state) == digest(cluster.state)


def test_it_never_goes_beyond_what_is_committed(tmp_path, cluster) -> None:
    follow(tmp_path, 30)
    assert load_newest(tmp_path)[0].index == 30
    assert History(tmp_path / HISTORY_NAME).reach().index == 30


def test_beginning_again_and_again_gives_the_same_history_as_going_through(tmp_path, cluster) -> None:
    shutil.copytree(tmp_path / "journal", tmp_path / "once" / "journal")
    follow(tmp_path / "once", len(cluster.groups))
    for committed in (1, 17, 18, 60, 61, 100, len(cluster.groups)):
        found, _ = follow(tmp_path, committed, final_snapshot=committed % 2 == 0)
    assert found == digest(cluster.state)
    assert rows(tmp_path) == rows(tmp_path / "once")


def test_sealed_segments_are_packed_once_both_snapshots_cover_them(tmp_path, cluster) -> None:
    segments = live_segments(tmp_path)
    follow(tmp_path, segments[2].first_index)
    assert archived_segments(tmp_path) == []
    follow(tmp_path, len(cluster.groups))
    assert [one.first_index for one in archived_segments(tmp_path)] == [
        one.first_index for one in segments[:2]
    ]


def test_without_its_history_it_is_made_again_from_archive_and_journal(tmp_path, cluster) -> None:
    for committed in (40, 80, 110, len(cluster.groups)):
        follow(tmp_path, committed)
    assert archived_segments(tmp_path)
    before = rows(tmp_path)
    remove_history(tmp_path / HISTORY_NAME)
    found, _ = follow(tmp_path, len(cluster.groups))
    assert found == digest(cluster.state)
    assert rows(tmp_path) == before


def test_without_its_history_and_its_archive_it_says_how_far_it_reaches(tmp_path, cluster) -> None:
    settings = FollowerSettings(snapshot_interval_ms=0, retention=Retention(max_bytes=0))
    for committed in (40, 80, 110, len(cluster.groups)):
        follow(tmp_path, committed, settings)
    assert archived_segments(tmp_path) == []
    remove_history(tmp_path / HISTORY_NAME)
    found, said = follow(tmp_path, len(cluster.groups), settings)
    assert found == digest(cluster.state)
    assert any("reaches back to group" in message.get("note", "") for message in said)
    history = History(tmp_path / HISTORY_NAME)
    assert history.reach().from_index > 0
    assert all(history.task(task_id) is not None for task_id in cluster.state.tasks)


def test_a_damaged_history_is_made_again(tmp_path, cluster) -> None:
    follow(tmp_path, len(cluster.groups))
    before = rows(tmp_path)
    path = tmp_path / HISTORY_NAME
    remove_history(path)
    path.write_bytes(b"rubbish" * 1000)
    _, said = follow(tmp_path, len(cluster.groups))
    assert any("rebuilt" in message.get("note", "") for message in said)
    assert rows(tmp_path) == before


def test_a_history_that_knows_more_than_the_journal_is_an_error_and_kept(tmp_path, cluster) -> None:
    """Groups that were acknowledged are missing, and the history is the only one that still knows them."""
    follow(tmp_path, len(cluster.groups), final_snapshot=False, settings=FollowerSettings())
    before = rows(tmp_path)
    with pytest.raises(LostTail, match=f"records group {len(cluster.groups)}, the journal ends at 50"):
        follow(tmp_path, 50, final_snapshot=False, settings=FollowerSettings())
    assert rows(tmp_path) == before


def test_a_damaged_snapshot_costs_time_and_nothing_else(tmp_path, cluster) -> None:
    follow(tmp_path, 60)
    follow(tmp_path, 90)
    (tmp_path / "snapshot.json").write_bytes(b"{")
    found, _ = follow(tmp_path, len(cluster.groups))
    assert found == digest(cluster.state)
    assert load_snapshot(tmp_path / "snapshot.json").index == len(cluster.groups)


def test_a_copied_history_leaves_room_for_the_journal(
    tmp_path, cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that gets old rows must not refuse new tasks because of them."""
    said: list = []
    follower = Follower(tmp_path, FollowerSettings(), said.append)
    with contextlib.closing(History(tmp_path / HISTORY_NAME)) as history:
        fill = Fill(into=history.reach().state)
    for free_bytes in (255 << 20, 257 << 20):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free_bytes: SimpleNamespace(free=free))
        follower.fill(FillOrder(id=1, fill=fill))
    follower.close()
    refused, filled = (message["answer"] for message in said if "answer" in message)
    assert "less than 256 MiB are free" in refused["error"]
    assert "error" not in filled


def test_questions_do_not_wait_for_the_history(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a large batch the history takes long to write. `why` and what-if need only the state."""
    cluster = busy_cluster(steps=20)
    cluster.do(SubmitTasks(entries=((5_000, spec()),)))
    write_journal(tmp_path, cluster.groups)
    said: list = []
    follower = Follower(tmp_path, FollowerSettings(), said.append)
    follower.commit_seen(len(cluster.groups))
    monkeypatch.setattr(HistoryWriter, "write_some", _no_writing)
    last = cluster.state.next_task_id - 1
    follower.reply(Ask(id=1, at=cluster.state.last_at, question=Hastening(task_id=last)))
    monkeypatch.undo()
    (answered,) = [message["answer"] for message in said if "answer" in message]
    assert "json" in answered
    assert digest(follower.state) == digest(cluster.state)
    follower.finish(final_snapshot=False)
    follower.close()
    history = History(tmp_path / HISTORY_NAME)
    assert history.rows("SELECT count(*) FROM tasks", ())[0][0] == last
    assert history.reach().index == len(cluster.groups)
    history.close()


def _no_writing(*_: object) -> bool:
    raise AssertionError("the history was written before the answer")


def test_a_large_group_is_written_in_pieces_between_which_questions_are_answered(tmp_path) -> None:
    cluster = busy_cluster(steps=20)
    cluster.do(SubmitTasks(entries=((9_000, spec()),)))
    write_journal(tmp_path, cluster.groups)
    follower = Follower(tmp_path, FollowerSettings(), lambda _: None)
    follower.commit_seen(len(cluster.groups))
    steps = 0
    while follower.behind:
        follower.step()
        steps += 1
    assert steps >= 4
    follower.close()
    shutil.copytree(tmp_path / "journal", tmp_path / "twin" / "journal")
    follow(tmp_path / "twin", len(cluster.groups))
    assert rows(tmp_path) == rows(tmp_path / "twin")


def test_a_group_that_was_written_in_part_is_written_whole_after_a_kill(tmp_path) -> None:
    cluster = busy_cluster(steps=60)
    cluster.do(SubmitTasks(entries=((9_000, spec()),)))
    write_journal(tmp_path, cluster.groups)
    shutil.copytree(tmp_path / "journal", tmp_path / "twin" / "journal")
    follow(tmp_path / "twin", len(cluster.groups))
    for steps in (1, 2, 3):
        killed = Follower(tmp_path, FollowerSettings(), lambda _: None)
        killed.commit_seen(len(cluster.groups))
        for _ in range(steps):
            killed.step()
        assert killed.behind
        killed.close()
    follow(tmp_path, len(cluster.groups), final_snapshot=False)
    assert rows(tmp_path) == rows(tmp_path / "twin")
    history = History(tmp_path / HISTORY_NAME)
    assert history.count_tasks(TaskFilters()) == History(tmp_path / "twin" / HISTORY_NAME).count_tasks(
        TaskFilters()
    )
    history.close()


def test_what_it_says_it_has_seen_is_in_the_history(tmp_path, cluster) -> None:
    _, said = follow(tmp_path, len(cluster.groups))
    seen = [message for message in said if "seen" in message]
    assert seen[-1]["seen"] == len(cluster.groups)
    # The next group may carry the time of this one: what ends then is not in the history yet.
    assert seen[-1]["at"] == cluster.state.last_at - 1


def test_a_rebuilt_history_says_what_the_followed_one_said(tmp_path, cluster) -> None:
    for committed in (40, 80, len(cluster.groups)):
        follow(tmp_path, committed)
    before = rows(tmp_path)
    reports: list[str] = []
    rebuild_history(tmp_path, reports.append)
    assert rows(tmp_path) == before
    assert "first group" in reports[0]
    assert f"group {len(cluster.groups)}" in reports[-1]
    found, _ = follow(tmp_path, len(cluster.groups))
    assert found == digest(cluster.state)


def test_a_rebuild_tells_from_when_on_it_can_know(tmp_path, cluster) -> None:
    settings = FollowerSettings(snapshot_interval_ms=0, retention=Retention(max_bytes=0))
    for committed in (40, 80, 110, len(cluster.groups)):
        follow(tmp_path, committed, settings)
    reports: list[str] = []
    rebuild_history(tmp_path, reports.append)
    assert "older segments are gone" in reports[0]
    assert "2023-11-14T" in reports[0]


def test_a_rebuild_is_refused_while_a_scheduler_runs(tmp_path, cluster) -> None:
    journal = FileJournal.open(tmp_path)
    with pytest.raises(JournalLocked):
        rebuild_history(tmp_path, print)
    journal.close()


def test_a_directory_without_a_single_group_is_fine(tmp_path) -> None:
    directory = tmp_path / "new"
    journal = FileJournal.open(directory, segment_bytes=1 << 14, reserve_bytes=1 << 13)
    journal.recover()
    _, said = follow(directory, 0)
    assert all("error" not in message for message in said)
    assert not (directory / "snapshot.json").exists()
    append_groups(journal, busy_cluster(steps=5).groups)
    journal.close()


def test_a_history_that_is_being_made_again_is_not_read_before_it_has_everything(tmp_path, cluster) -> None:
    """What is missing in it would be taken for what never was."""
    follow(tmp_path, len(cluster.groups))
    before = rows(tmp_path)
    begin_again(tmp_path / HISTORY_NAME)
    follower = Follower(tmp_path, EAGER, lambda _: None)
    history = History(tmp_path / HISTORY_NAME)
    with pytest.raises(HistoryDamaged, match="rebuilt"):
        history.reach()
    follower.commit_seen(len(cluster.groups))
    follower.finish(final_snapshot=False)
    follower.close()
    assert history.reach().index == len(cluster.groups)
    history.close()
    assert rows(tmp_path) == before


def test_a_list_of_a_damaged_history_says_that_it_is_damaged(tmp_path, cluster) -> None:
    follow(tmp_path, len(cluster.groups))
    found: list[str] = []
    history = History(tmp_path / HISTORY_NAME, lambda: found.append("damage"))
    assert history.forgotten_page(TaskFilters(), before_id=None, limit=5).index == len(cluster.groups)
    history.close()
    with (tmp_path / HISTORY_NAME).open("r+b") as file:  # the head is sound, the tables are not
        file.seek(4_096)
        file.write(b"\xff" * ((tmp_path / HISTORY_NAME).stat().st_size - 4_096))
    with pytest.raises(HistoryDamaged):
        history.forgotten_page(TaskFilters(), before_id=None, limit=5)
    assert found == ["damage"]


def test_after_a_fetched_snapshot_the_history_keeps_its_earlier_tasks(tmp_path) -> None:
    """A scheduler that was away for long has groups before a gap, and the engine's snapshot after it."""
    groups = busy_cluster(7, steps=150).groups
    half, last = len(groups) // 2, len(groups)
    write_journal(tmp_path, groups[:half])
    follow(tmp_path, half)
    before = stored_ids(tmp_path)
    for path in (tmp_path / JOURNAL_FOLDER, tmp_path / ARCHIVE_FOLDER, tmp_path / KEYS_FOLDER):
        shutil.rmtree(path, ignore_errors=True)
    for path in tmp_path.glob("snapshot*.json"):
        path.unlink()
    state = replay(event for group in groups for event in group)
    write_snapshot(tmp_path, state, index=last, epoch=1)
    begin_after_snapshot(tmp_path, Checkpoint(index=last, chain=b"x" * 32))
    found, said = follow(tmp_path, last)
    assert found == digest(state)
    assert before - set(state.tasks), "some tasks have left the memory"
    assert stored_ids(tmp_path) == before | set(state.tasks)
    assert any(f"no events of groups {half + 1} to {last}" in one.get("note", "") for one in said)


def stored_ids(directory) -> set:
    history = History(directory / HISTORY_NAME)
    ids = {row[0] for row in history.rows("SELECT id FROM tasks", ())}
    history.close()
    return ids
