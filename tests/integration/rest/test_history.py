"""The past over REST and through the SDK: charts, usage, timeline, events of a node; and every kind of bad request."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from dgpu.client.asynchronous import AsyncClient
from dgpu.client.sync import Client
from dgpu.core.commands import DrainNode, ResumeNode
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.service.history.reader import HISTORY_NAME, History
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.telemetry.file import TELEMETRY_NAME
from dgpu.service.telemetry.recorder import gather
from dgpu.service.telemetry.tiers import GPU_COLUMNS, RAW
from dgpu.service.telemetry.writer import TelemetryWriter

ROOT = "/api/v1/history"


@pytest.fixture
def cluster(world):
    """Two cards, one busy; the last three samples are in the file."""
    world.add_node("n1", gpus=2)
    world.submit(name="train", gpu_count=1, labels={"user": "ann"})
    writer = TelemetryWriter(world.folder / TELEMETRY_NAME)
    now = world.runtime.now_ms() // RAW.step_ms * RAW.step_ms
    world.runtime.telemetry[GpuId("GPU-n1-0")] = GpuSample(
        at=now, utilization_percent=80, memory_used_mb=9_000, temperature_c=60, power_w=200
    )
    world.runtime.telemetry[GpuId("GPU-n1-1")] = GpuSample(
        at=now, utilization_percent=0, memory_used_mb=100, memory_foreign_mb=0, temperature_c=40
    )
    for back in (2, 1, 0):
        writer.take(world.run(gather(world.runtime, now - back * RAW.step_ms, fresh_ms=60_000)))
    writer.close()
    return world


def get(world, path, status=200):
    reply = world.ask("GET", f"{ROOT}/{path}")
    assert reply.status == status, reply.body
    return reply.body


def known(curve):
    return [value for value in curve if value is not None]


def test_a_gpu_s_chart_is_in_columns_with_gaps(cluster):
    chart = get(cluster, "gpus/GPU-n1-0?since=10m")
    assert chart["step_seconds"] == 10
    assert all(len(chart[name]) == len(chart["times"]) == len(chart["max"][name]) for name in GPU_COLUMNS)
    assert {b - a for a, b in zip(chart["times"], chart["times"][1:], strict=False)} == {10}
    assert known(chart["utilization_percent"]) == [80.0] * 3
    assert known(chart["memory_reserved_mb"])[0] > 9_000
    assert chart["utilization_percent"][0] is None
    assert (chart["gpu"], chart["node"], chart["index"], chart["model"]) == ("GPU-n1-0", "n1", 0, "V100")


def test_a_number_that_a_card_does_not_tell_is_missing_and_not_0(cluster):
    chart = get(cluster, "gpus/n1:1?since=10m")
    assert chart["gpu"] == "GPU-n1-1"
    assert known(chart["utilization_percent"]) == [0.0] * 3
    assert known(chart["power_w"]) == []
    listed = {gpu["id"]: gpu for gpu in cluster.ask("GET", "/api/v1/gpus").body["gpus"]}
    assert listed["GPU-n1-1"]["power_w"] is None
    assert listed["GPU-n1-0"]["power_w"] == 200


def test_several_gpus_a_node_and_the_cluster(cluster):
    several = get(cluster, "gpus?ids=n1:0,GPU-n1-1,n1:0&since=10m")
    assert [gpu["gpu"] for gpu in several["gpus"]] == ["GPU-n1-0", "GPU-n1-1"]
    node = get(cluster, "nodes/n1?since=10m")
    assert known(node["utilization_percent"]) == [40.0] * 3
    assert known(node["memory_used_mb"]) == [9_100] * 3
    assert known(node["temperature_c"]) == [60] * 3
    assert len(node["gpus"]) == 2
    whole = get(cluster, "cluster?since=10m")
    assert known(whole["utilization_percent"]) == [40.0] * 3
    assert known(whole["gpus"]) == [2] * 3
    assert known(whole["gpus_busy"]) == [1] * 3
    assert known(whole["tasks_running"]) == [1] * 3
    assert known(whole["max"]["power_w"]) == [200] * 3


def test_the_queue_tells_what_waited_and_what_started(cluster):
    cluster.submit(gpu_count=2)
    queue = get(cluster, "queue?since=10m")
    assert known(queue["tasks_running"]) == [1] * 3
    assert sum(queue["started"]) == 1
    assert len(known(queue["wait_mean_seconds"])) == 1


def test_usage_tells_who_used_how_much_with_what_still_runs(cluster):
    report = get(cluster, "usage?since=1h&by=tenant,user")
    (row,) = report["rows"]
    assert (row["tenant"], row["user"], row["pool"]) == ("default", "ann", None)
    assert (row["tasks"], row["running"], row["started"]) == (1, 1, 1)
    assert report["history_since"] is None
    assert report["total"]["tasks"] == 1


def test_a_timeline_has_bars_with_an_open_end_for_what_runs(cluster):
    (bar,) = get(cluster, "timeline?since=1h&nodes=n1")["bars"]
    assert (bar["task_id"], bar["name"], bar["status"], bar["end"]) == ("task-1", "train", "running", None)
    assert bar["gpu_ids"] == ["GPU-n1-0"]
    assert get(cluster, "timeline?since=1h&nodes=elsewhere")["bars"] == []
    cluster.finish_running(exit_code=3)
    (bar,) = get(cluster, "timeline?since=2h")["bars"]
    assert (bar["status"], bar["end"] is None) == ("failed", False)


def test_what_happened_to_a_node_the_newest_first(cluster):
    cluster.execute(DrainNode(node_id=NodeId("n1"), reason="new fans"))
    cluster.execute(ResumeNode(node_id=NodeId("n1")))
    told = get(cluster, "nodes/n1/health")
    assert [event["type"] for event in told["events"]] == [
        "node_resumed",
        "node_draining",
        "agent_registered",
    ]
    assert told["events"][1]["facts"] == {"reason": "new fans"}
    short = get(cluster, "nodes/n1/health?limit=1")
    assert (short["truncated"], len(short["events"])) == (True, 1)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("gpus/GPU-none", "unknown_gpu"),
        ("gpus/n1:9", "unknown_gpu"),
        ("gpus?ids=n1:0,nope", "unknown_gpu"),
        ("nodes/none", "unknown_node"),
        ("nodes/none/health", "unknown_node"),
    ],
)
def test_an_unknown_id_is_404(cluster, path, code):
    assert get(cluster, path, 404)["code"] == code


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("cluster?since=yesterday", "since"),
        ("cluster?since=", "since"),
        ("cluster?since=5y", "since"),
        ("cluster?since=9999999999d", "since"),
        ("cluster?since=999999999d", "since"),
        ("cluster?since=401d", "since"),
        ("cluster?since=0001-01-01", "since"),
        ("cluster?since=9999-12-31T23:59:59Z", "since"),
        ("cluster?since=" + "9" * 5_000, "since"),
        ("cluster?since=1h&until=2h", "until"),
        ("cluster?since=1h&until=1h", "until"),
        ("cluster?since=1h&until=NaN", "until"),
        ("cluster?step=0", "step"),
        ("cluster?step=7", "step"),
        ("cluster?step=-10", "step"),
        ("cluster?since=30d&step=10", "step"),
        ("gpus/n1:0?step=1e9", "step"),
        ("queue?since=now", "since"),
        ("usage?by=colour", "by"),
        ("usage?by=", "by"),
        ("timeline?limit=0", "limit"),
        ("timeline?limit=5001", "limit"),
        ("timeline?nodes=" + ",".join(f"n{number}" for number in range(65)), "nodes"),
        ("gpus", "ids"),
        ("gpus?ids=" + ",".join(f"g{number}" for number in range(65)), "ids"),
        ("nodes/n1/health?limit=x", "limit"),
        ("cluster?sinse=1h", "sinse"),
    ],
)
def test_a_range_that_makes_no_sense_is_named(cluster, path, field):
    problem = get(cluster, path, 400)
    assert problem["code"] == "invalid_query"
    assert [error["path"] for error in problem["errors"]] == [field]
    assert len(problem["detail"]) < 400


@pytest.mark.parametrize("since", ["30s", "6h", "1.5d", "13d", "52w"])
def test_however_long_the_range_the_points_are_few(cluster, since):
    chart = get(cluster, f"cluster?since={since}")
    assert 1 <= len(chart["times"]) <= 1_001


def test_times_are_taken_as_people_and_programs_write_them(cluster):
    now = dt.datetime.now(dt.UTC)
    ago = now - dt.timedelta(minutes=30)
    for text in (ago.strftime("%Y-%m-%dT%H:%M:%SZ"), ago.isoformat().replace("+", "%2B"), ago.isoformat()):
        chart = get(cluster, f"cluster?since={text}")
        assert abs(chart["times"][0] - ago.timestamp()) <= 11


def test_a_damaged_telemetry_file_is_503_with_the_reason(world):
    world.add_node("n1")
    (world.folder / TELEMETRY_NAME).write_bytes(b"x" * 8_192)
    problem = get(world, "cluster", 503)
    assert problem["code"] == "telemetry_unreadable"
    assert get(world, "usage")["rows"] == []


def test_many_that_ask_the_same_get_one_answer_made_once(cluster):
    first = get(cluster, "usage?since=7d")
    cluster.submit(gpu_count=1)
    assert get(cluster, "usage?since=7d") == first
    assert get(cluster, "usage?since=8d")["total"]["tasks"] == 2


def test_the_sdk_asks_the_same(cluster):
    with Client(cluster.url) as client:
        assert known(client.gpu_history("n1:0", since="10m").utilization_percent) == [80.0] * 3
        assert len(client.gpus_history(["n1:0", "n1:1"], since="10m").gpus) == 2
        assert client.node_history("n1", since="10m").node == "n1"
        assert known(client.cluster_history(since="10m", step="10").gpus) == [2] * 3
        assert sum(client.queue_history(since="10m").started) == 1
        assert client.usage(since="1h", by=("user",)).rows[0].user == "ann"
        assert client.timeline(since="1h", nodes=["n1"]).total == 1
        assert client.node_health("n1").events[-1].type == "agent_registered"

    async def ask():
        async with AsyncClient(cluster.url) as client:
            return await client.usage(by=["pool"]), await client.gpu_history("n1:1", since="10m")

    report, chart = asyncio.run(ask())
    assert report.rows[0].pool == "batch"
    assert chart.gpu == "GPU-n1-1"


def test_a_sample_of_long_ago_is_not_recorded(cluster):
    late = cluster.runtime.now_ms() + 120_000
    batch = cluster.run(gather(cluster.runtime, late, fresh_ms=15_000))
    assert batch.gpu_ids == []
    assert batch.cluster[:6] == [None] * 6


def test_a_damaged_history_harms_nobody_who_does_not_ask_for_it(world) -> None:
    world.add_node("n1", 1)
    task_id = world.submit(command="true")
    world.ask("GET", "/api/v1/history/usage")
    for file in world.folder.glob(f"{HISTORY_NAME}*"):
        file.unlink()
    (world.folder / HISTORY_NAME).write_bytes(b"garbage" * 1_000)
    assert world.ask("GET", f"/api/v1/tasks/{task_id}").body["status"] == "running"
    told = world.ask("GET", f"/api/v1/tasks/{task_id}/events").body["events"]
    assert [event["type"] for event in told][:2] == ["task_submitted", "task_scheduled"]
    assert world.ask("GET", "/ready").body["ready"] is True
    refused = world.ask("GET", "/api/v1/history/usage?since=2h")
    assert (refused.status, refused.body["code"]) == (503, "history_damaged")
    assert "is being rebuilt from the journal" in refused.body["detail"]


def test_a_report_says_when_the_history_is_behind(cluster):
    assert get(cluster, "usage?since=2h")["history_behind"] == 0
    cluster.pause_history()
    cluster.submit(gpu_count=1)
    late = get(cluster, "usage?since=3h")
    assert late["history_behind"] > 0
    assert late["total"]["tasks"] == 1
    cluster.follower.paused = False
    cluster.run(caught_up(cluster))
    now = get(cluster, "usage?since=4h")
    assert (now["history_behind"], now["total"]["tasks"]) == (0, 2)


def test_a_report_waits_for_nothing(cluster, monkeypatch):
    """The report names what the history lacks; a second read would be a wait."""
    cluster.pause_history()
    cluster.submit(gpu_count=1)
    looks = []
    look = History.reach

    def counted(history):
        looks.append(1)
        return look(history)

    monkeypatch.setattr(History, "reach", counted)
    report = get(cluster, "usage?since=3h")
    assert report["history_behind"] > 0
    assert len(looks) <= 2, "one for the lag, one for the range"


async def caught_up(cluster):
    cluster.follower.catch_up()
