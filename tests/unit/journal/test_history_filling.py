"""A history that began in the middle, or that has a gap, gets everything that another one has."""

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from dgpu.core import commands
from dgpu.core.apply.table import apply
from dgpu.core.model.ids import TaskId, TenantId
from dgpu.core.model.task import Outcome, Pool, Shape
from dgpu.core.state import ClusterState
from dgpu.service.history import past_pages
from dgpu.service.history.audit_rows import Kind
from dgpu.service.history.filling import HistoryChanged
from dgpu.service.history.past_pages import Past, past_page
from dgpu.service.history.past_words import Cursor, Fill, PastPage, PastRows, Reach
from dgpu.service.history.reader import History
from dgpu.service.history.writer import HistoryWriter, remove_history
from dgpu.service.results.file import RESULTS_NAME, ResultLimits, ResultReader, ResultWriter, StoredResult
from unit.journal.samples import Cluster, busy_cluster, spec

TABLES = ("attempts", "attempt_usage", "task_events", "audit", "node_events", "task_counts")
STEPS = 300
ALL = 1 << 40
NOW = 1_800_000_000_000


class Follower:
    """Follows the groups of a cluster into a history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = HistoryWriter(path)
        self.state = ClusterState()

    def follow(self, groups: dict[int, tuple], *, notes: bool = True) -> None:
        for index, group in groups.items():
            for position, event in enumerate(group):
                apply(self.state, event)
                if notes:
                    self.writer.note(event, self.state, index=index, position=position)
        if notes:
            self.writer.commit(max(groups))

    def rows(self, table: str) -> list[tuple]:
        with sqlite3.connect(self.path) as connection:
            only = "WHERE number > 0" if table == "task_counts" else ""
            found = connection.execute(f"SELECT * FROM {table} {only}").fetchall()
        return sorted(map(tuple, found), key=repr)

    def reach(self) -> Reach:
        history = History(self.path)
        try:
            return history.reach()
        finally:
            history.close()

    def fill_from(self, other: "Follower") -> int:
        """Returns the number of pages."""
        own, reach = self.reach(), other.reach()
        pages = pages_of(other.path, own.lacks_until)
        for page in pages:
            self.writer.fill(Fill(into=own.state, page=page))
        self.writer.fill(Fill(into=own.state, source=reach))
        return len(pages)


def pages_of(path: Path, upto: int) -> list[PastPage]:
    results = path.with_name(RESULTS_NAME)
    ResultWriter(results, ResultLimits()).close()
    past = Past(History(path), ResultReader(results))
    pages = []
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        pages.append(past_page(past, cursor, upto))
        cursor = pages[-1].next
    past.close()
    return pages


@pytest.fixture(scope="module")
def groups() -> dict[int, tuple]:
    return dict(enumerate(busy_cluster(5, steps=STEPS).groups, start=1))


def part(groups: dict[int, tuple], begin: int, end: int) -> dict[int, tuple]:
    return {index: group for index, group in groups.items() if begin <= index <= end}


def made(path: Path, groups: dict[int, tuple], *cuts: tuple[str, int]) -> Follower:
    """A history that is away at `begins` and back at the next index: by `seed` at first, by `bridge` later."""
    follower = Follower(path)
    last = 0
    for how, index in cuts:
        if how == "follow":
            follower.follow(part(groups, last + 1, index))
        else:
            follower.follow(part(groups, last + 1, index), notes=False)
            getattr(follower.writer, how)(follower.state, index=index)
        last = index
    follower.follow(part(groups, last + 1, len(groups)))
    return follower


@pytest.fixture
def whole(tmp_path: Path, groups: dict[int, tuple]) -> Follower:
    return made(tmp_path / "whole.sqlite", groups)


@pytest.mark.parametrize(
    "cuts",
    [
        [("seed", 150)],
        [("seed", 299)],
        [("follow", 60), ("bridge", 200)],
        [("follow", 60), ("bridge", 120), ("follow", 180), ("bridge", 250)],
        [("seed", 80), ("follow", 120), ("bridge", 240)],
    ],
    ids=repr,
)
@pytest.mark.parametrize("page_tasks", [3, 200])
def test_it_becomes_equal_to_the_other_one(
    tmp_path: Path,
    groups: dict[int, tuple],
    whole: Follower,
    cuts: list[tuple[str, int]],
    page_tasks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past_pages, "_TASKS", page_tasks)
    later = made(tmp_path / "later.sqlite", groups, *cuts)
    assert later.reach().lacks_until == cuts[-1][1]
    assert later.rows("task_events") != whole.rows("task_events")
    later.fill_from(whole)
    for table in ("tasks", *TABLES):
        assert later.rows(table) == whole.rows(table), table
    assert (later.reach().lacks_until, later.reach().from_at) == (0, 0)
    numbers = (later.writer._tasks, later.writer._kept_node_events, later.writer._audit._stored)
    again = HistoryWriter(later.path)
    assert numbers == (again._tasks, again._kept_node_events, again._audit._stored), (
        "trimming counts all rows"
    )


def test_pages_may_come_twice_and_while_the_history_goes_on(
    tmp_path: Path, groups: dict[int, tuple], whole: Follower
) -> None:
    """A scheduler may be killed between two pages, and its history follows the journal meanwhile."""
    later = Follower(tmp_path / "later.sqlite")
    later.follow(part(groups, 1, 150), notes=False)
    later.writer.seed(later.state, index=150)
    later.fill_from(whole)
    later.writer.close()
    later.writer = HistoryWriter(later.path)
    later.follow(part(groups, 151, 220))
    assert later.fill_from(whole) > 0
    later.follow(part(groups, 221, len(groups)))
    for table in TABLES:
        assert later.rows(table) == whole.rows(table), table


def test_an_attempt_that_runs_when_a_history_begins_is_in_it(
    tmp_path: Path, groups: dict[int, tuple], whole: Follower
) -> None:
    later = made(tmp_path / "later.sqlite", groups, ("seed", 150))
    state = ClusterState()
    for group in part(groups, 1, 150).values():
        for event in group:
            apply(state, event)
    running = {lease.id for lease in state.leases.values()}
    assert running
    known = {row[0]: row for row in later.rows("attempts")}
    assert all(known[row[0]] == row for row in whole.rows("attempts") if row[0] in running)


def test_a_rank_that_has_ended_keeps_its_end(tmp_path: Path) -> None:
    """It has a lease until its whole gang ends."""
    cluster = Cluster().begin()
    gang = Shape(tenant_id=TenantId("lab"), pool=Pool.BATCH, priority=50, gpus=1, nodes=2)
    cluster.do(commands.SubmitTasks(entries=((1, spec(shape=gang)),)), commands.RunPass())
    ended, running = cluster.state.leases
    for lease_id in (ended, running):
        cluster.do(commands.ReportStarted(lease_id=lease_id))
    cluster.do(commands.ReportFinished(lease_id=ended, outcome=Outcome.EXITED, exit_code=0))
    seen = len(cluster.groups)
    cluster.drain(0)  # two groups
    groups = dict(enumerate(cluster.groups, start=1))
    whole, away, joined = (
        made(tmp_path / f"{number}.sqlite", groups, *cuts)
        for number, cuts in enumerate(([], [("follow", seen), ("bridge", seen + 1)], [("seed", seen + 1)]))
    )
    assert away.rows("attempts") == whole.rows("attempts")
    assert [row[0] for row in joined.rows("attempts")] == [running]
    joined.fill_from(whole)
    assert [row[0] for row in joined.rows("attempts")] == [ended, running]


def test_a_filled_history_fills_one_that_begins_earlier(
    tmp_path: Path, groups: dict[int, tuple], whole: Follower
) -> None:
    """The first scheduler makes its history anew from its files after damage, and gets the rest back."""
    joined = made(tmp_path / "joined.sqlite", groups, ("seed", 150))
    joined.fill_from(whole)
    anew = made(tmp_path / "anew.sqlite", groups, ("seed", 149))
    anew.fill_from(joined)
    for table in (*TABLES, "tasks"):
        assert anew.rows(table) == whole.rows(table), table


def test_a_history_without_the_beginning_fills_only_what_it_has(
    tmp_path: Path, groups: dict[int, tuple]
) -> None:
    older, later = (made(tmp_path / f"{index}.sqlite", groups, ("seed", index)) for index in (100, 200))
    later.fill_from(older)
    assert later.reach().from_index == older.reach().from_index == 100
    assert later.reach().from_at == older.reach().from_at > 0
    assert later.rows("task_events") == older.rows("task_events")


@pytest.mark.parametrize("how", ["rebuilt", "bridged"])
def test_a_copy_is_refused_when_the_history_has_changed_since_it_began(
    tmp_path: Path, groups: dict[int, tuple], whole: Follower, how: str
) -> None:
    """Otherwise it would count as complete after the last page, with the earlier pages gone or never given."""
    later = made(tmp_path / "later.sqlite", part(groups, 1, 200), ("seed", 150))
    began = later.reach()
    first, *others = pages_of(whole.path, began.lacks_until)
    later.writer.fill(Fill(into=began.state, page=first))
    if how == "rebuilt":  # from the same snapshot
        later.writer.close()
        remove_history(later.path)
        later = made(later.path, part(groups, 1, 200), ("seed", 150))
    else:
        later.follow(part(groups, 201, 250), notes=False)
        later.writer.bridge(later.state, index=250)
    before = later.reach(), later.rows("task_events")
    for given in (Fill(into=began.state, page=others[0]), Fill(into=began.state, source=whole.reach())):
        with pytest.raises(HistoryChanged):
            later.writer.fill(given)
    assert (later.reach(), later.rows("task_events")) == before


def test_wide_rows_end_a_page_early(whole: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page must fit into a message, whatever the size of its rows."""
    wide = 2_000
    monkeypatch.setattr(past_pages, "_BYTES", wide)
    monkeypatch.setattr(past_pages, "_MAX_TASK_BYTES", wide)
    largest = max(len(repr(row)) for table in ("tasks", *TABLES) for row in whole.rows(table))
    pages = pages_of(whole.path, ALL)
    assert all(len(repr(page.tables)) < 4 * (wide + largest) + 5_000 for page in pages)
    listed = [
        row for page in pages for table in page.tables if table.table == "node_events" for row in table.rows
    ]
    assert sorted(listed) == sorted(whole.rows("node_events"))


