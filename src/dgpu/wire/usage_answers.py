"""What tasks used, in responses."""

from __future__ import annotations

import msgspec


class TaskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt used, as its nodes measured it. None: not measured."""

    gpu_percent: int | None = None  # mean over time and GPUs; not known of shared GPUs
    gpu_percent_p95: int | None = None
    gpu_peak_mb: int | None = None  # on the GPU where it was highest
    cpu_seconds: float | None = None
    rss_peak_mb: int | None = None  # of its largest process
    wait_seconds: float | None = None  # from the submit until this attempt started; in `usage` of a task
    run_seconds: float | None = None
    cpu_efficiency_percent: float | None = None  # CPU time of the CPUs that it held
    advice: list[str] = []
