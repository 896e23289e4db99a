"""What a task used against what it asked for, with advice where it is clear."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from msgspec.structs import replace

from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.task import in_steps
from dgpu.wire.answers import TaskAnswer
from dgpu.wire.usage_answers import TaskUsage

_LONG_S = 60.0  # a shorter run says little about what a task needs
_MARGIN = 1.25  # of the memory that was seen: samples are seconds apart
_MUCH_MB = 2_048  # a smaller difference is not worth advice
_IDLE_PERCENT = 5


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


def with_usage(task: TaskAnswer) -> TaskAnswer:
    """The usage of the last attempt that was measured, with its times and advice."""
    last = next((each for each in reversed(task.attempts) if each.usage is not None), None)
    if last is None or last.usage is None:
        return task
    run_s = _between(last.started_at, last.ended_at)
    cpu_s = last.usage.cpu_seconds
    held_cpus = task.cpus * task.nodes
    usage = replace(
        last.usage,
        wait_seconds=_between(task.created_at, last.started_at),
        run_seconds=run_s,
        cpu_efficiency_percent=round(100 * cpu_s / (run_s * held_cpus), 1)
        if cpu_s is not None and run_s and held_cpus
        else None,
    )
    return replace(task, usage=replace(usage, advice=_advice(task, usage)))


def _advice(task: TaskAnswer, usage: TaskUsage) -> list[str]:
    """Only of a run that succeeded and took a while: another may not have reached its peak."""
    if task.status != "success" or (usage.run_seconds or 0) < _LONG_S:
        return []
    found: list[str] = []
    peak_mb, asked_mb = usage.gpu_peak_mb, task.gpu_memory_mb
    if peak_mb and asked_mb:
        enough_mb = in_steps(round(peak_mb * _MARGIN))
        if asked_mb - enough_mb >= _MUCH_MB:
            found.append(
                f"asked for {_gb(asked_mb)} of GPU memory, used {_gb(peak_mb)}: --gpu-mem {enough_mb} is enough"
            )
    if usage.rss_peak_mb and task.ram_mb:
        enough_mb = in_steps(round(usage.rss_peak_mb * _MARGIN))
        if task.ram_mb - enough_mb >= _MUCH_MB and task.nodes == 1:
            found.append(
                f"asked for {_gb(task.ram_mb)} of memory, its largest process used {_gb(usage.rss_peak_mb)}: "
                "check --ram"
            )
    if task.gpu_count and not task.shared and usage.gpu_percent_p95 is not None:
        if usage.gpu_percent_p95 < _IDLE_PERCENT:
            found.append("its GPUs were idle: -G 0 runs it without a GPU")
        elif usage.gpu_percent is not None and usage.gpu_percent < 30 and task.gpu_count == 1 and peak_mb:
            enough_mb = in_steps(round(peak_mb * _MARGIN))
            found.append(
                f"its GPU was busy {usage.gpu_percent} % of the time: --shared --gpu-mem {enough_mb} shares it"
            )
    return found


def _gb(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.1f} GB".replace(".0 ", " ")


def _between(first: str | None, last: str | None) -> float | None:
    if first is None or last is None:
        return None
    return max(0.0, (dt.datetime.fromisoformat(last) - dt.datetime.fromisoformat(first)).total_seconds())
