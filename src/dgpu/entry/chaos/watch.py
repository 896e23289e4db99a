"""Observers of a run: the schedulers' roles, reads at each of them, and the ledger of the tasks."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dgpu.entry.chaos.history import Leading, Read, Step

_LOOK_S = 0.2
_LEDGER_S = 0.05
_READ_S = 0.5
_PATIENCE_S = 2.0


class Watch:
    def __init__(self, urls: Mapping[str, str], ledger: Path, now: Callable[[], float]) -> None:
        self.leading: list[Leading] = []
        self.reads: list[Read] = []
        self.steps: list[Step] = []
        self._now = now
        self._ledger = ledger
        self._enough = threading.Event()
        self._known: set[tuple[str, int]] = set()
        self._threads = [threading.Thread(target=self._follow_ledger, name="ledger", daemon=True)]
        for name, url in urls.items():
            address = url.removeprefix("http://")
            for work in (self._follow_role, self._follow_reads):
                self._threads.append(threading.Thread(target=work, args=(name, address), daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _follow_role(self, name: str, address: str) -> None:
        while not self._enough.wait(_LOOK_S):
            told = _get(address, "/ready?role=master")
            if told is None or told[0] != 200:
                continue
            epoch = int(told[2].get("epoch", 0))
            if (name, epoch) not in self._known:
                self._known.add((name, epoch))
                self.leading.append(Leading(at_s=self._now(), scheduler=name, epoch=epoch))

    def _follow_reads(self, name: str, address: str) -> None:
        """As clients read: the list of tasks."""
        while not self._enough.wait(_READ_S):
            sent_s = self._now()
            told = _get(address, "/api/v1/tasks?limit=1")
            status, headers = (told[0], told[1]) if told is not None else (0, {})
            lag = headers.get("dgpu-lag-ms", "")
            self.reads.append(
                Read(
                    sent_s=sent_s,
                    answered_s=self._now(),
                    by=name,
                    status=status,
                    role=headers.get("dgpu-role", ""),
                    lag_ms=int(lag) if lag.isdigit() else None,
                )
            )

    def _follow_ledger(self) -> None:
        """Times are those of this process: the nodes have no clock that counts."""
        self._ledger.touch()
        with self._ledger.open(encoding="ascii") as lines:
            begun = ""
            is_last = False
            while True:
                begun += lines.read()
                *whole, begun = begun.split("\n")
                self.steps += [self._step(line) for line in whole]
                if is_last:
                    return
                is_last = self._enough.wait(_LEDGER_S)

    def _step(self, line: str) -> Step:
        sign, task, attempt, node = line.split()
        number = int(task.removeprefix("task-"))
        return Step(at_s=self._now(), begins=sign == "+", number=number, attempt=int(attempt), node=node)


def _get(address: str, path: str) -> tuple[int, dict[str, str], dict[str, Any]] | None:
    """Status, headers and body; None: no answer."""
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
