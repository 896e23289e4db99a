"""Lists: newest first, filtered, paged; the memory and the history as one."""

from __future__ import annotations

import pytest

from dgpu.core.commands import LoseNode, ReportFinished, ReportStarted
from dgpu.core.model.ids import NodeId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome
from rest_world import RestWorld


def walk(world: RestWorld, query: str = "", limit: int = 7) -> list[str]:
    """All ids, page by page."""
    found: list[str] = []
    cursor = ""
    while True:
        page = world.ask("GET", f"/api/v1/tasks?limit={limit}&{query}{cursor}").body
        found += [task["task_id"] for task in page["tasks"]]
        if page["next_cursor"] is None:
            assert page["total"] == len(found)
            return found
        assert len(page["tasks"]) == limit
        cursor = f"&cursor={page['next_cursor']}"


def names(numbers) -> list[str]:
    return [f"task-{number}" for number in numbers]


@pytest.fixture
def forgetful(tmp_path):
    with RestWorld(tmp_path, settings=Settings(keep_finished=0, keep_finished_ms=0)) as running:
        yield running


def test_filters_and_totals(world) -> None:
    for tenant, priority, count in (("a", 10, 5), ("b", 90, 4), ("a", 90, 3)):
        body = {"task": {"command": "x", "tenant_id": tenant, "priority": priority}, "count": count}
        world.ask("POST", "/api/v1/tasks/batch", body)
    assert walk(world) == names(range(12, 0, -1))
    assert walk(world, "tenant=a") == names([12, 11, 10, 5, 4, 3, 2, 1])
    assert walk(world, "tenant=a&priority=90") == names([12, 11, 10])
    assert walk(world, "pool=online") == names(range(12, 5, -1))
    assert walk(world, "priority=low") == names(range(5, 0, -1))
    assert walk(world, "status=running") == []
    assert walk(world, "tenant=nobody") == []
    world.add_node(gpus=2)
    assert walk(world, "status=running") == names([6, 1])  # one of each pool
    world.ask("DELETE", "/api/v1/tasks/2")
    assert walk(world, "status=cancelled") == names([2])
    assert walk(world, "status=pending") == names([12, 11, 10, 9, 8, 7, 5, 4, 3])


def test_what_left_the_memory_is_listed_from_the_history(forgetful) -> None:
    forgetful.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x", "name": "old"}, "count": 40})
    forgetful.ask("POST", "/api/v1/tasks/cancel", {"task_ids": [str(i) for i in range(1, 41, 2)]})
    forgetful.forget()
    assert forgetful.read(lambda state: len(state.tasks)) == 20
    assert walk(forgetful) == names(range(40, 0, -1))
    assert walk(forgetful, "status=cancelled") == names(range(39, 0, -2))
    assert walk(forgetful, "status=pending") == names(range(40, 0, -2))
    shown = forgetful.ask("GET", "/api/v1/tasks/1").body
    assert (shown["status"], shown["name"], shown["command"]) == ("cancelled", "old", "x")
    assert forgetful.ask("GET", "/api/v1/tasks/1/why").body["status"] == "cancelled"
    events = forgetful.ask("GET", "/api/v1/tasks/1/events").body["events"]
    assert [event["type"] for event in events] == ["task_submitted", "task_cancelled"]
    assert forgetful.ask("DELETE", "/api/v1/tasks/1").status == 200
    assert forgetful.ask("POST", "/api/v1/tasks/cancel", {"task_ids": ["1", "2"]}).body == {"cancelled": 1}


def test_nothing_is_missing_or_twice_while_the_history_lags(forgetful) -> None:
    """The history has the ends of the tasks, but not yet the groups in which they left the memory."""
    forgetful.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 40})
    forgetful.ask("POST", "/api/v1/tasks/cancel", {"task_ids": [str(i) for i in range(1, 41, 2)]})
    forgetful.pause_history()
    forgetful.forget()
    assert forgetful.read(lambda state: len(state.tasks)) == 20
    assert walk(forgetful) == names(range(40, 0, -1))
    assert walk(forgetful, "status=cancelled", limit=3) == names(range(39, 0, -2))
    assert forgetful.ask("GET", "/api/v1/tasks/1").body["status"] == "cancelled"
    forgetful.loop.call_soon_threadsafe(forgetful.follower.catch_up)
    forgetful.read(lambda state: None)
    assert walk(forgetful, limit=3) == names(range(40, 0, -1))
    assert walk(forgetful, "status=cancelled") == names(range(39, 0, -2))


