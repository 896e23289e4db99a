"""A task's attempts, and a task once more."""

from __future__ import annotations

import json
import time

import msgspec

from dgpu.core.commands import ReportFinished, ReportStarted
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, TaskDetail
from dgpu.journal.file import FileJournal
from dgpu.service.rest.backend import RestOptions
from dgpu.service.secrets.details import open_detail
from dgpu.wire.records import encode_group
from rest_world import RestWorld

ASKED = {
    "command": "python train.py",
    "name": "train",
    "env": {"SECRET": "s3cret"},
    "tenant_id": "lab",
    "priority": 70,
    "gpu_count": 1,
    "timeout_seconds": 60,
    "max_retries": 2,
    "labels": {"who": "me"},
}


def retry(world, task_id: str, **headers: str):
    return world.ask("POST", f"/api/v1/tasks/{task_id}/retry", {}, headers)


def env_of(world, detail: bytes) -> dict[str, str]:
    """As a start order has it."""
    assert b"s3cret" not in detail
    opened = open_detail(world.vault, "lab", detail, {})
    return msgspec.json.decode(opened.detail, type=TaskDetail).env


def test_a_task_that_is_over_is_submitted_once_more_with_all_it_was_told(world) -> None:
    world.add_node("n1", 1)
    first = world.submit(**ASKED)
    world.finish_running(exit_code=3)
    reply = retry(world, first)
    assert reply.status == 201
    assert reply.body["retry_of"] == first
    second = reply.body["task_id"]
    assert second != first
    assert "s3cret" not in json.dumps(reply.body)
    assert reply.body["created_at"] and reply.body["status"] == "pending"
    old, new = (world.ask("GET", f"/api/v1/tasks/{task}").body for task in (first, second))
    for field in (
        "command",
        "name",
        "env",
        "tenant_id",
        "priority",
        "pool",
        "timeout_seconds",
        "max_retries",
        "labels",
    ):
        assert old[field] == new[field], field
    assert new["status"] == "running"
    details = world.read(lambda state: [task.detail for task in state.tasks.values()])
    assert details[0] == details[1]
    assert env_of(world, details[1]) == {"SECRET": "s3cret"}


def test_not_while_it_waits_or_runs_and_not_if_it_never_was(world) -> None:
    waiting = world.submit(**ASKED)
    before = world.digest()
    assert (retry(world, waiting).status, retry(world, waiting).body["code"]) == (409, "not_ended")
    world.add_node("n1", 1)
    refused = retry(world, waiting)
    assert (refused.status, "running" in refused.body["detail"]) == (409, True)
    assert retry(world, "task-99").status == 404
    assert retry(world, "nonsense").status == 404
    assert world.ask("POST", f"/api/v1/tasks/{waiting}/retry", {"env": {}}).status == 400
    assert world.read(lambda state: len(state.tasks)) == 1
    assert before != world.digest(), "only the node came"


def test_a_repeated_call_with_a_key_submits_once(world) -> None:
    world.add_node("n1", 1)
    first = world.submit(**ASKED)
    world.finish_running()
    ids = {retry(world, first, **{"Idempotency-Key": "k1"}).body["task_id"] for _ in range(3)}
    assert len(ids) == 1
    assert retry(world, first).body["task_id"] not in ids
    world.finish_running()
    other = retry(world, next(iter(ids)), **{"Idempotency-Key": "k1"})
    assert other.status == 422, "the same key for another task"


def test_of_an_array_the_one_task_with_its_index(world) -> None:
    world.add_node("n1", 4)
    reply = world.ask("POST", "/api/v1/tasks", {"command": "true", "array": "5-8%2"})
    assert reply.status == 201
    world.finish_running()
    again_id = retry(world, "task-2").body["task_id"]
    task = world.ask("GET", f"/api/v1/tasks/{again_id}").body
    assert (task["array_index"], task["array_count"], task["array_limit"]) == (6, 1, None)


