"""The load of the storm, and what must come of every task of it."""

from __future__ import annotations

import pathlib
import random
import sys
import threading
import time
from typing import Any

import msgspec

from dgpu.client import Client, DgpuError
from dgpu.wire.answers import TaskAnswer

_PROGRAM = pathlib.Path(__file__).with_name("checked_run.py")
_FINAL = frozenset({"success", "failed", "cancelled"})
_MAX_OPEN = 120  # tasks that are not over; more would only wait
_RETRIES = 100_000  # a client that never gives up: the storm restarts whatever it kills


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a task of the load was submitted for."""

    code: int = 0
    times_out: bool = False
    may_be_cancelled: bool = False


class Load(threading.Thread):
    """Submits, cancels and reads until it is told to stop. It remembers only what was acknowledged."""

    def __init__(self, url: str, runs_dir: pathlib.Path, seed: int) -> None:
        super().__init__(daemon=True, name="load")
        self._client = Client(url, retries=_RETRIES)
        self._runs_dir = runs_dir
        self._chance = random.Random(seed)
        self._enough = threading.Event()
        self._pause = threading.Event()
        self._idle = threading.Event()
        self._seen_final: dict[str, str] = {}
        self.open: dict[str, Wanted] = {}
        self.acknowledged = 0
        self.failures: list[str] = []

    def run(self) -> None:
        try:
            while not self._enough.is_set():
                if self._pause.is_set():
                    self._idle.set()
                    time.sleep(0.05)
                    continue
                self._idle.clear()
                self._step()
        except Exception as error:  # noqa: BLE001 - reported by the storm
            self.failures.append(f"a request failed: {error!r}")
        finally:
            self._idle.set()

    def pause(self, seconds: float) -> bool:
        """True: no request is under way any more."""
        self._pause.set()
        return self._idle.wait(seconds)

    def resume(self) -> None:
        self._idle.clear()
        self._pause.clear()

    def stop(self) -> None:
        self._enough.set()

    def _step(self) -> None:
        if len(self.open) - len(self._seen_final) < _MAX_OPEN and self._chance.random() < 0.6:
            self._submit()
        else:
            self._read()
        time.sleep(self._chance.uniform(0, 0.1))

    def _submit(self) -> None:
        chance = self._chance
        code = chance.randint(1, 99) if chance.random() < 0.2 else 0
        seconds = chance.uniform(4, 12) if chance.random() < 0.1 else chance.uniform(0.02, 1.5)
        task: dict[str, Any] = {
            "gpu_count": chance.choice((0, 1, 1, 1, 2)),
            "max_retries": 100,
            "env": {},
            "workdir": str(self._runs_dir),
        }
        wanted = Wanted(code=code)
        kind = chance.random()
        if kind < 0.08:
            task |= {"gpu_count": 1, "nodes": 2}
        elif kind < 0.16:
            task |= {"array": "0-4%2"}
        elif kind < 0.22:
            seconds, wanted = 600.0, Wanted(times_out=True)
            task |= {"timeout_seconds": 2}
        elif kind < 0.30:
            task |= {"gpu_count": 1, "gpu_share": 0.25, "env": {"STORM_SHARED": "1"}}
        elif kind < 0.38:
            wanted = Wanted(code=code, may_be_cancelled=True)
        task["command"] = [
            sys.executable,
            "-I",
            "-S",
            str(_PROGRAM),
            str(self._runs_dir),
            f"{seconds:.2f}",
            str(wanted.code),
        ]
        answer = self._client.submit(**task)
        for task_id in answer.task_ids:
            if task_id in self.open or task_id in self._seen_final:
                self.failures.append(f"{task_id} was given to two submits")
            self.open[task_id] = wanted
        self.acknowledged += answer.count
        if wanted.may_be_cancelled:
            self._client.cancel(answer.task_id)

    def _read(self) -> None:
        """What a reader was told once stays true."""
        if not self.open:
            return
        task_id = self._chance.choice(list(self.open))
        answer = self._client.get(task_id)
        before = self._seen_final.get(task_id)
        if before is not None and answer.status != before:
            self.failures.append(f"{task_id} was {before} and is {answer.status}")
        if answer.status in _FINAL:
            self._seen_final[task_id] = answer.status

    # Asked while the load pauses

    def check_open(self, seconds: float) -> list[str]:
        """Waits until every open task is over, then checks each; returns what is wrong."""
        wrong = []
        deadline = time.monotonic() + seconds
        for task_id, wanted in list(self.open.items()):
            answer = self._client.get(task_id)
            while answer.status not in _FINAL and time.monotonic() < deadline:
                time.sleep(0.2)
                answer = self._client.get(task_id)
            if answer.status not in _FINAL:
                wrong.append(f"{task_id} never ended: {answer.status}, {answer.reason}, on {answer.node}")
                continue
            before = self._seen_final.pop(task_id, answer.status)
            if before != answer.status:
                wrong.append(f"{task_id} was {before} and is {answer.status}")
            wrong += fault_of(answer, wanted)
            del self.open[task_id]
        return wrong

    def check_output(self, task_ids: list[str], seconds: float) -> list[str]:
        """The last attempt's first line is in the output, once the node has delivered it."""
        deadline = time.monotonic() + seconds
        wrong = []
        for task_id in task_ids:
            line = f"run {task_id}."
            while line not in (text := self._output(task_id)) and time.monotonic() < deadline:
                time.sleep(0.5)
            if line not in text:
                wrong.append(f"the output of {task_id} is not there: {text[:100]!r}")
        return wrong

    def _output(self, task_id: str) -> str:
        try:
            return self._client.logs(task_id)
        except DgpuError as error:
            return f"({error})"


def fault_of(answer: TaskAnswer, wanted: Wanted) -> list[str]:
    said = f"{answer.task_id} is {answer.status}, exit code {answer.exit_code}, reason {answer.reason}, {answer.error}"
    if wanted.may_be_cancelled and answer.status == "cancelled":
        return []
    if wanted.times_out:
        return (
            []
            if answer.status == "failed" and answer.reason == "timeout"
            else [f"{said}; it should time out"]
        )
    status = "failed" if wanted.code else "success"
    if answer.status != status or answer.exit_code != wanted.code:
        return [f"{said}; it should be {status} with {wanted.code}"]
    return []
