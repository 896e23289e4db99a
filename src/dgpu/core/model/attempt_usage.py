"""What an attempt used, as its node measured it. No decision of the core reads it."""

from __future__ import annotations

import msgspec


class AttemptUsage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """0 samples: nothing is known about the use of its GPUs. 0 CPU time or memory: not measured."""

    gpu_samples: int = 0
    gpu_percent: int = 0  # mean over time and GPUs
    gpu_percent_p95: int = 0
    gpu_peak_mb: int = 0  # on the GPU where it was highest
    cpu_ms: int = 0  # of all of its processes that were waited for
    rss_mb: int = 0  # of its largest process
