"""Exclusive tasks on GPUs that warm workers held: `python -m tests.faults.warm_memory --tasks 1000 --seed 7`.

Each round, functions use memory on all four GPUs of a node and return; their workers keep it. Then four exclusive tasks
ask for the GPUs, so the workers are told to leave; sometimes one of them is killed at the same time. The driver frees
the memory up to half a second after a process has ended. Each exclusive task looks at its start whether memory of its
GPU is used, and uses the GPU's memory itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable

import msgspec
from tests.faults.calls import fills
from tests.faults.site import Site, registered, wait_until

from dgpu.client import Client
from dgpu.functions.session import connect

_AGENT = pathlib.Path(__file__).with_name("memory_agent.py")
_GPUS = 4
_SLOW_SECONDS = 0.5
_PATIENCE_SECONDS = 240.0
_FOUND_USED = 3
# A shell is the fastest look. Afterwards the task uses the memory itself, and stays until all four are there: each of
# them takes a GPU from a worker.
_LOOK = """
gpu="$1/$CUDA_VISIBLE_DEVICES"; used=0
[ -e "$gpu" ] && used=3
echo $$ > "$gpu.new" && mv "$gpu.new" "$gpu"
: > "$2.$DGPU_TASK_ID"
until [ -e "$2" ]; do sleep 0.02; done
exit $used
"""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    tasks: int = 0
    found_used: int = 0
    killed: int = 0
    workers_left: dict[str, int]
    wrong: list[str]


class MemorySite(Site):
    def __init__(self) -> None:
        super().__init__(1)
        self.memory = self.home / "memory"
        self.memory.mkdir()

    def _command(self, name: str) -> list[str]:
        if name == "scheduler":
            return super()._command(name)
        config = str(self.home / f"{name}.yaml")
        return [sys.executable, str(_AGENT), config, str(self.memory), str(_SLOW_SECONDS)]


class WarmMemory:
    def __init__(self, seed: int, say: Callable[[str], None]) -> None:
        self._seed, self._say = seed, say
        self._chance = random.Random(seed)
        self.site = MemorySite()
        self._tasks = self._killed = self._found_used = 0
        self._left: Counter[str] = Counter()
        self._wrong: list[str] = []

    def run(self, tasks: int) -> Verdict:
        try:
            for name in ("scheduler", *self.site.names):
                self.site.start(name)
            client = Client(self.site.url, retries=1_000)
            wait_until(lambda: registered(client), _PATIENCE_SECONDS)
            connect(self.site.url)
            while self._tasks < tasks and not self._wrong:
                self._round(client)
                if self._tasks % 100 == 0:
                    self._say(
                        f"{self._tasks} tasks, {self._found_used} found used memory, {self._killed} killed"
                    )
        finally:
            self._wrong += [f"left running: {each}" for each in self.site.close()]
        if not self._wrong:
            self.site.remove()
        return Verdict(
            seed=self._seed,
            tasks=self._tasks,
            found_used=self._found_used,
            killed=self._killed,
            workers_left=dict(self._left),
            wrong=self._wrong,
        )

    def _round(self, client: Client) -> None:
        """A worker on each GPU, then an exclusive task on each."""
        lanes = [fills.with_options(max_workers=1, env={"LANE": str(lane)}) for lane in range(_GPUS)]
        futures = [lane.submit(str(self.site.memory), self._chance.uniform(0, 0.1)) for lane in lanes]
        ran = [future.result(timeout=_PATIENCE_SECONDS) for future in futures]
        self._wrong += [f"worker {pid} found used memory" for pid, is_used in ran if is_used]
        workers = [worker.task_id for worker in client.workers()]
        gate = self.site.home / "runs" / f"round-{self._tasks}"
        command = ["sh", "-c", _LOOK, "look", str(self.site.memory), str(gate)]
        submitted = [client.submit(command=command, gpu_count=1, env={}).task_id for _ in range(_GPUS)]
        if self._chance.random() < 0.2:
            self._killed += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(ran)[0], signal.SIGKILL)
        if not wait_until(lambda: len(list(gate.parent.glob(f"{gate.name}.*"))) == _GPUS, _PATIENCE_SECONDS):
            self._wrong.append(f"not all of {', '.join(submitted)} got a GPU")
        gate.touch()
        for task in client.wait(*submitted, timeout_seconds=_PATIENCE_SECONDS):
            self._tasks += 1
            self._found_used += task.exit_code == _FOUND_USED
            if task.status != "success":
                self._wrong.append(
                    f"{task.task_id} ended as {task.status} with {task.exit_code}: {task.error}"
                )
        self._left.update(client.get(task_id).reason for task_id in workers)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    program = WarmMemory(arguments.seed, lambda line: print(line, flush=True))
    verdict = program.run(arguments.tasks)
    print(msgspec.json.format(msgspec.json.encode(verdict)).decode())
    if verdict.wrong:
        print(f"The site is kept in {program.site.home}", file=sys.stderr)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
