"""What tasks used, in responses."""

from __future__ import annotations

from typing import Any

import msgspec


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What a task could ask for instead: an English text, and a code with facts for other languages."""

    code: str
    detail: str
    facts: dict[str, Any] = {}


class TaskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt used, as its nodes measured it. None: not measured."""

    so_far: bool = False  # the attempt still runs
    gpu_percent: int | None = None  # mean over time and GPUs; not known of shared GPUs
    gpu_percent_p95: int | None = None
    gpu_peak_mb: int | None = None  # on the GPU where it was highest
    cpu_seconds: float | None = None
    rss_peak_mb: int | None = None  # of its largest process
    wait_seconds: float | None = None  # from the submit until this attempt started; in `usage` of a task
    run_seconds: float | None = None
    cpu_efficiency_percent: float | None = None  # CPU time of the CPUs that it held
    advice: list[Advice] = []
