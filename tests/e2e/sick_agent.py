"""An agent whose simulated GPU fails on demand: `python sick_agent.py CONFIG FILE`. The file holds {"fault": ...,
"hidden": ...}: the driver's report about the first GPU, and a fault that only a check finds.
"""

from __future__ import annotations

import json
import pathlib
import sys

from dgpu.agent.probe.simulated import SimulatedProbe
from dgpu.entry.agent import run_agent
from dgpu.entry.config import load_agent_config

CONFIG, ILLNESS = map(pathlib.Path, sys.argv[1:])


class SickProbe(SimulatedProbe):
    def sample(self, busy):
        self._fall_ill()
        return super().sample(busy)

    def list_gpus(self):
        self._fall_ill()
        return super().list_gpus()

    def examine(self, gpu_id):
        self._fall_ill()
        return super().examine(gpu_id)

    def _fall_ill(self):
        told = json.loads(ILLNESS.read_text())
        first = next(iter(self._cards))
        self.set_fault(first, told["fault"])
        self.set_hidden_fault(first, told["hidden"])


if __name__ == "__main__":
    import dgpu.agent.probe.simulated as simulated

    simulated.SimulatedProbe = SickProbe
    sys.exit(run_agent(load_agent_config(CONFIG)))
