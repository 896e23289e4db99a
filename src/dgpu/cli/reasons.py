"""Why a task waits, in a few words that fit into a column. `dgpu why` has the whole text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dgpu.cli.formats import duration, memory
from dgpu.cli.output import Row
from dgpu.client.language import fill, language, waiting

_MAX_NAMED = 2  # tasks
_Facts: TypeAlias = Mapping[str, Any]


def short_reason(row: Row) -> str:
    """Of a waiting task. A reason without short words keeps its text."""
    blockers = row.get("blockers") or []
    text = waiting(blockers, str(row["waiting"] or row["reason"] or "waits for its turn"))
    if not blockers:
        return text
    code = blockers[0]["code"]
    facts = {name: value for name, value in blockers[0].items() if name != "code"}
    if used := language():
        return fill(used, "short", code, {**facts, **_derived(facts)}) or text
    try:
        return _SHORT[code](facts)
    except (KeyError, TypeError, ValueError):  # no short words, or other facts of an older or newer scheduler
        return text


def _derived(facts: _Facts) -> dict[str, Any]:
    """Facts that templates cannot compute."""
    found: dict[str, Any] = {}
    if isinstance(facts.get("tasks"), str):
        found |= {"first": _names(facts)[0], "others": facts.get("number", 1) - 1}
    if isinstance(facts.get("task"), str):
        found["task"] = facts["task"].removeprefix("task-")
    if isinstance(facts.get("busy"), int) and isinstance(facts.get("free"), int):
        found["total"] = facts["busy"] + facts["free"]
    for name in ("most_free_milli", "needed_milli"):
        if isinstance(facts.get(name), int):
            found[name] = facts[name] / 1_000
    return found


def _names(facts: _Facts) -> list[str]:
    return [each.strip().removeprefix("task-").partition(":")[0] for each in facts["tasks"].split(",")]


def _busy(facts: _Facts) -> str:
    free, busy = facts["free"], facts["busy"]
    return f"{busy}/{busy + free} GPUs busy" + (f", needs {facts['needed']}" if free else "")


def _after(facts: _Facts) -> str:
    names = _names(facts)
    if facts["number"] > _MAX_NAMED:
        return f"after {names[0]} +{facts['number'] - 1}"
    return f"after {', '.join(names)}"


def _nodes(facts: _Facts) -> str:
    if "free" in facts:
        return f"{facts['free']}/{facts['needed']} nodes free"
    return f"needs {facts['requested']} nodes, {facts['largest']} exist"


def _model(facts: _Facts) -> str:
    return f"no idle {facts['asked']}" if "asked" in facts else f"no {facts['requested']} here"


def _away(word: str) -> Callable[[_Facts], str]:
    return lambda facts: f"{facts['nodes']} {'node' if facts['nodes'] == 1 else 'nodes'} {word}"


_SHORT: dict[str, Callable[[_Facts], str]] = {
    "gpus_busy": _busy,
    "pool_quota": lambda facts: f"quota {facts['pool']} {facts['used']}/{facts['quota']}",
    "tenant_gpus": lambda facts: f"tenant {facts['held']}/{facts['limit']} GPUs",
    "tenant_running": lambda facts: f"tenant {facts['running']}/{facts['limit']} tasks",
    "tenant_memory": lambda facts: (
        f"tenant {memory(facts['held_mb'])}/{memory(facts['limit_mb'])} GPU memory"
    ),
    "tenant_budget": lambda facts: f"budget {facts['used_hours']}/{facts['limit_hours']} GPU-hours",
    "guaranteed_to_others": lambda _: "guaranteed to others",
    "reserved_for": lambda facts: (
        f"reserved for {facts['task'].removeprefix('task-')}" if facts else "reserved"
    ),
    "dependency": _after,
    "dependency_failed": lambda _: "dependency failed",
    "held": lambda _: "held",
    "array_limit": lambda facts: f"array limit {facts['running']}/{facts['limit']}",
    "begin_time": lambda facts: f"begins in {duration(facts['left_ms'] / 1_000)}",
    "back_off": lambda facts: f"retry in {duration(facts['left_ms'] / 1_000)}",
    "tasks_ahead": lambda facts: f"{facts['ahead']} ahead" if facts else "its turn has not come",
    "no_worker": lambda facts: "worker starts" if facts["starting"] else "no worker yet",
    "workers_busy": lambda facts: f"{facts['workers']}/{facts['limit']} workers busy",
    "waits_for_warm": lambda facts: f"{facts['model']} in {duration(facts['wait_ms'] / 1_000)}",
    "no_nodes": lambda _: "no node yet",
    "no_room": lambda _: "no room now",
    "nodes": _nodes,
    "gpu_model": _model,
    "gpu_memory": lambda facts: f"no idle GPU with {memory(facts['asked_mb'])}",
    "gpu_share": lambda facts: f"{facts['gpus']} shared GPUs full",
    "cpus": lambda facts: f"{facts['most_free_milli'] / 1_000:g}/{facts['needed_milli'] / 1_000:g} cpus free",
    "ram": lambda facts: f"{memory(facts['most_free_mb'])}/{memory(facts['needed_mb'])} ram free",
    "node_full": lambda facts: f"{facts['limit']} tasks per node",
    "offline": _away("offline"),
    "unconfirmed": _away("unconfirmed"),
    "draining": _away("draining"),
}