def test_a_restarted_server_lists_what_the_one_before_forgot(tmp_path) -> None:
    settings = Settings(keep_finished=0, keep_finished_ms=0)
    with RestWorld(tmp_path, settings=settings) as world:
        world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 20})
        world.ask("POST", "/api/v1/tasks/cancel", {"task_ids": [str(i) for i in range(1, 11)]})
        world.pause_history()
        world.forget()
        disk = world.journal.disk
    with RestWorld(tmp_path, settings=settings, disk=disk, follower=False) as world:
        assert world.read(lambda state: len(state.tasks)) == 10
        listed = world.ask("GET", "/api/v1/tasks").body["tasks"]
        assert [task["task_id"] for task in listed] == names(range(20, 0, -1))


def test_pages_hold_while_tasks_come_and_go(forgetful) -> None:
    """A page's cursor is an id: new tasks do not push old ones onto the next page."""
    forgetful.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 20})
    first = forgetful.ask("GET", "/api/v1/tasks?limit=10").body
    forgetful.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 5})
    forgetful.ask("POST", "/api/v1/tasks/cancel", {"task_ids": ["5", "15"]})
    forgetful.forget()
    second = forgetful.ask("GET", f"/api/v1/tasks?limit=10&cursor={first['next_cursor']}").body
    assert [task["task_id"] for task in first["tasks"] + second["tasks"]] == names(range(20, 0, -1))


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("limit=9999999999999999999999", "limit"),
        ("limit=%D9%A3", "limit"),
        ("status=done", "status"),
        ("status=", "status"),
        ("priority=200", "priority"),
        ("priority=x", "priority"),
        ("pool=fast", "pool"),
        ("tenant=a/b", "tenant"),
        ("tenant=%00", "tenant"),
        ("cursor=x", "cursor"),
        ("cursor=djE6", "cursor"),
        ("cursor=djE6LTE", "cursor"),
        ("cursor=" + "A" * 5000, "cursor"),
        ("cursor=%ff", "cursor"),
        ("stauts=pending", "stauts"),
        ("rest=1", "rest"),
        ("status=pending&status=running", "status"),
    ],
)
def test_bad_queries_are_named(world, query, path) -> None:
    reply = world.ask("GET", f"/api/v1/tasks?{query}")
    assert (reply.status, reply.body["code"]) == (400, "invalid_query")
    assert reply.body["errors"][0]["path"] == path


def test_a_task_that_is_tried_again_says_so_in_the_list_too(world) -> None:
    world.add_node()
    world.submit()
    world.submit(name="its neighbour")
    (lease_id,) = world.read(lambda state: list(state.leases))
    world.execute(ReportStarted(lease_id=lease_id))
    world.execute(ReportFinished(lease_id=lease_id, outcome=Outcome.NODE_FAULT, error="its disk is full"))
    page = world.ask("GET", "/api/v1/tasks?status=pending").body
    failed = next(task for task in page["tasks"] if task["task_id"] == "task-1")
    assert failed["waiting"].startswith("it is tried again in")
    assert "its disk is full" in failed["waiting"]


def test_a_running_task_whose_node_is_away_says_so(world) -> None:
    world.add_node()
    task_id = world.submit()
    assert world.ask("GET", "/api/v1/tasks?status=running").body["tasks"][0]["waiting"] == ""
    world.execute(LoseNode(node_id=NodeId("n1"), reason="no heartbeat"))
    (listed,) = world.ask("GET", "/api/v1/tasks?status=running").body["tasks"]
    for shown in (listed, world.ask("GET", f"/api/v1/tasks/{task_id}").body):
        assert shown["status"] == "running"
        assert shown["reason"] == "node_unreachable"
        assert shown["waiting"].startswith("node n1 unreachable since 20")


def test_those_at_the_head_of_the_line_tell_why_they_wait_as_those_behind_them_do(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(reservations=8)) as world:
        world.add_node(gpus=2)
        for _ in range(14):
            world.submit()
        assert len(world.read(lambda state: list(state.reservations))) == 8
        listed = world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"]
        assert len(listed) == 12
        assert {(task["reason"], task["waiting"]) for task in listed} == {
            ("gpus_busy", "needs 1 GPU on one node; at most 0 free on one, 0 in all, 2 busy")
        }
        for task in (listed[0], listed[-1]):
            (first, *_) = world.ask("GET", f"/api/v1/tasks/{task['task_id']}/why").body["blockers"]
            assert (first["code"], first["detail"]) == (task["reason"], task["waiting"])


def test_a_page_of_many_demands_leaves_no_reason_out(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(reservations=1)) as world:
        for number in range(150):  # so many that not every demand may look at all of them
            world.add_node(f"n{number}", gpus=1)
        world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 150})
        for memory_mb in range(1_024, 13 * 1_024, 1_024):
            world.submit(gpu_memory_mb=memory_mb)
        listed = world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"]
        told = [(task["reason"], task["waiting"]) for task in listed]
        assert set(told[:8]) == {
            ("gpus_busy", "needs 1 GPU on one node; at most 0 free on one, 0 in all, 150 busy")
        }
        assert set(told[8:]) == {("no_room", "needs 1 GPU on one node; there is no room for it now")}
