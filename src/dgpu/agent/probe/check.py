"""Checks a GPU before it returns to service: first the driver, then a process that uses the GPU. Blocks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from dgpu import file_limit
from dgpu.agent.probe.probe import Examination, Probe, ProbeError
from dgpu.agent.probe.simulated import SimulatedProbe
from dgpu.agent.probe.touch import CANNOT_TRY
from dgpu.core.model.ids import GpuId

TIMEOUT_SECONDS = 60.0
_KILL_GRACE_SECONDS = 2.0
_MAX_WORDS = 300


def check_card(
    probe: Probe | None, gpu_id: GpuId, command: str = "", *, timeout_seconds: float = TIMEOUT_SECONDS
) -> Examination:
    """`command` is the operator's own, for the shell; without it, memory is written and read back."""
    if probe is None:
        return Examination(ok=False, words="this node has no probe for its GPUs")
    try:
        seen = probe.examine(gpu_id)
    except ProbeError as error:
        return Examination(ok=False, words=str(error))
    if not seen.ok or (isinstance(probe, SimulatedProbe) and not command):
        return seen
    used = _use(gpu_id, command, timeout_seconds)
    if not used.ok:
        return used
    try:
        again = probe.examine(gpu_id)  # its use may have caused the fault again
    except ProbeError as error:
        return Examination(ok=False, words=str(error))
    if not again.ok:
        return again
    return Examination(ok=True, words=f"{again.words}; {used.words}")


def _use(gpu_id: GpuId, command: str, timeout_seconds: float) -> Examination:
    asked = ["/bin/sh", "-c", command] if command else [sys.executable, "-m", "dgpu.agent.probe.touch"]
    name = "gpu.check_command" if command else "the memory check"
    try:
        process = subprocess.Popen(
            asked,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu_id},
            start_new_session=True,
        )
    except OSError as error:
        return Examination(ok=False, words=f"{name} does not start: {error.strerror}")
    file_limit.give_back(process.pid)
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(
                timeout=_KILL_GRACE_SECONDS
            )  # a process that hangs in the driver is left behind
        return Examination(ok=False, words=f"{name} had no result after {timeout_seconds:g} s")
    words = " ".join(output.decode(errors="replace").split())[-_MAX_WORDS:]
    if not command and process.returncode == CANNOT_TRY:
        return Examination(ok=True, words=f"its memory was not tested: {words}")
    if process.returncode:
        return Examination(ok=False, words=f"{name} ended with code {process.returncode}: {words}")
    return Examination(ok=True, words=words or f"{name} succeeded")
