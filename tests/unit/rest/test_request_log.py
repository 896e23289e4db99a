"""Lines about requests: whose, for what, what came of it. Never what was in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from dgpu.service.rest.request_log import LINES_PER_SECOND, RequestLog


@pytest.fixture(autouse=True)
def told_all() -> Iterator[None]:
    logger = logging.getLogger("dgpu.rest")
    logger.setLevel(logging.INFO)
    structlog.reset_defaults()
    yield
    logger.setLevel(logging.NOTSET)


async def ask(
    log: RequestLog,
    method: str = "POST",
    path: str = "/api/v1/tasks",
    query: bytes = b"token=hush",
    **headers: str,
) -> str:
    """Returns the request's id, as the application sees it."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }

    async def send(message: Any) -> None: ...

    await log(scope, None, send)
    return str(scope["state"]["request_id"])


def answering(status: int, body: bytes) -> RequestLog:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return RequestLog(app)


@pytest.mark.parametrize("given", ["deploy-7", "a", "0123:ab.c_d-e", "x" * 64])
async def test_a_sane_id_of_the_client_is_kept(given: str) -> None:
    assert await ask(answering(200, b"{}"), x_request_id=given) == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", 'a"b', "a\nevent=agent_offline", "-a", "ü"])
async def test_any_other_is_replaced(given: str) -> None:
    log = answering(200, b"{}")
    first, second = await ask(log, x_request_id=given), await ask(log, x_request_id=given)
    assert given not in {first, second}
    assert first != second


async def test_a_line_leads_from_the_request_to_its_task() -> None:
    with capture_logs() as lines:
        await ask(answering(201, b'{"task_id":"task-7","status":"pending"}'), x_request_id="r1")
        await ask(answering(201, b'{"task_ids":["task-8","task-9"]}'))
    assert (lines[0]["event"], lines[0]["request_id"], lines[0]["task"]) == ("request_done", "r1", "task-7")
    assert (lines[1]["first"], lines[1]["count"]) == ("task-8", 2)


async def test_a_refusal_says_its_cause() -> None:
    with capture_logs() as lines:
        await ask(answering(422, b'{"code":"never_fits","detail":"hush","status":422}'))
        await ask(answering(503, b'{"code":"too_busy"}'), method="GET")
    assert [(line["event"], line["cause"], line["log_level"]) for line in lines] == [
        ("request_refused", "never_fits", "info"),
        ("request_refused", "too_busy", "warning"),
    ]
    assert "hush" not in repr(lines)


async def test_reads_are_not_told_at_this_level() -> None:
    with capture_logs() as lines:
        await ask(answering(200, b'{"task_id":"task-7"}'), method="GET")
    assert lines == []


async def test_beyond_a_rate_requests_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgpu.service.rest.request_log.time.monotonic", lambda: 5.0)
    log = answering(201, b'{"task_id":"task-7"}')
    with capture_logs() as lines:
        await asyncio.gather(*(ask(log) for _ in range(LINES_PER_SECOND + 30)))
        await ask(answering(422, b"{}"))  # another name is told all the same
        log.flush()
    assert [line["event"] for line in lines].count("request_done") == LINES_PER_SECOND + 1
    assert (lines[-1]["count"], lines[-1]["event"]) == (30, "request_done")


async def test_many_who_look_do_not_hide_one_who_changes_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgpu.service.rest.request_log.time.monotonic", lambda: 5.0)
    logging.getLogger("dgpu.rest").setLevel(logging.DEBUG)
    log = answering(200, b"{}")
    with capture_logs() as lines:
        await asyncio.gather(*(ask(log, method="GET") for _ in range(LINES_PER_SECOND + 30)))
        await ask(log, x_request_id="r1")
    assert [line["method"] for line in lines if line["request_id"] == "r1"] == ["POST"]


async def test_an_answer_that_is_no_json_is_no_trouble() -> None:
    with capture_logs() as lines:
        await ask(answering(400, b"\xff\xfe"))
        await ask(answering(200, b"[1,2]"))
        await ask(answering(200, b'{"task_id":7}'))
    assert len(lines) == 3


async def test_a_standby_that_a_load_balancer_asks_for_the_master_is_silent() -> None:
    """Such a probe comes several times a second, and is refused for years."""
    with capture_logs() as lines:
        await ask(answering(503, b"{}"), "GET", "/ready", b"role=master")
        assert lines == []
        await ask(answering(503, b"{}"), "GET", "/ready", b"")
    assert [line["log_level"] for line in lines] == ["warning"]
