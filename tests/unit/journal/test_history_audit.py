"""The audit log in the history: pages, filters, limits of each kind, and what a reader of some tenants may know."""

from __future__ import annotations

import sqlite3

import pytest
from msgspec.structs import replace

from dgpu.core.events import Audited
from dgpu.core.model.audit import AuditEntry
from dgpu.core.state import ClusterState
from dgpu.service.history import audit
from dgpu.service.history.audit import AuditFilters, read_audit
from dgpu.service.history.audit_rows import AuditLimits
from dgpu.service.history.reader import History
from dgpu.service.history.writer import HistoryWriter

ANN = AuditEntry(
    user="ann", role="user", source="token", token_id="k1", tenants=("vision",), origin="10.0.0.1",
    action="task.change", call="DELETE /api/v1/tasks/{task_id}", subject="task-1", tenant_id="vision", request_id="r1",
)  # fmt: skip
BOB = replace(ANN, user="bob", tenants=("speech",), tenant_id="speech", subject="task-2", token_id="k2")
ROOT = replace(ANN, user="root", role="admin", tenants=None, subject="task-3")
INTRUDER = replace(BOB, subject="task-1", tenant_id="vision", status=404, code="unknown_task")
GUESS = AuditEntry(action="task.list", origin="10.0.0.9", status=403, code="wrong_token", count=9, since=3)
ALL = (ANN, BOB, ROOT, INTRUDER, GUESS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "h.sqlite"


def write(path, entries, *, first: int = 1, **limits) -> HistoryWriter:
    writer = HistoryWriter(path, audit=AuditLimits(**limits))
    for index, entry in enumerate(entries, start=first):
        writer.note(Audited(index * 10, entry), ClusterState(), index=index, position=0)
        writer.commit(index)
    return writer


def read(path, limit: int = 100, before=None, **filters):
    history = History(path)
    try:
        return read_audit(history, AuditFilters(**filters), before, limit)
    finally:
        history.close()


def subjects(part) -> list[str]:
    return [each.subject for each in part.entries]


def test_entries_come_back_as_they_were_newest_first(path) -> None:
    write(path, ALL).close()
    entries = read(path).entries
    assert [each.at for each in entries] == [50, 40, 30, 20, 10]
    ours = {name: getattr(entries[-1], name) for name in AuditEntry.__struct_fields__}
    assert AuditEntry(**ours) == ANN
    assert [each.result for each in entries] == ["refused", "refused", "done", "done", "done"]


def test_pages_join_without_gap_or_repeat(path) -> None:
    write(path, ALL * 5).close()
    found, place = [], None
    while True:
        part = read(path, limit=4, before=place)
        found += part.entries
        place = part.stopped
        if place is None:
            break
    assert [each.at for each in found] == [each * 10 for each in range(25, 0, -1)]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"user": "bob"}, ["task-1", "task-2"]),
        ({"action": "task"}, ["", "task-1", "task-3", "task-2", "task-1"]),
        ({"action": "task.list"}, [""]),
        ({"action": "tas"}, []),
        ({"result": "refused"}, ["", "task-1"]),
        ({"result": "failed"}, []),
        ({"tenant_id": "speech"}, ["task-2"]),
        ({"since": 20, "until": 40}, ["task-3", "task-2"]),
    ],
)
def test_filters(path, filters, found) -> None:
    write(path, ALL).close()
    assert subjects(read(path, **filters)) == found


def test_a_reader_of_some_tenants_learns_no_names_of_others(path) -> None:
    """Its users, and what others did to its tasks; not which other user, from where, or whose task it was."""
    write(path, ALL).close()
    shown = {each.at: each for each in read(path, tenants=("vision",)).entries}
    assert sorted(shown) == [10, 30, 40]
    assert shown[10].user == "ann"
    for at in (30, 40):
        assert (shown[at].user, shown[at].origin, shown[at].token_id, shown[at].request_id) == (
            "",
            "",
            "",
            "",
        )
        assert "speech" not in repr(shown[at])
    theirs = {each.at: each for each in read(path, tenants=("speech",)).entries}
    assert sorted(theirs) == [20, 40]
    assert (theirs[40].user, theirs[40].tenant_id) == ("bob", "")  # its own user, at a task of another tenant
    assert read(path, tenants=("vision",), user="bob").entries == []


def test_a_scan_is_bounded_and_goes_on_with_the_cursor(path, monkeypatch) -> None:
    write(path, [ANN] + [BOB] * 30).close()
    monkeypatch.setattr(audit, "MAX_LOOKED_AT", 10)
    part, rounds = read(path, user="ann"), 1
    while not part.entries:
        part, rounds = read(path, user="ann", before=part.stopped), rounds + 1
    assert rounds == 4
    assert part.entries[0].user == "ann"


def test_a_flood_of_one_kind_pushes_nothing_else_out(path) -> None:
    submit = replace(ANN, action="task.submit")
    writer = write(path, [ROOT, *[submit] * 3_000, *[GUESS] * 3_000], max_entries=1_000)
    while writer.trim(0):
        pass
    writer.close()
    assert len(read(path, limit=9_999).entries) == 2_001
    assert subjects(read(path, user="root")) == ["task-3"]


def test_old_entries_leave(path) -> None:
    writer = write(path, ALL, max_age_ms=1_000)
    assert writer.trim(1_040) == 3
    assert writer.trim(1_040) == 0
    writer.close()
    assert [each.at for each in read(path).entries] == [50, 40]


def test_a_written_part_is_not_counted_twice(path) -> None:
    """Rows beyond the index of a killed follower are written again."""
    writer = HistoryWriter(path)
    for position in range(50):
        writer.note(Audited(10, ANN), ClusterState(), index=1, position=position)
    assert not writer.write_some(1, 20)
    writer.close()
    again = HistoryWriter(path)
    for position in range(50):
        again.note(Audited(10, ANN), ClusterState(), index=1, position=position)
    while not again.write_some(1, 20):
        pass
    again.close()
    assert len(read(path).entries) == 50


def test_an_older_history_gets_the_table(path) -> None:
    HistoryWriter(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE audit")
    assert read(path).entries == []
    write(path, ALL).close()
    assert len(read(path).entries) == 5
