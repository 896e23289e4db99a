"""The description of the API: Litestar's routes, and the hot calls from the table of fields."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from litestar import MediaType, Request, Response, get

from dgpu.service.access.operations import OPEN_OPERATIONS, OPERATIONS
from dgpu.service.rest.describe_browser import browser_calls, browser_schemas
from dgpu.service.rest.tasks import Given
from dgpu.wire.alert_fields import SILENCE_FIELDS
from dgpu.wire.answers import PROBLEM_JSON
from dgpu.wire.change_requests import TERMS
from dgpu.wire.secret_body import SECRET_BODY_FIELDS
from dgpu.wire.task_fields import TASK_FIELDS
from dgpu.wire.tenant_fields import QUOTA_FIELDS, TENANT_FIELDS
from dgpu.wire.token_fields import TOKEN_FIELDS

TITLE = "dgpu scheduler"
_JSON = "application/json"
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "detail": {"type": "string"},
                    "code": {"type": "string"},
                },
            },
        },
    },
}
_A_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_REFUSALS = {
    "400": "The body is not as expected; `errors` names the fields.",
    "413": "The body is too large.",
    "415": "Content-Type is not application/json, or Content-Encoding is not identity.",
    "422": "It can never run here, a limit forbids it, or it is not supported yet.",
    "429": "Too many tasks wait, or too many idempotency keys of the last hour are stored.",
    "503": "Too busy; try again.",
    "507": "The disk is full.",
}


def task_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {**field.schema, "description": field.about} for name, field in TASK_FIELDS.items()
        },
    }


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """Adds the parts that Litestar does not know."""
    schema = json.loads(json.dumps(schema, default=str))
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas["Task"] = task_schema()
    schemas["Problem"] = _PROBLEM
    task = {"$ref": "#/components/schemas/Task"}
    one = {"task_id": {"type": "string"}, "status": {"type": "string"}, "created_at": {"type": "string"}}
    many = {"task_ids": {"type": "array", "items": {"type": "string"}}}
    paths = schema["paths"]
    paths.setdefault("/api/v1/tasks", {})["post"] = _call(
        "Submit a task", "201 means that the task is on disk.", task, one, key=True
    )
    paths["/api/v1/tasks/batch"] = {
        "post": _call("Submit many tasks", "All or nothing; at most 8 MiB.", _batch(task), many, key=True)
    }
    paths.setdefault("/api/tasks", {})["post"] = _call(
        "Submit a task (workstation form)",
        "Without a command the task is an allocation.",
        task,
        one,
        key=True,
    )
    _describe_cancel(paths)
    _describe_quota(paths)
    _describe_quota_answer(paths)
    _describe_whatif(paths, task)
    _describe_alerts(paths)
    paths.update(browser_calls())
    schema["components"]["schemas"] = {**browser_schemas(), **schemas}
    for path, item in paths.items():
        for method, operation in item.items():
            if isinstance(operation, dict) and "responses" in operation:
                _describe_problems(operation["responses"])
                _describe_rights(operation, f"{method.upper()} {path}")
    return schema


def _batch(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "oneOf": [
            {
                "type": "object",
                "required": ["tasks"],
                "properties": {"tasks": {"type": "array", "items": task, "minItems": 1, "maxItems": 10_000}},
            },
            {
                "type": "object",
                "required": ["task", "count"],
                "properties": {"task": task, "count": {"type": "integer", "minimum": 1, "maximum": 10_000}},
            },
            {
                "type": "object",
                "description": "Many calls of one function: the args_msgpack of each.",
                "required": ["task", "calls"],
                "properties": {"task": task, "calls": {"type": "array", "items": {"type": "string"}}},
            },
        ]
    }


def _describe_problems(responses: dict[str, Any]) -> None:
    """Every refusal is a problem. Litestar describes its own form of 400, which this server never sends."""
    for status, response in responses.items():
        if status.startswith(("4", "5")):
            text = _REFUSALS.get(status, response["description"])
            responses[status] = _answer(text, _A_PROBLEM, PROBLEM_JSON)
    responses["default"] = _answer("A problem.", _A_PROBLEM, PROBLEM_JSON)


def _describe_rights(operation: dict[str, Any], name: str) -> None:
    """KeyError: a call that is in no table."""
    if name not in OPEN_OPERATIONS:
        operation["x-dgpu-action"] = OPERATIONS[name].value
        operation["description"] = f"{operation.get('description', '')} Action: {OPERATIONS[name].value}."


def _describe_whatif(paths: dict[str, Any], task: dict[str, Any]) -> None:
    node = {"type": "string", "description": "A node's id."}
    kind = {
        "type": "object",
        "required": ["gpus", "model"],
        "properties": {
            **{name: {"type": "integer"} for name in ("gpus", "count", "memory_mb", "ram_mb")},
            "model": {"type": "string"},
            "cpus": {"type": "number"},
        },
    }
    quota = {
        "type": "object",
        "properties": {
            "online_percent": {"type": "number", "minimum": 0, "maximum": 1},
            "mode": {"enum": ["strict", "borrow"]},
            "reclaim": {"enum": ["wait", "stop"]},
        },
    }
    changes = {
        "submit": {
            "oneOf": [task, {"type": "object", "properties": {"task": task, "count": {"type": "integer"}}}]
        },
        "quota": quota,
        "drain": node,
        "lose": node,
        "add_nodes": {"type": "array", "items": kind},
    }
    asked = [
        {"type": "object", "required": [name], "properties": {name: what}} for name, what in changes.items()
    ]
    paths["/api/v1/whatif"]["post"]["requestBody"] = {
        "required": True,
        "content": {_JSON: {"schema": {"oneOf": asked}}},
    }


def _describe_alerts(paths: dict[str, Any]) -> None:
    comment = {"comment": SILENCE_FIELDS["comment"]}
    for path, fields, needed in (
        ("/api/v1/alerts/silences", SILENCE_FIELDS, ["rule"]),
        ("/api/v1/alerts/{alert_id}/acknowledge", comment, []),
        ("/api/v1/alerts/test", {}, []),
    ):
        body = {"type": "object", "additionalProperties": False, "required": needed, "properties": fields}
        paths[path]["post"]["requestBody"] = {
            "required": bool(needed),
            "content": {_JSON: {"schema": body}},
        }


def _describe_quota(paths: dict[str, Any]) -> None:
    described: tuple[tuple[str, str, Mapping[str, Any], list[str]], ...] = (
        ("/api/v1/quota", "put", QUOTA_FIELDS, []),
        ("/api/v1/tenants", "post", TENANT_FIELDS, []),
        ("/api/v1/tenants/{tenant_id}", "put", TENANT_FIELDS, []),
        ("/api/v1/tokens", "post", TOKEN_FIELDS, ["name"]),
        ("/api/v1/tenants/{tenant_id}/secrets/{name}", "put", SECRET_BODY_FIELDS, []),
    )
    for path, method, fields, needed in described:
        properties = {name: {**field.schema, "description": field.about} for name, field in fields.items()}
        body = {"type": "object", "additionalProperties": False, "required": needed, "properties": properties}
        paths[path][method]["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}


def _describe_quota_answer(paths: dict[str, Any]) -> None:
    """With dry_run the effect, else the quota. Each has all required fields of the other, so oneOf is not possible."""
    schema = paths["/api/v1/quota"]["put"]["responses"]["200"]["content"][_JSON]["schema"]
    schema["anyOf"] = schema.pop("oneOf")


def _describe_cancel(paths: dict[str, Any]) -> None:
    names = ("status", "tenant", "pool", "priority", *TERMS)
    body = {
        "type": "object",
        "properties": {
            "task_ids": {"type": "array", "items": {"type": "string"}},
            **{name: {"description": "As in the list of tasks."} for name in names},
            "array": {"type": "string", "description": "The first task of an array."},
        },
    }
    paths["/api/v1/tasks/cancel"]["post"]["requestBody"] = {
        "required": True,
        "content": {_JSON: {"schema": body}},
    }
    whole: dict[str, Any] = {"array": {"type": "boolean", "default": False}}
    priority = {**whole, "priority": TASK_FIELDS["priority"].schema}
    again: dict[str, Any] = {"failed": {"type": "boolean", "default": False}}
    for name, known in (("hold", whole), ("release", whole), ("priority", priority), ("retry", again)):
        paths[f"/api/v1/tasks/{{task_id}}/{name}"]["post"]["requestBody"] = {
            "required": name == "priority",
            "content": {_JSON: {"schema": {"type": "object", "properties": known}}},
        }


def _call(summary: str, about: str, body: Any, answer: dict[str, Any], *, key: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "description": about,
        "requestBody": {"required": True, "content": {_JSON: {"schema": body}}},
        "responses": {
            "201": _answer("Accepted and durable.", {"type": "object", "properties": answer}, _JSON),
            **{status: _answer(text, _A_PROBLEM, PROBLEM_JSON) for status, text in _REFUSALS.items()},
        },
    }
    if key:
        operation["parameters"] = [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": {"type": "string", "maxLength": 200},
                "description": "Makes a retry safe for 24 hours, or for at least one hour when very many keys are in "
                "use. Beyond the bound of keys: 429 with code too_many_keys.",
            }
        ]
    return operation


def _answer(text: str, schema: Any, media_type: str) -> dict[str, Any]:
    return {"description": text, "content": {media_type: {"schema": schema}}}


@get("/openapi.json", include_in_schema=False)
async def openapi_json(rest: Given) -> Response[bytes]:
    return Response(json.dumps(rest.description()).encode(), media_type=_JSON)


@get("/docs", include_in_schema=False)
async def docs(rest: Given, request: Request[Any, Any, Any]) -> Response[str]:
    page = docs_page(rest.description(), host=request.headers["host"])
    return Response(page, media_type=MediaType.HTML)


def docs_page(schema: dict[str, Any], *, host: str) -> str:
    parts = [
        f"<h1>{TITLE}</h1><p>Version {html.escape(schema['info']['version'])}. <a href='/openapi.json'>OpenAPI</a></p>"
    ]
    for path in sorted(schema["paths"], key=_by_use):
        for method, operation in schema["paths"][path].items():
            if isinstance(operation, dict) and "responses" in operation:
                parts.append(_operation(path, method, operation, host))
    parts.append("<h2>A task as submitted</h2><table><tr><th>field</th><th>meaning</th></tr>")
    parts += [
        f"<tr><td><code>{name}</code></td><td>{html.escape(field.about)}</td></tr>"
        for name, field in TASK_FIELDS.items()
    ]
    parts.append("</table>")
    return _page(f"{TITLE}: API", "".join(parts))


def _by_use(path: str) -> tuple[bool, bool, str]:
    """Tasks come first, alternative forms of the same call last."""
    return not path.startswith("/api/v1/tasks"), not path.startswith("/api/v1/"), path


def _operation(path: str, method: str, operation: dict[str, Any], host: str) -> str:
    summary = html.escape(operation.get("summary", ""))
    about = html.escape(operation.get("description", ""))
    queries = [
        f"<li><code>{html.escape(p['name'])}</code> {html.escape(p.get('description', ''))}</li>"
        for p in operation.get("parameters", ())
        if p["in"] != "path"
    ]
    listed = f"<ul>{''.join(queries)}</ul>" if queries else ""
    curl = html.escape(curl_line(path, method, host))
    return (
        f"<h3><code>{method.upper()} {html.escape(path)}</code></h3><p><b>{summary}.</b> {about}</p>{listed}"
        f"<pre tabindex='0'>{curl}</pre>"  # it scrolls, so it must be reachable by keyboard
    )


_EXAMPLES = {
    "/api/v1/tasks/{task_id}/priority": '{"priority": 80}',
    "/api/v1/quota": '{"online_percent": 0.65}',
    "/api/v1/tokens": '{"name": "notebook", "user": "ann", "role": "user", "tenants": ["vision"]}',
    "/api/v1/tenants/{tenant_id}/secrets/{name}": '{"value": "hf_..."}',
    "/api/v1/tenants": '{"id": "vision", "max_gpus": 16, "weight": 2}',
    "/api/v1/tenants/{tenant_id}": '{"max_gpus": 16, "weight": 2}',
    "/api/v1/tasks": '{"command": "nvidia-smi", "gpu_count": 1}',
    "/api/v1/tasks/batch": '{"task": {"command": "sleep 1"}, "count": 100}',
    "/api/v1/whatif": '{"submit": {"command": "nvidia-smi", "gpu_count": 8}}',
    "/api/v1/tasks/cancel": '{"task_ids": ["task-42"]}',
    "/api/v1/alerts/silences": '{"rule": "agent_offline", "subject": "node-1", "seconds": 3600}',
    "/api/tasks": '{"tenant_id": "lab", "name": "hold", "gpu_request": 1, "memory_mb": 8000, "priority": 50}',
}


def curl_line(path: str, method: str, host: str) -> str:
    asked = path
    examples = {
        "{task_id}": "task-42",
        "{node_id}": "node-1",
        "{gpu_id}": "GPU-7",
        "{alert_id}": "alert-1",
        "{silence_id}": "silence-1",
        "{token_id}": "k2m4p6r7t2v5",
        "{tenant_id}": "vision",
        "{name}": "HF_TOKEN",
    }
    for name, example in examples.items():
        asked = asked.replace(name, example)
    url = f"http://{host}{asked}"
    if method == "post":
        example = _EXAMPLES.get(path, "{}")
        return f"curl -H 'Content-Type: application/json' -d '{example}' {url}"
    if method == "put":
        return f"curl -X PUT -H 'Content-Type: application/json' -d '{_EXAMPLES.get(path, '{}')}' {url}"
    return f"curl -X DELETE {url}" if method == "delete" else f"curl {url}"


def _page(title: str, body: str) -> str:
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
        "pre{background:#eee;padding:.5rem;overflow:auto}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem}"
        "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}pre{background:#222}a{color:#8bf}}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{style}</style></head><body>{body}</body></html>"
    )


ROUTES: tuple[Any, ...] = (openapi_json, docs)