def test_one_that_was_forgotten_is_read_from_the_journal(tmp_path) -> None:
    """The world's own journal is in memory; its records are copied to one of files."""
    kept = tmp_path / "journal"
    options = RestOptions(version="test", journal_dir=kept)
    with RestWorld(tmp_path, settings=Settings(keep_finished=0), options=options) as world:
        groups = []
        world.runtime.subscribe(groups.append)
        world.add_node("n1", 1)
        world.submit(command="other")
        first = world.submit(**ASKED)
        world.finish_running()
        world.finish_running()
        world.forget()
        assert world.read(lambda state: len(state.tasks)) == 0
        gone = retry(world, first)
        assert (gone.status, gone.body["code"]) == (410, "task_forgotten")
        assert world.read(lambda state: len(state.tasks)) == 0
        write_journal(kept, groups)
        reply = retry(world, first)
        assert reply.status == 201
        task = world.ask("GET", f"/api/v1/tasks/{reply.body['task_id']}").body
        assert (task["command"], task["env"], task["tenant_id"]) == ("python train.py", ["SECRET"], "lab")
        detail = world.read(lambda state: next(iter(state.tasks.values())).detail)
        assert env_of(world, detail) == {"SECRET": "s3cret"}


def write_journal(folder, groups) -> None:
    journal = FileJournal.open(folder)
    journal.recover()
    journal.append(1, 1, encode_group([]))
    for group in groups:
        journal.append(1, group.index, encode_group(group.events))
    journal.close()


def test_the_attempts_of_a_task_are_told_in_order(world) -> None:
    world.add_node("n1", 2)
    task_id = world.submit(command="true", gpu_count=2, max_retries=3, restart="on-failure")
    world.finish_running(exit_code=7)
    wait_for_attempt(world, 2)
    task = world.ask("GET", f"/api/v1/tasks/{task_id}").body
    one, two = task["attempts"]
    assert (one["attempt"], one["node"], one["reason"]) == (1, "n1", "exit_code")
    assert one["gpus"] == ["GPU-n1-0", "GPU-n1-1"]
    assert one["placed_at"] and one["started_at"] and one["ended_at"]
    assert (two["attempt"], two["ended_at"], two["exit_code"]) == (2, None, None)
    world.finish_running()
    three = world.ask("GET", f"/api/v1/tasks/{task_id}").body["attempts"]
    assert [each["exit_code"] for each in three] == [None, 0], (
        "of an attempt that is retried, the error tells the code"
    )
    assert "7" in three[0]["error"]
    assert world.ask("GET", "/api/v1/tasks").body["tasks"][0]["attempts"] == []


def test_the_running_attempt_is_told_though_the_history_is_behind(world) -> None:
    world.add_node("n1", 1)
    world.follower.paused = True
    task_id = world.submit(command="true")
    attempts = world.ask("GET", f"/api/v1/tasks/{task_id}").body["attempts"]
    assert [(each["attempt"], each["node"], each["started_at"]) for each in attempts] == [(1, "n1", None)]
    lease = world.read(lambda state: next(iter(state.leases)))
    world.execute(ReportStarted(lease_id=lease))
    world.execute(ReportFinished(lease_id=lease, outcome=Outcome.EXITED, exit_code=0))
    done = world.ask("GET", f"/api/v1/tasks/{task_id}").body["attempts"]
    assert [(each["exit_code"], bool(each["ended_at"])) for each in done] == [(0, True)]


def test_a_task_that_never_started_has_no_attempts(world) -> None:
    task_id = world.submit(command="true")
    assert world.ask("GET", f"/api/v1/tasks/{task_id}").body["attempts"] == []


def wait_for_attempt(world, number: int) -> None:
    deadline = time.monotonic() + 20
    while world.ask("GET", "/api/v1/tasks/1").body["attempt"] != number:
        assert time.monotonic() < deadline
        time.sleep(0.05)
