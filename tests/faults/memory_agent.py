"""An agent whose simulated GPUs free the memory of a process late: `python memory_agent.py CONFIG FOLDER SECONDS`.

A process that uses a GPU writes its pid to FOLDER/GPU. The file, which stands for the used memory, is removed up to
SECONDS after the process has ended, as a driver does that is slow.
"""

from __future__ import annotations

import pathlib
import random
import sys
import threading
import time

from dgpu.agent.probe import simulated
from dgpu.agent.probe.probe import ProbeError
from dgpu.core.model.ids import GpuId
from dgpu.entry.agent import run_agent
from dgpu.entry.config import load_agent_config

CONFIG, FOLDER = map(pathlib.Path, sys.argv[1:3])
SECONDS = float(sys.argv[3])
_LOOK_SECONDS = 0.005


def user_of(file: pathlib.Path) -> int | None:
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return None


class SlowProbe(simulated.SimulatedProbe):
    def holders(self, gpu_id: GpuId) -> frozenset[int]:
        if gpu_id not in {gpu.id for gpu in self.list_gpus()}:
            raise ProbeError(f"{gpu_id}: no such simulated card")
        pid = user_of(FOLDER / gpu_id)
        return frozenset() if pid is None else frozenset({pid})


def drive() -> None:
    """The driver: frees memory of processes that have ended, after a while."""
    chance, free_at = random.Random(), {}
    while True:
        for file in FOLDER.glob("GPU-*[!w]"):
            pid = user_of(file)
            if pid is None or pathlib.Path(f"/proc/{pid}").exists():
                continue
            if time.monotonic() >= free_at.setdefault(
                (file, pid), time.monotonic() + chance.uniform(0, SECONDS)
            ):
                del free_at[file, pid]
                file.unlink()
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    threading.Thread(target=drive, daemon=True).start()
    simulated.SimulatedProbe = SlowProbe  # type: ignore[misc]
    sys.exit(run_agent(load_agent_config(CONFIG)))
