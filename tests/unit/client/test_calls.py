"""What the SDK sends, and what it makes of answers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dgpu.client import errors, repeats
from dgpu.client.call import Blocking
from dgpu.client.calls import Calls
from dgpu.client.request import read_answer
from dgpu.client.stream import EventParser
from dgpu.client.task_calls import submit_parts


class Requests(Calls, Blocking):
    """Returns the request of each call instead of sending it."""

    def _do(self, request):
        return request


calls = Requests()


def test_many_tasks_are_split_by_number() -> None:
    parts = list(submit_parts({"command": str(i)} for i in range(25_000)))
    assert [len(json.loads(part.body)["tasks"]) for part in parts] == [10_000, 10_000, 5_000]
    assert len({part.headers["Idempotency-Key"] for part in parts}) == 3


def test_many_tasks_are_split_by_size() -> None:
    parts = list(submit_parts({"command": "x" * 100_000} for _ in range(200)))
    assert all(len(part.body) <= 8 << 20 for part in parts)
    assert sum(len(json.loads(part.body)["tasks"]) for part in parts) == 200
    assert len(parts) == 3


def test_no_tasks_are_no_call() -> None:
    assert list(submit_parts([])) == []


def test_ids_cannot_leave_their_place_in_the_path() -> None:
    assert calls.get("../nodes").path == "/api/v1/tasks/..%2Fnodes"
    assert calls.drain("a/b?c").path == "/api/v1/nodes/a%2Fb%3Fc/drain"


def test_filters_that_are_none_are_not_sent() -> None:
    assert calls.page(status=None, tenant="lab", limit=10).path == "/api/v1/tasks?tenant=lab&limit=10"
    assert json.loads(calls.cancel_where(status="pending", pool=None).body) == {"status": "pending"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_not_sent_as_nothing(number) -> None:
    for call, path in (
        (lambda: calls.submit(command="x", gpu_share=number), "gpu_share"),
        (lambda: calls.submit_copies(2, cpus=number), "task.cpus"),
        (lambda: list(submit_parts([{"cpus": number}])), "cpus"),
        (lambda: calls.set_tenant("lab", weight=number), "weight"),
        (lambda: calls.set_quota(online_percent=number), "online_percent"),
        (lambda: calls.silence_alerts("*", seconds=number), "seconds"),
        (lambda: calls.whatif({"add_nodes": [{"gpus": 1, "cpus": number}]}), r"add_nodes\[0\].cpus"),
    ):
        with pytest.raises(errors.BadRequest, match=f"^{path}: Expected a number, got"):
            call()
    body = json.loads(calls.submit(command="null", name=None).body)
    assert (body["command"], body["name"]) == ("null", None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.NotPermitted),
        (403, errors.NotPermitted),
        (404, errors.NotFound),
        (409, errors.Refused),
        (413, errors.BadRequest),
        (415, errors.BadRequest),
        (421, errors.NotPermitted),
        (422, errors.Refused),
        (429, errors.Refused),
        (500, errors.ServerFailed),
        (503, errors.ServerFailed),
        (507, errors.Refused),
    ],
)
def test_each_status_is_an_error_one_can_act_on(status, kind) -> None:
    problem = {
        "type": "about:blank",
        "title": "t",
        "status": status,
        "detail": "why",
        "code": "c",
        "errors": [],
    }
    with pytest.raises(kind, match="why") as caught:
        read_answer(calls.health(), status, json.dumps(problem).encode())
    assert (caught.value.code, caught.value.status) == ("c", status)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"status": "ok"}'])
def test_an_answer_that_is_not_ours_is_a_failure_of_the_server(body) -> None:
    with pytest.raises(errors.ServerFailed):
        read_answer(calls.health(), 200, body)
    with pytest.raises(errors.ServerFailed):
        read_answer(calls.health(), 502, body)


def test_fields_of_a_newer_server_are_ignored() -> None:
    assert read_answer(calls.health(), 200, b'{"status":"ok","version":"9","mood":"fine"}').version == "9"


def test_pauses_grow_and_end() -> None:
    pauses = list(repeats.pauses(6))
    assert len(pauses) == 6
    assert all(0 < pause <= repeats.LONGEST_RETRY_SECONDS for pause in pauses)
    assert max(pauses[3:]) > max(pauses[:2])


def test_a_client_that_never_gives_up_has_pauses_for_ever() -> None:
    """Doubling without a bound overflowed after a thousand tries, about half an hour into an outage."""
    assert max(repeats.pauses(2_000)) <= repeats.LONGEST_RETRY_SECONDS


def test_events_are_read_line_by_line() -> None:
    parser = EventParser()
    text = ': beat\nretry: 1\n\nevent: a\ndata: {"x":1}\n\nid: 5\nevent: b\ndata: {"y":\ndata: 2}\n\ndata: junk\n\n'
    found = [event for line in text.split("\n") if (event := parser.on_line(line))]
    assert [(event.id, event.type, event.facts) for event in found] == [
        ("", "a", {"x": 1}),
        ("5", "b", {"y": 2}),
    ]


def test_the_blocking_client_imports_nothing_heavy() -> None:
    """The command line starts with it."""
    code = (
        "import sys; from dgpu.client import Client, NotFound; Client('http://127.0.0.1:1');"
        "heavy = {'httpx', 'asyncio', 'litestar', 'grpc', 'dgpu.core', 'uvicorn', 'rich'} & set(sys.modules);"
        "print(sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