def test_an_audit_entry_of_an_unknown_kind_is_left_out(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "h.sqlite")
    with sqlite3.connect(follower.path) as connection:
        columns = {
            row[1]: "" if row[2] == "TEXT" else 0 for row in connection.execute("PRAGMA table_info(audit)")
        }
    rows = (tuple((columns | {"kind": kind, "position": kind}).values()) for kind in (Kind.CHANGE, 99))
    table = PastRows(table="audit", columns=tuple(columns), rows=tuple(rows))
    follower.writer.fill(Fill(into=follower.reach().state, page=PastPage(tables=(table,))))
    assert len(follower.rows("audit")) == 1
    again = HistoryWriter(follower.path)
    assert (
        again._audit._stored
        == follower.writer._audit._stored
        == {Kind.SUBMIT: 0, Kind.CHANGE: 1, Kind.REFUSAL: 0}
    )


def test_what_another_version_has_more_is_left_out(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "h.sqlite")
    columns = ("node", "journal_index", "position", "at", "type", "body", "colour")
    tables = (
        PastRows(table="node_events", columns=columns, rows=(("n1", 3, 0, 5, "NodeLost", "{}", "red"),)),
        PastRows(table="sqlite_master", columns=("name",), rows=(("x",),)),
    )
    follower.writer.fill(Fill(into=follower.reach().state, page=PastPage(tables=tables)))
    assert follower.rows("node_events") == [("n1", 3, 0, 5, "NodeLost", "{}")]


