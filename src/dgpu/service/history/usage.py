"""Reports from the history: usage and waits by tenant, pool or user, attempts by node, events of a node.

GPU-hours count from placement to end, within the range; running attempts count up to now. A shared GPU counts with its
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dgpu.core.model.ids import task_name
from dgpu.service.history.reader import History, PastEvent
from dgpu.wire.answers import instant, instant_or_none
from dgpu.wire.history_answers import Bar, Timeline, Usage, UsageRow

By = Literal["tenant", "pool", "user", "task"]
MAX_ROWS = 1_000
_GPU_MS_PER_HOUR = 3_600_000 * 1_000  # of thousandths of a GPU

_KEYS: dict[By, str] = {
    "tenant": "t.tenant",
    "pool": "t.pool",
    "user": "coalesce(json_extract(t.labels, '$.user'), '')",
    "task": "t.id",
}
# An attempt without a reported end has ended too, unless its task still runs it.
_OPEN = "(a.ended_at = 0 AND t.status = 'running' AND t.attempt = a.attempt)"
_END = f"CASE WHEN a.ended_at > 0 THEN a.ended_at WHEN {_OPEN} THEN :now ELSE a.placed_at END"
_WITHIN = f"max(0, min({_END}, :until) - max(a.placed_at, :since))"
_OVERLAPS = "a.placed_at < :until AND (a.ended_at > :since OR a.ended_at = 0)"
_STARTS = "(a.attempt = 1 AND a.placed_at >= :since)"
# Each rank of a gang has a row: together they are one task.
_NUMBERS = f"""
    total({_WITHIN} * json_array_length(a.gpu_ids) * a.share_milli) AS gpu_ms,
    count(DISTINCT a.task_id) AS tasks, count(DISTINCT a.task_id * 1000000 + a.attempt) AS attempts,
    count(DISTINCT CASE WHEN a.ended_at > :until OR {_OPEN} THEN a.task_id END) AS running,
    total(CASE WHEN {_STARTS} THEN 1.0 / t.nodes END) AS started,
    total(CASE WHEN {_STARTS} THEN (a.placed_at - t.created_at) * 1.0 / t.nodes END) AS wait_ms,
    max(CASE WHEN {_STARTS} THEN a.placed_at - t.created_at END) AS wait_max_ms,
    total({_WITHIN} * 1.0 / t.nodes) AS run_ms, total(u.gpu_samples) AS samples,
    total(u.gpu_percent * u.gpu_samples) AS percent_samples, max(u.gpu_peak_mb) AS peak_mb
FROM attempts a JOIN tasks t ON t.id = a.task_id LEFT JOIN attempt_usage u ON u.lease_id = a.lease_id
WHERE {_OVERLAPS}"""
_ATTEMPTS_SQL = f"SELECT {{keys}}, {_NUMBERS} {{also}} GROUP BY {{places}}"
_TASKS_SQL = f"""
SELECT t.name AS name, t.status AS status, t.finished_at AS finished_at, {{keys}}, {_NUMBERS} {{also}}
GROUP BY t.id ORDER BY gpu_ms DESC, t.id DESC LIMIT {MAX_ROWS + 1}
"""
_FINISHED_SQL = """
SELECT {keys}, t.status AS status, count(*) AS number FROM tasks t
WHERE t.finished_at > 0 AND t.finished_at >= :since AND t.finished_at < :until {also}
GROUP BY {places}, t.status
"""
_WAITING_SQL = """
SELECT {keys}, count(*) AS number FROM tasks t WHERE t.status = 'pending' {also} GROUP BY {places}
"""
_BARS_SQL = f"""
SELECT a.*, t.name, t.tenant, t.pool, t.priority, t.status, t.attempt AS last_attempt, count(*) OVER () AS total
FROM attempts a JOIN tasks t ON t.id = a.task_id
WHERE {_OVERLAPS} AND a.gpu_ids != '[]' {{also}}
ORDER BY {_WITHIN} DESC, a.lease_id LIMIT :most
"""  # noqa: S608 - constant text
_WAITS_SQL = """
SELECT (a.placed_at - :since) / :step AS bucket, total(1.0 / t.nodes) AS started,
    total((a.placed_at - t.created_at) * 1.0 / t.nodes) AS wait_ms, max(a.placed_at - t.created_at) AS wait_max_ms
