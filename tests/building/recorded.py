"""Records what random worlds decide: `PYTHONPATH=tests .venv/bin/python -m building.recorded` after an
intended change.

The file holds a number for each few steps of each world, so that a difference names its first step.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from building.worlds import World
from dgpu.core.commands import CancelTasks, SetQuota
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.forecast import forecast
from dgpu.core.foresight.sooner import sooner
from dgpu.core.foresight.trial import try_quota
from dgpu.core.foresight.whatif import lose, whatif

FILE: Final = Path(__file__).parents[1] / "golden" / "worlds.json"
SEEDS: Final = 88
SMALL: Final = 72  # the first worlds have 4 nodes, the others 24
STEPS: Final = 80
NOTED: Final = 10  # steps that share a number


def decided(seed: int) -> list[int]:
    world, found, mark = World(seed, nodes=4 if seed < SMALL else 24), [], 0
    for command in world.begin():
        execute(world.state, command)
    for step in range(1, STEPS + 1):
        for command, decision in world.step():
            mark = _marked(mark, type(command).__name__, type(decision).__name__, decision)
        if step % NOTED == 0:
            for answer in _foretold(world):
                mark = _marked(mark, answer)
            found.append(mark)
    return found


def _foretold(world: World) -> Iterator[object]:
    """The answers about tasks that wait or run, and about changes."""
    state, at = world.state, world.at
    live = [task.id for task in state.tasks.values() if not task.status.is_final]
    for task_id in world.random.sample(live, min(6, len(live))):
        yield explain(state.fork(), task_id, at)
    for task_id in live[:1]:
        yield sooner(state.fork(), task_id, at)
        yield whatif(state.fork(), (CancelTasks(at=at, task_ids=(task_id,)),), at)
    for node_id in sorted(state.nodes)[:1]:
        yield whatif(state.fork(), lose(node_id), at)
    yield forecast(state.fork(), at)
    yield try_quota(state.fork(), SetQuota(at=at, online_ppm=400_000), at)


def _marked(mark: int, *answers: object) -> int:
    return zlib.crc32(msgspec.json.encode(answers, order="deterministic"), mark)


if __name__ == "__main__":
    recorded = {str(seed): decided(seed) for seed in range(SEEDS)}
    FILE.write_text(
        "{\n" + ",\n".join(f'"{seed}": {json.dumps(marks)}' for seed, marks in recorded.items()) + "\n}\n"
    )
