"""The load of a run: submits through the SDK, each with its own key, repeated until a scheduler acknowledges it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dgpu.client.errors import DgpuError
from dgpu.client.sync import Client
from dgpu.entry.chaos.history import HELD, LONG, RUN, FailedCall, Submit

RUNS_PER_SECOND = 3.0  # each of them starts processes
_THREADS = 32  # calls at the same time; more than the rate needs, because a busy engine is slow
_CALL_S = 10.0  # half of it for each scheduler
_RETRY_S = 0.1
_BEHIND_S = 1.0  # further behind, the pace begins anew: no burst after an outage


class Load:
    """Held tasks give the rate, some tasks run and note their steps in the ledger."""

    def __init__(self, urls: Mapping[str, str], ledger: Path, rate: float, now: Callable[[], float]) -> None:
        self.submits: list[Submit] = []
        self.failed_calls: list[FailedCall] = []
        self.problem = ""  # a refusal that no fault explains
        self._names = {url: name for name, url in urls.items()}
        self._ledger = ledger
        self._now = now
        self._enough = threading.Event()
        held = {"name": HELD, "tenant_id": HELD, "command": "true", "held": True}
        run = {"name": RUN, "tenant_id": RUN, "command": self.noted("sleep 0.2"), "gpu_count": 1}
        self._threads = [
            threading.Thread(target=self._submit_all, args=(held, rate / _THREADS), name="held", daemon=True)
            for _ in range(_THREADS)
        ]
        self._threads.append(
            threading.Thread(target=self._submit_all, args=(run, RUNS_PER_SECOND), name="run", daemon=True)
        )

    def noted(self, work: str) -> str:
        """A command that writes one line at its begin and one at its end."""
        begin, end = (
            f'echo "{sign} $DGPU_TASK_ID $DGPU_ATTEMPT $DGPU_NODE" >>{self._ledger}' for sign in "+-"
        )
        return f"{begin}; {work}; {end}"

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Calls under way end first."""
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def submit_long(self, count: int, release: Path) -> list[int]:
        """Tasks that run through all faults, until the file exists."""
        wait = f"while [ ! -e {release} ]; do sleep 0.5; done"
        task = {
            "name": LONG,
            "tenant_id": LONG,
            "command": self.noted(wait),
            "gpu_count": 1,
            "timeout_seconds": 86_000,
        }
        client = self._client()
        for _ in range(count):
            self._submit(client, task)
        return [each.number for each in self.submits[-count:]]

    def _client(self) -> Client:
        return Client(list(self._names), timeout_seconds=_CALL_S)

    def _submit_all(self, task: dict[str, Any], per_second: float) -> None:
        client, interval_s = self._client(), 1 / per_second
        next_s = time.monotonic()
        while not self._enough.is_set() and not self.problem:
            self._submit(client, task)
            next_s = max(next_s + interval_s, time.monotonic() - _BEHIND_S)
            self._enough.wait(max(0.0, next_s - time.monotonic()))

    def _submit(self, client: Client, task: dict[str, Any]) -> None:
        key, first_s = str(uuid.uuid4()), self._now()
        while True:
            sent_s = self._now()
            try:
                answer = client.submit(idempotency_key=key, **task)
            except DgpuError as error:
                self.failed_calls.append(FailedCall(sent_s=sent_s, failed_s=self._now(), error=str(error)))
                if 400 <= error.status < 500:
                    self.problem = f"refused: a submit got {error.status}: {error}"
                    return
                if self._enough.wait(_RETRY_S):
                    return  # the outcome is not known, so it is not in the history
                continue
            by = self._names[client.answered_by.url if client.answered_by else client.url]
            self.submits.append(
                Submit(
                    key=key,
                    sent_s=first_s,
                    acknowledged_s=self._now(),
                    by=by,
                    number=int(answer.task_id.removeprefix("task-")),
                    runs=task["name"] != HELD,
                )
            )
            return
