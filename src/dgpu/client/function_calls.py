"""Calls about functions: results, workers, and large arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from dgpu.client.call import Call
from dgpu.client.request import Request, api_path, encode, given, new_key
from dgpu.wire.answers import SubmittedMany
from dgpu.wire.call_answers import CallResult, CallResults, WorkerList, WorkerRow
from dgpu.wire.upload_answers import UploadAnswer

MAX_ASKED = 1_000


class FunctionCalls:
    @Call
    def submit_calls(
        self, task: Mapping[str, Any], calls: Sequence[str], *, idempotency_key: str | None = None
    ) -> Request[list[str]]:
        """One function with many arguments, all or nothing: at most 10,000 calls and 8 MiB. `task` has all fields but
        the arguments; a call is msgpack of [args, kwargs] in base64. Returns the ids.
        """
        body, headers = encode({"task": task, "calls": calls}), new_key(idempotency_key)
        request = Request("POST", api_path("tasks", "batch"), SubmittedMany, body=body, headers=headers)
        return request.picking(lambda submitted: submitted.task_ids)

    @Call
    def result(self, task_id: str | int, *, wait: float = 0) -> Request[CallResult]:
        """The result of a function. Returns after `wait` seconds (at most 60) at the latest, ended or not."""
        return Request("GET", api_path("tasks", task_id, "result", wait=wait or None), CallResult)

    @Call
    def results(self, task_ids: Sequence[str], *, wait: float = 0) -> Request[CallResults]:
        """Results of the functions that have ended, of at most 1,000. Waits up to `wait` seconds for the first one
        (at most 60).
        """
        path = api_path("tasks", "results")
        return Request("POST", path, CallResults, body=given(task_ids=list(task_ids), wait=wait))

    @Call
    def result_content(self, task_id: str | int) -> Request[bytes]:
        """A large result, in msgpack."""
        path = api_path("tasks", task_id, "result", "content")
        return Request("GET", path, bytes, headers={"Accept": "application/octet-stream"}, is_raw=True)

    @Call
    def put_content(self, content: bytes, *, tenant: str | None = None) -> Request[str]:
        """Stores large arguments like an upload. Returns their SHA-256."""
        path = api_path("uploads", hashlib.sha256(content).hexdigest(), tenant=tenant)
        headers = {"Content-Type": "application/octet-stream"}
        return Request("PUT", path, UploadAnswer, body=content, headers=headers).picking(
            lambda put: put.sha256
        )

    @Call
    def workers(self, *, tenant: str | None = None) -> Request[Sequence[WorkerRow]]:
        """Processes that keep models loaded for functions."""
        path = api_path("workers", tenant=tenant)
        return Request("GET", path, WorkerList).picking(lambda found: found.workers)
