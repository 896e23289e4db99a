"""Random kills and stops of every process under mixed load: `python -m tests.faults.storm --rounds 500 --seed 7`.

Each round breaks one thing, sometimes while an earlier fault is still there. Every task holds a lock for itself and for
each of its GPUs, so an overlap shows itself. Every few rounds the load pauses and each acknowledged task is checked:
it is known, it is over, its status, exit code and output are its own. The seed decides which fault strikes when; what
the operating system does in between is different each time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import pathlib
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

import msgspec
from tests.faults.load import Load
from tests.faults.site import Site, send, wait_until

_NODES = 3
_CHECK_EVERY = 10  # rounds
_ROUND_SUBMITS = 3  # tasks that a round waits for
_ROUND_SECONDS = 30.0
_PATIENCE_SECONDS = 240.0  # for all open tasks to end, on a busy machine
_LEASE_SECONDS = 8.0  # agent.task_lease_seconds of the site


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    rounds: int
    acknowledged: int
    runs: int
    faults: dict[str, int]
    wrong: list[str]


class Storm:
    def __init__(self, seed: int, say: Callable[[str], None]) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._say = say
        self._site = Site(_NODES)
        self._load = Load(self._site.url, self._site.home / "runs", seed)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._hung_nodes: dict[str, float] = {}  # nodes with a stopped keeper, until when
        self._guard_stopped = dict.fromkeys(self._site.names, 0.0)  # the same for guards
        self._happened: Counter[str] = Counter()
        self._wrong: list[str] = []

    def run(self, rounds: int) -> Verdict:
        done = 0
        try:
            for name in ("scheduler", *self._site.names):
                self._site.start(name)
            self._load.start()
            self._pass_time(2)
            for done in range(1, rounds + 1):
                self._strike()
                self._pass_time(self._chance.uniform(0.2, 3))
                self._wait_for_work()
                if done % _CHECK_EVERY == 0 or done == rounds:
                    self._check(done)
                if self._wrong:
                    break
        finally:
            self._load.stop()
            self._end_faults()
            self._wrong += [f"still runs: {line}" for line in self._site.close()]
        runs_log = self._site.home / "runs" / "runs.log"
        runs = runs_log.read_text().count("begin ") if runs_log.exists() else 0
        if not self._wrong:
            self._site.remove()
        return Verdict(
            seed=self._seed,
            rounds=done,
            acknowledged=self._load.acknowledged,
            runs=runs,
            faults=dict(self._happened),
            wrong=self._wrong,
        )

    @property
    def home(self) -> pathlib.Path:
        return self._site.home

    # Faults

    def _strike(self) -> None:
        kinds = (
            self._kill_scheduler,
            self._kill_scheduler,
            self._kill_agent,
            self._kill_scheduler_and_agent,
            self._kill_follower,
            self._kill_keeper,
            self._kill_scribe,
            self._kill_guard,
            self._stop_scheduler,
            self._stop_follower,
            self._stop_agent,
            self._stop_keeper,
            self._stop_scribe,
            self._stop_guard,
        )
        kind = self._chance.choice(kinds)
        kind(self._chance.choice(self._site.names))
        self._happened[kind.__name__.removeprefix("_")] += 1

    def _kill_scheduler(self, _node: str) -> None:
        self._kill("scheduler")

    def _kill_agent(self, node: str) -> None:
        self._kill(node)

    def _kill_scheduler_and_agent(self, node: str) -> None:
        self._kill("scheduler")
        self._kill(node)

    def _kill_follower(self, _node: str) -> None:
        send(self._site.follower(), signal.SIGKILL)

    def _kill_keeper(self, node: str) -> None:
        send(self._site.keeper(node), signal.SIGKILL)

    def _kill_scribe(self, node: str) -> None:
        send(self._site.scribe(node), signal.SIGKILL)

    def _kill_guard(self, node: str) -> None:
        if not self._is_hung(node):
            send(self._site.guard(node), signal.SIGKILL)

    def _stop_scheduler(self, _node: str) -> None:
        self._stop(self._site.service("scheduler"), self._chance.choice((0.5, 3, 7, 20)))

    def _stop_follower(self, _node: str) -> None:
        self._stop(self._site.follower(), self._chance.uniform(0.5, 10))

    def _stop_agent(self, node: str) -> None:
        self._stop(self._site.service(node), self._chance.choice((0.5, 3, 7, 20)))

    def _stop_keeper(self, node: str) -> None:
        """The guard is left alone meanwhile: without both of them nothing on the node enforces a lease."""
        seconds = self._chance.uniform(0.5, _LEASE_SECONDS * 3)
        if time.monotonic() > self._guard_stopped[node] and self._stop(self._site.keeper(node), seconds):
            self._hung_nodes[node] = time.monotonic() + seconds + 1

    def _stop_scribe(self, node: str) -> None:
        """As a disk that hangs. The keeper goes on enforcing leases."""
        self._stop(self._site.scribe(node), self._chance.uniform(0.5, _LEASE_SECONDS * 3))

    def _stop_guard(self, node: str) -> None:
        seconds = self._chance.uniform(0.5, 10)
        if not self._is_hung(node) and self._stop(self._site.guard(node), seconds):
            self._guard_stopped[node] = time.monotonic() + seconds + 1

    def _is_hung(self, node: str) -> bool:
        return time.monotonic() < self._hung_nodes.get(node, 0)

    def _kill(self, name: str) -> None:
        self._site.kill(name)
        self._after(self._chance.choice((0, 0.2, 1, 5)), lambda: self._site.start(name))

    def _stop(self, pid: int | None, seconds: float) -> bool:
        if not send(pid, signal.SIGSTOP):
            return False
        self._after(seconds, lambda: send(pid, signal.SIGCONT))
        return True

    # Time

    def _after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), action))

    def _pass_time(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            time.sleep(0.02)

    def _wait_for_work(self) -> None:
        """A round in which no client got through tests nothing. Stops of the scheduler are waited out."""
        enough = self._load.acknowledged + _ROUND_SUBMITS
        until = time.monotonic() + _ROUND_SECONDS
        while self._load.acknowledged < enough and not self._load.failures and time.monotonic() < until:
            self._pass_time(0.1)

    def _end_faults(self) -> None:
        while self._due:
            heapq.heappop(self._due)[2]()
        for name in self._site.died():
            self._site.start(name)

    # Checks

    def _check(self, done: int) -> None:
        self._end_faults()
        if not self._load.pause(_PATIENCE_SECONDS):
            self._wrong.append("a request has had no answer for minutes")
            return
        checked = list(self._load.open)
        self._wrong += self._load.check_open(_PATIENCE_SECONDS)
        self._wrong += self._load.failures
        self._wrong += self._lines("violations.log")
        wait_until(lambda: not self._site.died(), 1)
        self._wrong += [f"{name} ended by itself" for name in self._site.died()]
        if not self._wrong:
            self._wrong += self._check_output(checked)
        self._say(
            f"round {done}: {self._load.acknowledged} acknowledged, {sum(self._happened.values())} faults, "
            f"{len(self._wrong)} wrong"
        )
        self._load.resume()

    def _check_output(self, checked: list[str]) -> list[str]:
        """Only of tasks whose first rank ran to its end: a task that was stopped may have had no time to print."""
        ended = {line.split()[1] for line in self._lines("runs.log") if line.startswith("end ")}
        candidates = [task_id for task_id in checked if f"{task_id}.0" in ended]
        sample = self._chance.sample(candidates, min(5, len(candidates)))
        return self._load.check_output(sample, 60)

    def _lines(self, name: str) -> list[str]:
        file = self._site.home / "runs" / name
        return file.read_text().splitlines() if file.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    storm = Storm(arguments.seed, lambda line: print(line, flush=True))
    verdict = storm.run(arguments.rounds)
    print(msgspec.json.format(msgspec.json.encode(verdict)).decode())
    if verdict.wrong:
        print(f"The site is kept in {storm.home}", file=sys.stderr)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
