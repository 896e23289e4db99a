"""`dgpu history` and `dgpu report`: tables for people, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from dgpu.cli.sparks import highest, mean, spark

from .conftest import problem, task

NAMES = (
    "utilization_percent",
    "memory_used_mb",
    "memory_reserved_mb",
    "memory_foreign_mb",
    "temperature_c",
    "power_w",
)
FRAME = {
    "since": "2026-05-04T10:00:00.000Z",
    "until": "2026-05-04T10:00:30.000Z",
    "step_seconds": 10,
    "times": [1, 11, 21],
}


def curves(*values):
    return {name: list(values) for name in NAMES}


def card(node, index):
    facts = {"model": "V100", "memory_total_mb": 32_768, "status": "idle", "health": {}}
    return {"id": f"GPU-{node}-{index}", "uuid": f"GPU-{node}-{index}", "node": node, "index": index, **facts}


@pytest.fixture
def cluster(server):
    more = ("memory_total_mb", "gpus", "gpus_busy", "tasks_waiting", "tasks_running")
    whole = {**curves(None, 20.0, 40.0), **{name: [None, 1, 2] for name in more}}
    server.answers["GET", "/api/v1/history/cluster"] = (200, {**FRAME, **whole, "max": whole})
    server.answers["GET", "/api/v1/gpus"] = (200, gpu_list([card("n1", 0)]))
    one = {"gpu": "GPU-n1-0", "node": "n1", "index": 0, "model": "V100", "memory_total_mb": 32_768}
    gpu = {**one, **curves(None, 0.0, 90.0), "max": curves(None, 0.0, 99.0)}
    server.answers["GET", "/api/v1/history/gpus"] = (200, {**FRAME, "gpus": [gpu]})
    return server


def gpu_list(gpus):
    return {"total": len(gpus), "idle": len(gpus), "busy": 0, "offline": 0, "error": 0, "gpus": gpus}


def test_history_draws_a_curve_for_each_gpu_and_for_the_cluster(dgpu, cluster):
    code, out, err = dgpu("--server", cluster.url, "history", "--since", "6h")
    assert code == 0
    head, whole, gpu = out.splitlines()
    assert head.split()[:3] == ["NODE", "GPU", "UTILIZATION"]
    assert whole.split()[:3] == ["(cluster)", "·▂▄", "30%"]
    assert gpu.split()[:5] == ["n1", "0", "·▁█", "45%", "99%"]
    assert "every 10 s" in err


def test_history_as_json_is_what_the_server_says(dgpu, cluster):
    _, out, _ = dgpu("--server", cluster.url, "history", "--json")
    document = json.loads(out)
    assert document["gpus"][0]["utilization_percent"] == [None, 0.0, 90.0]
    assert document["cluster"]["times"] == [1, 11, 21]


def test_history_of_a_large_cluster_shows_the_whole_and_asks_for_names(dgpu, cluster):
    cluster.answers["GET", "/api/v1/gpus"] = (200, gpu_list([card("n1", index) for index in range(65)]))
    code, out, err = dgpu("--server", cluster.url, "history")
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "65 GPUs: name nodes or GPUs" in err
    assert cluster.sent("GET", "/api/v1/history/gpus") == []
    assert dgpu("--server", cluster.url, "history", "n1")[0] == 2


def test_history_of_a_task_is_that_of_its_gpus_while_it_ran(dgpu, cluster):
    facts = {"allocated_gpus": ["GPU-x"], "attempt": 1}
    facts |= {"started_at": "2026-05-04T10:00:10.000Z", "finished_at": "2026-05-04T11:00:00.000Z"}
    cluster.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7, "success", **facts))
    code, out, _ = dgpu("--server", cluster.url, "history", "7")
    assert (code, "n1" in out) == (0, True)
    asked = cluster.queries["/api/v1/history/gpus"]
    assert asked["ids"] == "GPU-x"
    assert asked["since"].startswith("2026-05-04T10:00:00")
    assert asked["until"].startswith("2026-05-04T11:00:10")


def test_history_of_a_task_that_did_not_run_says_so(dgpu, cluster):
    cluster.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7))
    code, _, err = dgpu("--server", cluster.url, "history", "task-7")
    assert (code, "task-7 has not started" in err) == (5, True)
    code, _, err = dgpu("--server", cluster.url, "history", "task-7", "n1")
    assert (code, "shown alone" in err) == (2, True)


def test_history_refuses_what_it_cannot_show(dgpu, cluster):
    assert dgpu("--server", cluster.url, "history", "--metric", "noise")[0] == 2
    unknown = problem(404, "unknown_gpu", "There is no GPU 'x'.")
    cluster.answers["GET", "/api/v1/history/gpus"] = (404, unknown)
    code, _, err = dgpu("--server", cluster.url, "history", "x")
    assert (code, "There is no GPU 'x'." in err) == (5, True)


def row(**facts):
    nothing = {
        "tenant": None,
        "pool": None,
        "user": None,
        "wait_mean_seconds": None,
        "wait_max_seconds": None,
    }
    return {**nothing, "gpu_hours": 1.5, "tasks": 2, "waiting": 1, **facts}


@pytest.fixture
def used(server):
    report = {
        **FRAME,
        "by": ["tenant"],
        "history_since": "2026-05-04T10:00:10.000Z",
        "rows": [row(tenant='la"b', wait_mean_seconds=75.0, wait_max_seconds=80.0), row(tenant="web")],
        "total": row(gpu_hours=3.0, tasks=4),
        "truncated": False,
    }
    server.answers["GET", "/api/v1/history/usage"] = (200, report)
    return server


def test_a_report_is_a_table_with_a_total(dgpu, used):
    code, out, err = dgpu("--server", used.url, "report", "--since", "30d")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["TENANT", "GPU-HOURS", "TASKS"]
    assert "1m15s" in lines[1]
    assert lines[-1].split()[:3] == ["(total)", "3.00", "4"]
    assert "The history begins at" in err


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_report_that_is_not_complete_says_so_beside_its_figures(dgpu, used, form):
    assert "not complete" not in dgpu("--server", used.url, "report", "--format", form)[2]
    answer = used.answers["GET", "/api/v1/history/usage"][1]
    answer |= {"history_behind": 4_741, "history_behind_seconds": 61.23}
    code, out, err = dgpu("--server", used.url, "report", "--format", form)
    assert (code, "not complete" in out) == (0, False)
    said = "These figures are not complete: the history is 4,741 groups (61.2 s) behind. See the scheduler's log."
    assert said in " ".join(err.split())


def test_a_report_by_task_has_a_row_for_each(dgpu, used):
    facts = {"task": "task-3", "name": "train", "status": "success", "gpu_percent": 81, "run_seconds": 75.0}
    used.answers["GET", "/api/v1/history/usage"][1]["rows"] = [row(**facts)]
    _, out, _ = dgpu("--server", used.url, "report", "--by", "task")
    assert used.queries["/api/v1/history/usage"]["by"] == "task"
    assert out.splitlines()[1].split() == ["task-3", "train", "success", "-", "1.50", "81%", "1m15s"]
    _, out, _ = dgpu("--server", used.url, "report", "--by", "task", "--format", "csv")
    (told,) = csv.DictReader(io.StringIO(out))
    assert (told["task"], told["name"], told["gpu_percent"]) == ("task-3", "train", "81")
    code, _, err = dgpu("--server", used.url, "report", "--by", "task,user")
    assert (code, "stands alone" in err) == (2, True)


def test_a_report_as_csv_can_be_read_by_anything(dgpu, used):
    _, out, _ = dgpu("--server", used.url, "report", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [each["tenant"] for each in rows] == ['la"b', "web"]
    assert [each["gpu_hours"] for each in rows] == ["1.5", "1.5"]
    assert [each["wait_mean_seconds"] for each in rows] == ["75.0", ""]


def test_what_a_spreadsheet_would_carry_out_is_made_harmless(dgpu, used):
    """Users choose their labels, and somebody else opens the report."""
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "ann", "a=b", ""]
    _, report = used.answers["GET", "/api/v1/history/usage"]
    report["rows"] = [row(user=text) for text in texts]
    _, out, _ = dgpu("--server", used.url, "report", "--by", "user", "--format", "csv")
    found = [each["user"] for each in csv.DictReader(io.StringIO(out, newline=""))]
    assert found == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "ann", "a=b", ""]
    assert "apostrophe" in dgpu("report", "--help")[1]


def test_a_key_that_is_named_twice_is_a_column_once(dgpu, used):
    _, out, _ = dgpu("--server", used.url, "report", "--by", "tenant, pool,tenant", "--format", "csv")
    assert out.splitlines()[0].split(",")[:3] == ["tenant", "pool", "gpu_hours"]
    _, out, _ = dgpu("--server", used.url, "report", "--by", "tenant,tenant")
    assert out.splitlines()[0].split()[:2] == ["TENANT", "GPU-HOURS"]


@pytest.mark.parametrize("flags", [("--format", "json"), ("--json",), ("-o", "json")])
def test_a_report_as_json_is_the_server_s_answer(dgpu, used, flags):
    _, out, _ = dgpu("--server", used.url, "report", *flags)
    assert json.loads(out)["total"]["gpu_hours"] == 3.0


def test_a_report_refuses_unknown_words_and_passes_on_what_the_server_refuses(dgpu, used):
    assert dgpu("--server", used.url, "report", "--by", "colour")[0] == 2
    assert dgpu("--server", used.url, "report", "--format", "xml")[0] == 2
    refused = problem(400, "invalid_query", "since: Expected a time.")
    used.answers["GET", "/api/v1/history/usage"] = (400, refused)
    code, _, err = dgpu("--server", used.url, "report", "--since", "soon")
    assert (code, "since: Expected a time." in err) == (2, True)


def test_a_spark_shows_peaks_and_gaps():
    assert spark([0, 100, None, 50], width=4, most=100) == "▁█·▅"
    assert spark([0] * 99 + [100], width=10, most=100) == "▁▁▁▁▁▁▁▁▁█"
    assert spark([0, 0], width=5) == "▁▁"
    assert spark([], width=5) == ""
    assert (mean([None, 1, 3]), mean([None]), highest([None, 2])) == (2.0, None, 2)