@pytest.mark.parametrize(
    ("own", "source", "lacks", "gap_from"),
    [
        (Reach(from_index=9), Reach(), 0, 0),
        (Reach(from_index=9), Reach(from_index=4), 4, 0),
        (Reach(gap_from=5, gap_until=9), Reach(from_index=4), 0, 0),
        (Reach(gap_from=5, gap_until=9), Reach(from_index=7), 7, 5),
        (Reach(from_index=2, gap_from=5, gap_until=9), Reach(from_index=4), 2, 0),
        (Reach(from_index=9), Reach(gap_from=3, gap_until=6), 6, 0),
    ],
)
def test_how_far_a_filled_history_reaches(own: Reach, source: Reach, lacks: int, gap_from: int) -> None:
    filled = own.filled_from(source)
    assert (filled.lacks_until, filled.gap_from) == (lacks, gap_from)


def test_all_cursors_differ(whole: Follower) -> None:
    """A page ends with another cursor than it began with, so a copy comes to its end."""
    cursors = [page.next for page in pages_of(whole.path, STEPS)]
    assert len(cursors) >= 3
    assert all(before != after for before, after in pairwise(cursors))


def result(task_id: int, content: bytes = b"r") -> StoredResult:
    return StoredResult(
        task_id=TaskId(task_id),
        at=NOW,
        result=content,
        encoding="msgpack",
        ref="",
        size=len(content),
        traceback="",
    )


@pytest.mark.parametrize("limits", [{"_RESULTS": 2}, {"_BYTES": 1_000}])
def test_results_of_calls_travel_in_pages(
    whole: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(past_pages, name, value)
    results = [result(task_id, b"r" * 600) for task_id in (1, 2, 5, 7, 8)]
    source = ResultWriter(whole.path.with_name(RESULTS_NAME), ResultLimits())
    source.fill(results, NOW)
    pages = pages_of(whole.path, STEPS)
    source.close()
    own = ResultWriter(tmp_path / RESULTS_NAME, ResultLimits(max_bytes=3_000))
    own.fill([result(9)], NOW)
    for page in pages * 2:
        assert len(page.results) <= 2
        own.fill(page.results, NOW)
    own.close()
    reader = ResultReader(tmp_path / RESULTS_NAME)
    found = reader.before(100, 100)
    reader.close()
    assert found == [result(9), *reversed(results[2:])], "the limit of the file holds for the oldest"
