"""Short requests to a scheduler on this machine: readiness, number of nodes. Never through a proxy."""

from __future__ import annotations

import http.client
import json
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    status: int
    body: Any  # decoded JSON, or None


def ask(
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: Any = None,
    timeout_seconds: float = 2.0,
) -> Answer | None:
    """None: no answer."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    dial = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = dial(
        parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80), timeout=timeout_seconds
    )
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return Answer(status=response.status, body=_decoded(response.read(1 << 20)))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_ready(url: str) -> bool:
    answer = ask(url, "/ready")
    return answer is not None and answer.status == 200


def registrations(url: str) -> dict[str, str]:
    """Reachable nodes, with the time of their last registration."""
    answer = ask(url, "/api/v1/nodes")
    if answer is None or answer.status != 200 or not isinstance(answer.body, dict):
        return {}
    nodes = answer.body.get("nodes", ())
    return {node["id"]: str(node.get("registered_at")) for node in nodes if node.get("status") != "offline"}


def dashboard_url(url: str) -> str:
    """The address with a one-time code for any browser; without a code if the scheduler gives none."""
    answer = ask(url, "/api/v1/session/code", method="POST", body={})
    path = (answer.body or {}).get("url_path", "/") if answer is not None and answer.status == 201 else "/"
    return f"{url}{path}"


def running_tasks(url: str, *, started_before: datetime | None = None) -> list[str] | None:
    """Ids of at most 1,000 running tasks; None if the scheduler does not answer."""
    answer = ask(url, "/api/v1/tasks?status=running&limit=1000")
    if answer is None or answer.status != 200 or not isinstance(answer.body, dict):
        return None
    tasks = answer.body.get("tasks", ())
    if started_before is not None:
        tasks = [task for task in tasks if _started_before(task, started_before)]
    return [task["task_id"] for task in tasks]


def _started_before(task: dict[str, Any], moment: datetime) -> bool:
    started_at: str | None = task.get("started_at")
    return started_at is not None and datetime.fromisoformat(started_at) < moment


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
