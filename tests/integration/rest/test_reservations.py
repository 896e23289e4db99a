"""Reservations over HTTP: in the queue, in `show`, in `why`, and the tasks that wait because of them."""

from __future__ import annotations

from datetime import datetime

from dgpu.cli.queue import starts_by
from dgpu.cli.show import fields
from dgpu.cli.why import page
from dgpu.core.commands import ReportFinished
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome
from rest_world import RestWorld


def test_a_reservation_is_seen_everywhere(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(reservations=1)) as world:
        world.add_node(gpus=2)
        for _ in range(2):
            world.submit(timeout_seconds=600)
        large = world.submit(gpu_count=2, timeout_seconds=60)
        small = world.submit(timeout_seconds=3_000)
        world.execute(ReportFinished(lease_id=LeaseId(1), outcome=Outcome.EXITED))

        queued = {entry["task_id"]: entry for entry in world.ask("GET", "/api/v1/queue").body["queue"]}
        assert list(queued) == [large, small], "the GPU that is free is kept"
        assert queued[large]["reserved_nodes"] == ["n1"]
        assert (queued[small]["reserved_nodes"], queued[small]["reserved_start"]) == ([], None)
        reserved_start = queued[large]["reserved_start"]
        shown = world.ask("GET", f"/api/v1/tasks/{large}").body
        left = datetime.fromisoformat(reserved_start) - datetime.fromisoformat(shown["created_at"])
        assert 600 < left.total_seconds() <= 611

        told = world.ask("GET", f"/api/v1/tasks/{large}/why").body
        assert told["reservation"] == shown["reservation"]
        assert told["reservation"]["at"] == reserved_start
        assert told["reservation"]["waits_for"] == ["task-2"]
        assert any(line.startswith("Reservation: on n1, starts by ") for line in page(told, shown))
        assert dict(fields(shown))["reservation"].startswith("on n1, starts by ")
        assert starts_by(queued[large])

        other = world.ask("GET", f"/api/v1/tasks/{small}/why").body
        assert other["reservation"] is None
        (blocker,) = [each for each in other["blockers"] if each["code"] == "reserved_for"]
        assert (blocker["task"], blocker["node"]) == (large, "n1")
        listed = world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"]
        assert {task["task_id"]: task["reason"] for task in listed} == {
            large: "gpus_busy",
            small: "reserved_for",
        }


def test_a_time_that_nobody_knows_is_told_as_unknown(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(reservations=1)) as world:
        world.add_node(gpus=2)
        world.submit(pool="online")  # no time limit
        large = world.submit(gpu_count=2, pool="online", timeout_seconds=60)
        (entry,) = world.ask("GET", "/api/v1/queue").body["queue"]
        assert (entry["reserved_start"], entry["reserved_nodes"], starts_by(entry)) == (
            None,
            ["n1"],
            "unknown",
        )
        told = world.ask("GET", f"/api/v1/tasks/{large}/why").body
        assert told["reservation"]["at"] is None
        shown = world.ask("GET", f"/api/v1/tasks/{large}").body
        assert "Reservation: on n1, start unknown, waits for task-1" in page(told, shown)


def test_whoever_would_fit_but_for_reservations_says_so_in_every_list(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(reservations=1)) as world:
        world.add_node(gpus=2)
        for _ in range(2):
            world.submit(timeout_seconds=600)
        large = world.submit(gpu_count=2)
        small = [world.submit(timeout_seconds=3_000 + more) for more in range(40)]  # too many for one page
        world.execute(ReportFinished(lease_id=LeaseId(1), outcome=Outcome.EXITED))

        listed = {
            task["task_id"]: task for task in world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"]
        }
        assert {listed[task_id]["reason"] for task_id in small} == {"reserved_for"}
        assert listed[small[-1]]["waiting"].startswith(f"it would delay {large}")
        assert listed[small[0]]["waiting"] == "free GPUs are reserved for other tasks"
        (first, *_) = world.ask("GET", f"/api/v1/tasks/{small[0]}/why").body["blockers"]
        assert first["code"] == "reserved_for"
