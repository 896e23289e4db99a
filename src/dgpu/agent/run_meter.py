"""What a run has used so far. Read when the scheduler asks; nothing is measured for it beforehand but GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dgpu.agent.reservations import Reservations
from dgpu.agent.tree import TICKS_PER_SECOND
from dgpu.core.model.ids import LeaseId
from dgpu.wire.proto import agent_pb2 as pb

Owners = Callable[[], Mapping[int, LeaseId | None]]


class RunMeter:
    """`reservations`: peaks and use of GPUs by lease. `owners`: the processes of all runs; may block."""

    def __init__(self, reservations: Reservations, owners: Owners) -> None:
        self._reservations = reservations
        self._owners = owners

    def measure(self, lease_id: LeaseId) -> pb.RunUsage:
        """Reads /proc: use a thread."""
        cpu_ms, rss_mb = used_by(pid for pid, owner in self._owners().items() if owner == lease_id)
        peak_mb, use = self._reservations.so_far(lease_id)
        return pb.RunUsage(
            gpu_samples=use.samples,
            gpu_percent=use.percent,
            gpu_percent_p95=use.percent_p95,
            cpu_ms=cpu_ms,
            rss_mb=rss_mb,
            gpu_peak_mb=peak_mb,
        )


def used_by(pids: Iterable[int]) -> tuple[int, int]:
    """CPU time of living processes and of the children that they waited for; the peak of the largest one in MB."""
    ticks = peak_kb = 0
    for pid in pids:
        ticks += _ticks(pid)
        peak_kb = max(peak_kb, _peak_kb(pid))
    return ticks * 1_000 // TICKS_PER_SECOND, peak_kb // 1_024


def _ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - many of these are opened in a row
            text = file.read()
    except OSError:
        return 0  # it has ended meanwhile
    # The name in parentheses may contain spaces and parentheses. Times: user, system, and both of waited children.
    return sum(map(int, text[text.rfind(b")") + 2 :].split()[11:15]))


def _peak_kb(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - as above
            return next((int(line.split()[1]) for line in file if line.startswith(b"VmHWM:")), 0)
    except OSError:
        return 0
