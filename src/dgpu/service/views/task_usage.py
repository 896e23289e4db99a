"""What a task used against what it asked for, with advice where it is clear."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from msgspec.structs import replace

from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.task import in_steps
from dgpu.wire.answers import TaskAnswer
from dgpu.wire.usage_answers import Advice, TaskUsage

_LONG_S = 60.0  # a shorter run says little about what a task needs
_MARGIN = 1.25  # of the memory that was seen: samples are seconds apart
_MUCH_MB = 2_048  # a smaller difference is not worth advice
_IDLE_PERCENT = 5
_BUSY_PERCENT = 30
GPU_MEMORY = "gpu_memory"  # the advice that a forecast can add to


def usage_answer(ranks: Sequence[AttemptUsage]) -> TaskUsage:
    """Of all ranks of an attempt."""
    sampled = [each for each in ranks if each.gpu_samples]
    samples = sum(each.gpu_samples for each in sampled)
    cpu_ms = sum(each.cpu_ms for each in ranks)
    return TaskUsage(
        gpu_percent=round(sum(each.gpu_percent * each.gpu_samples for each in sampled) / samples)
        if samples
        else None,
        gpu_percent_p95=max((each.gpu_percent_p95 for each in sampled), default=None),
        gpu_peak_mb=max(each.gpu_peak_mb for each in ranks) or None,
        cpu_seconds=cpu_ms / 1_000 if cpu_ms else None,
        rss_peak_mb=max(each.rss_mb for each in ranks) or None,
    )


def with_usage(task: TaskAnswer, now: str) -> TaskAnswer:
    """The usage of the last attempt that was measured, with its times and advice."""
    last = next((each for each in reversed(task.attempts) if each.usage is not None), None)
    if last is None or last.usage is None:
        return task
    run_s = _between(last.started_at, last.ended_at or now)
    cpu_s = last.usage.cpu_seconds
    held_cpus = task.cpus * task.nodes
    usage = replace(
        last.usage,
        so_far=last.ended_at is None,
        wait_seconds=_between(task.created_at, last.started_at),
        run_seconds=run_s,
        cpu_efficiency_percent=round(100 * cpu_s / (run_s * held_cpus), 1)
        if cpu_s is not None and run_s and held_cpus
        else None,
    )
    return replace(task, usage=replace(usage, advice=_advice(task, usage)))


def told_earlier(advice: Advice, seconds: float) -> Advice:
    """The advice on GPU memory, with the time by which a new task would start earlier."""
    minutes = round(seconds / 60)
    detail = f"{advice.detail}; submitted now, it would start {minutes} min earlier"
    return replace(advice, detail=detail, facts={**advice.facts, "earlier_seconds": 60 * minutes})


def _advice(task: TaskAnswer, usage: TaskUsage) -> list[Advice]:
    """Only of a run that succeeded and took a while: another may not have reached its peak."""
    if task.status != "success" or (usage.run_seconds or 0) < _LONG_S:
        return []
    return [
        each for each in (_on_gpu_memory(task, usage), _on_ram(task, usage), _on_gpus(task, usage)) if each
    ]


def _on_gpu_memory(task: TaskAnswer, usage: TaskUsage) -> Advice | None:
    peak_mb, asked_mb = usage.gpu_peak_mb, task.gpu_memory_mb
    if not peak_mb or not asked_mb:
        return None
    enough_mb = in_steps(round(peak_mb * _MARGIN))
    if asked_mb - enough_mb < _MUCH_MB:
        return None
    detail = f"asked for {_gb(asked_mb)} of GPU memory, used {_gb(peak_mb)}: --gpu-mem {enough_mb} is enough"
    facts = {"asked_mb": asked_mb, "used_mb": peak_mb, "enough_mb": enough_mb}
    return Advice(code=GPU_MEMORY, detail=detail, facts=facts)


def _on_ram(task: TaskAnswer, usage: TaskUsage) -> Advice | None:
    if not usage.rss_peak_mb or not task.ram_mb or task.nodes > 1:
        return None
    if task.ram_mb - in_steps(round(usage.rss_peak_mb * _MARGIN)) < _MUCH_MB:
        return None
    asked, used = _gb(task.ram_mb), _gb(usage.rss_peak_mb)
    detail = f"asked for {asked} of memory, its largest process used {used}: check --ram"
    return Advice(code="ram", detail=detail, facts={"asked_mb": task.ram_mb, "used_mb": usage.rss_peak_mb})


def _on_gpus(task: TaskAnswer, usage: TaskUsage) -> Advice | None:
    if not task.gpu_count or task.shared or usage.gpu_percent_p95 is None:
        return None
    if usage.gpu_percent_p95 < _IDLE_PERCENT:
        return Advice(code="gpus_idle", detail="its GPUs were idle: -G 0 runs it without a GPU")
    mean, peak_mb = usage.gpu_percent, usage.gpu_peak_mb
    if mean is None or mean >= _BUSY_PERCENT or task.gpu_count > 1 or not peak_mb:
        return None
    enough_mb = in_steps(round(peak_mb * _MARGIN))
    detail = f"its GPU was busy {mean} % of the time: --shared --gpu-mem {enough_mb} shares it"
    return Advice(code="gpu_shared", detail=detail, facts={"percent": mean, "enough_mb": enough_mb})


def _gb(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.1f} GB".replace(".0 ", " ")


def _between(first: str | None, last: str | None) -> float | None:
    if first is None or last is None:
        return None
    return max(0.0, (dt.datetime.fromisoformat(last) - dt.datetime.fromisoformat(first)).total_seconds())