FROM attempts a JOIN tasks t ON t.id = a.task_id
WHERE a.attempt = 1 AND a.placed_at >= :since AND a.placed_at < :until AND (a.ended_at > :since OR a.ended_at = 0)
GROUP BY bucket
"""
_EVENTS_SQL = """
SELECT journal_index, at, type, body FROM node_events WHERE node = :node AND at >= :since AND at < :until
    AND (type != 'ObservationChanged' OR json_extract(body, '$.fault') != '')
ORDER BY journal_index DESC, position DESC LIMIT :most
"""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    bucket: int
    started: int
    mean_ms: float
    highest_ms: int


def usage(
    history: History,
    by: Sequence[By],
    *,
    since: int,
    until: int,
    now: int,
    upto_index: int = 0,
    lag_s: float = 0.0,
    tenants: tuple[str, ...] | None = None,
) -> Usage:
    """Of these tenants; None: of all. Blocks; a year of a busy cluster takes seconds. Reports how many groups up to
    `upto_index` are missing, and for how long (`lag_s`). It does not wait for them.
    """
    behind = max(0, upto_index - history.reach().index)
    keys = ", ".join(f"{_KEYS[each]} AS key_{each}" for each in by)
    places = ", ".join(str(place) for place in range(1, len(by) + 1))
    also, names = _only(tenants)
    words = {"keys": keys, "places": places, "also": also}
    times = {"since": since, "until": until, "now": now, **names}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in history.rows(_ATTEMPTS_SQL.format(**words), times):
        found[_key(row, by)] = _of_attempts(row)
    for row in history.rows(_FINISHED_SQL.format(**words), times):
        name = {"success": "succeeded"}.get(row["status"], row["status"])
        found.setdefault(_key(row, by), {})[name] = row["number"]
    if until >= now:
        for row in history.rows(_WAITING_SQL.format(**words), times):
            found.setdefault(_key(row, by), {})["waiting"] = row["number"]
    rows = [
        UsageRow(**_shown({**dict(zip(by, key, strict=True)), **numbers})) for key, numbers in found.items()
    ]
    rows.sort(key=lambda row: (-row.gpu_hours, -row.tasks, row.tenant or "", row.pool or "", row.user or ""))
    reach = history.reach()
    return Usage(
        since=instant(since),
        until=instant(until),
        by=list(by),
        history_since=instant_or_none(reach.from_at),
        history_behind=behind,
        history_behind_seconds=round(lag_s, 3) if behind else 0.0,
        rows=rows[:MAX_ROWS],
        total=UsageRow(**_shown(_sum(found.values()))),
        truncated=len(rows) > MAX_ROWS,
    )


def usage_by_task(
    history: History,
    *,
    since: int,
    until: int,
    now: int,
    upto_index: int = 0,
    lag_s: float = 0.0,
    tenants: tuple[str, ...] | None = None,
) -> Usage:
    """A row for each task that ran in the range, the largest first. The total is that of all tasks."""
    times = {"since": since, "until": until, "now": now}
    whole = usage(history, ("tenant",), **times, upto_index=upto_index, lag_s=lag_s, tenants=tenants)
    keys = ", ".join(f"{expression} AS key_{each}" for each, expression in _KEYS.items())
    also, names = _only(tenants)
    found = history.rows(_TASKS_SQL.format(keys=keys, also=also), {**times, **names})
    return msgspec.structs.replace(
        whole,
        by=["task"],
        rows=[_of_task(row, since, until) for row in found[:MAX_ROWS]],
        truncated=len(found) > MAX_ROWS,
    )


def _of_task(row: Any, since: int, until: int) -> UsageRow:
    numbers = _of_attempts(row)
    if since <= row["finished_at"] < until:
        numbers[{"success": "succeeded"}.get(row["status"], row["status"])] = 1
    return UsageRow(
        task=task_name(row["key_task"]),
        name=row["name"],
        status=row["status"],
        tenant=row["key_tenant"],
        pool=row["key_pool"],
        user=row["key_user"],
        **_shown(numbers),
    )


def _only(tenants: tuple[str, ...] | None) -> tuple[str, dict[str, str]]:
    """A condition and its values."""
    if tenants is None:
        return "", {}
    names = {f"tenant_{number}": each for number, each in enumerate(tenants)}
    return f"AND t.tenant IN ({', '.join(f':{name}' for name in names)})", names


def _key(row: Any, by: Sequence[By]) -> tuple[str, ...]:
    return tuple(str(row[f"key_{each}"]) for each in by)


def _of_attempts(row: Any) -> dict[str, Any]:
    return {
        "gpu_ms": row["gpu_ms"],
        "tasks": row["tasks"],
        "attempts": row["attempts"],
        "running": row["running"],
        "started": round(row["started"]),
        "wait_ms": row["wait_ms"],
        "wait_max_ms": row["wait_max_ms"],
        "run_ms": row["run_ms"],
        "samples": row["samples"],
        "percent_samples": row["percent_samples"],
        "peak_mb": row["peak_mb"],
    }


_HIGHEST = frozenset({"wait_max_ms", "peak_mb"})


def _sum(all_numbers: Any) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for numbers in all_numbers:
        for name, value in numbers.items():
            if value is None:
                continue
            known = total.get(name)
            if known is None:
                total[name] = value
            else:
                total[name] = max(known, value) if name in _HIGHEST else known + value
    return total


def _shown(numbers: dict[str, Any]) -> dict[str, Any]:
    shown = dict(numbers)
    gpu_ms, wait_ms = shown.pop("gpu_ms", 0), shown.pop("wait_ms", 0)
    wait_max_ms = shown.pop("wait_max_ms", None)
    samples, percent_samples = shown.pop("samples", 0), shown.pop("percent_samples", 0)
    shown["run_seconds"] = round(shown.pop("run_ms", 0) / 1_000, 3)
    shown["gpu_percent"] = round(percent_samples / samples) if samples else None
    shown["gpu_peak_mb"] = shown.pop("peak_mb", None) or None
    shown["gpu_hours"] = round(gpu_ms / _GPU_MS_PER_HOUR, 4)
    if shown.get("started"):
        shown["wait_mean_seconds"] = round(wait_ms / shown["started"] / 1_000, 3)
        shown["wait_max_seconds"] = None if wait_max_ms is None else wait_max_ms / 1_000
    return shown


def timeline(
    history: History,
    *,
    since: int,
    until: int,
    now: int,
    nodes: Sequence[str],
    limit: int,
    tenants: tuple[str, ...] | None = None,
) -> Timeline:
    """Of these tenants; None: of all. Of too many bars, the longest are kept."""
    also = f"AND a.node IN ({', '.join(f':node{place}' for place in range(len(nodes)))})" if nodes else ""
    values: dict[str, Any] = {"since": since, "until": until, "now": now, "most": limit}
    values.update({f"node{place}": node for place, node in enumerate(nodes)})
    of_tenants, names = _only(tenants)
    rows = history.rows(_BARS_SQL.format(also=f"{also} {of_tenants}"), {**values, **names})
    total = rows[0]["total"] if rows else 0
    bars = [_bar(row) for row in sorted(rows, key=lambda row: (row["placed_at"], row["lease_id"]))]
    return Timeline(
        since=instant(since),
        until=instant(until),
        now=instant(now),
        total=total,
        truncated=total > len(bars),
        bars=bars,
    )


def _bar(row: Any) -> Bar:
    is_last = row["attempt"] == row["last_attempt"]
    is_open = not row["ended_at"] and is_last and row["status"] == "running"
    status = row["status"] if is_last and row["status"] not in {"pending", "running"} else "requeued"
    return Bar(
        task_id=task_name(row["task_id"]),
        name=row["name"],
        tenant_id=row["tenant"],
        pool=row["pool"],
        priority=row["priority"],
        attempt=row["attempt"],
        node=row["node"],
        gpu_ids=msgspec.json.decode(row["gpu_ids"]),
        start=instant(row["placed_at"]),
        end=None if is_open else instant(row["ended_at"] or row["placed_at"]),
        status="running" if is_open else status,
        reason=row["reason"],
    )


def waits(history: History, *, since: int, until: int, step_ms: int) -> list[Waits]:
    rows = history.rows(_WAITS_SQL, {"since": since, "until": until, "step": step_ms})
    return [
        Waits(
            bucket=row["bucket"],
            started=round(row["started"]),
            mean_ms=row["wait_ms"] / row["started"],
            highest_ms=row["wait_max_ms"],
        )
        for row in rows
    ]


def events_of_node(history: History, node: str, *, since: int, until: int, limit: int) -> list[PastEvent]:
    """The newest first. Includes observed faults, but no other observations."""
    rows = history.rows(_EVENTS_SQL, {"node": node, "since": since, "until": until, "most": limit})
    return [
        PastEvent(
            index=row["journal_index"], at=row["at"], type=row["type"], body=msgspec.json.decode(row["body"])
        )
        for row in rows
    ]


def knows_node(history: History, node: str) -> bool:
    return bool(history.rows("SELECT 1 FROM node_events WHERE node = ? LIMIT 1", (node,)))
