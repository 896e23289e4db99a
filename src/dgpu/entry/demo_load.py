"""The workload of the demo: sixty short processes, some of which fail on purpose."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import msgspec

NODES = 4
CARDS = "2xV100"
GPUS = 8
_SECONDS = (0.6, 1.0, 1.4, 2.0, 2.6)
_LEVELS = ("normal", "normal", "low", "high", "normal", "low", "critical")

_LIVELY = 60
_LIVELY_SECONDS = (20, 35, 50, 25, 40)
_LIVELY_NAMES = ("train", "evaluate", "sweep", "render")
_LIVELY_TENANTS = ("vision", "speech", "search")


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A task and its expected end."""

    task: dict[str, Any]
    status: str = "success"
    reason: str = ""  # empty: any
    exit_code: int | None = None
    attempts: int = 1  # 0: never started


class Ledger:
    """Every attempt writes a line at its start and its end to a file: a record independent of the scheduler."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def command(self, middle: str) -> str:
        sign = f'echo "$DGPU_TASK_ID $DGPU_ATTEMPT {{}}" >> {self.file}'
        return f"{sign.format('in')}; {middle}; code=$?; {sign.format('out')}; exit $code"

    def starts(self) -> collections.Counter[tuple[str, str]]:
        return collections.Counter((task, attempt) for task, attempt, sign in self._lines() if sign == "in")

    def ends(self) -> int:
        return sum(1 for _, _, sign in self._lines() if sign == "out")

    def twice(self) -> list[str]:
        """Attempts that started more than once: there must be none."""
        return [
            f"{task} attempt {attempt}" for (task, attempt), number in self.starts().items() if number > 1
        ]

    def _lines(self) -> list[tuple[str, str, str]]:
        try:
            text = self.file.read_text(encoding="ascii")
        except FileNotFoundError:
            return []
        lines = [line.split() for line in text.splitlines()]
        return [(parts[0], parts[1], parts[2]) for parts in lines if len(parts) == 3]


def long_tasks(ledger: Ledger, number: int, release: Path) -> list[Planned]:
    """They run during the kills, until their release file exists, or for five minutes."""
    wait = f"n=0; while [ ! -e {release} ] && [ $n -lt 1500 ]; do sleep 0.2; n=$((n+1)); done"
    return [
        Planned(
            task={
                "name": f"training-{place}",
                "command": ledger.command(wait),
                "gpu_count": 1,
                "priority": "critical",
            },
            exit_code=0,
        )
        for place in range(1, number + 1)
    ]


def ordinary_tasks(ledger: Ledger, number: int) -> list[Planned]:
    planned = []
    for place in range(1, number + 1):
        task = {
            "name": f"batch-{place}",
            "command": ledger.command(f"sleep {_SECONDS[place % len(_SECONDS)]}"),
            "gpu_count": 2 if place % 5 == 0 else 1,
            "priority": _LEVELS[place % len(_LEVELS)],
        }
        planned.append(Planned(task=task, exit_code=0))
    return planned


def troubled_tasks(ledger: Ledger) -> dict[str, Planned]:
    """Tasks named after what happens to them."""
    again = 'test "$DGPU_ATTEMPT" -ge 2'
    return {
        "fails": Planned(
            task={"name": "fails", "command": ledger.command("sh -c 'exit 3'"), "priority": "critical"},
            status="failed",
            reason="exit_code",
            exit_code=3,
        ),
        "too-slow": Planned(
            task={
                "name": "too-slow",
                "command": ledger.command("sleep 600"),
                "timeout_seconds": 1.5,
                "priority": "critical",
            },
            status="failed",
            reason="timeout",
        ),
        "second-try": Planned(
            task={
                "name": "second-try",
                "command": ledger.command(again),
                "restart": "on-failure",
                "priority": "critical",
            },
            exit_code=0,
            attempts=2,
        ),
        "changed-mind": Planned(
            task={"name": "changed-mind", "command": ledger.command("sleep 600"), "priority": "critical"},
            status="cancelled",
        ),
        "patient": Planned(
            task={"name": "patient", "command": ledger.command("sleep 0.5"), "gpu_count": 2, "priority": 0},
            exit_code=0,
        ),
    }


def lively_tasks() -> list[dict[str, Any]]:
    """About five minutes of work of three tenants for the dashboard. Time limits let the scheduler predict starts."""
    tasks: list[dict[str, Any]] = []
    for place in range(_LIVELY):
        seconds = _LIVELY_SECONDS[place % len(_LIVELY_SECONDS)]
        tasks.append(
            {
                "name": f"{_LIVELY_NAMES[place % len(_LIVELY_NAMES)]}-{place + 1}",
                "command": f"for step in $(seq {seconds}); do echo step $step of {seconds}; sleep 1; done",
                "gpu_count": 2 if place % 6 == 5 else 1,
                "tenant_id": _LIVELY_TENANTS[place % len(_LIVELY_TENANTS)],
                "priority": _LEVELS[place % len(_LEVELS)],
                "timeout_seconds": seconds * 2,
            }
        )
    return tasks


IMPOSSIBLE: dict[str, Any] = {"name": "impossible", "command": "true", "gpu_count": 16}
