"""kill -9 of schedulers, agents, keepers and workers while calls run:
`python -m tests.faults.call_kills --rounds 200 --seed 7`.

A program keeps twelve calls under way. Each round kills one process and starts it again, often during an earlier
fault. Every call holds a lock while it runs, so that two runs at the same time show themselves. Every ten rounds all
calls must end, with their value.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

import msgspec
from tests.faults.calls import locked
from tests.faults.site import Site, registered, send, wait_until

from dgpu.client import Client
from dgpu.functions.errors import RemoteError
from dgpu.functions.futures import Future
from dgpu.functions.session import connect

_NODES = 2
_CALLS = 12  # under way
_CHECK_EVERY = 10  # rounds
_PATIENCE_SECONDS = 240.0
_MARK = "CALL_KILLS"  # a variable of the workers


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    rounds: int
    calls: int
    runs: int  # with those that were lost with a worker or node, and ran again
    faults: dict[str, int]
    wrong: list[str]


class CallKills:
    def __init__(self, seed: int, say: Callable[[str], None]) -> None:
        self._seed, self._say = seed, say
        self._chance = random.Random(seed)
        self.site = Site(_NODES)
        self._runs = self.site.home / "runs"
        self._function = locked.with_options(env={_MARK: str(self.site.home)})
        self._open: dict[int, Future[int]] = {}
        self._calls = self._began = 0
        self._happened: Counter[str] = Counter()
        self._wrong: list[str] = []

    def run(self, rounds: int) -> Verdict:
        done = 0
        try:
            for name in ("scheduler", *self.site.names):
                self.site.start(name)
            client = Client(self.site.url)
            if not wait_until(lambda: registered(client) == _NODES, _PATIENCE_SECONDS):
                self._wrong.append("the nodes did not register")
            connect(self.site.url)
            while done < rounds and not self._wrong:
                self._submit()
                self._strike()
                done += 1
                if done % _CHECK_EVERY == 0 or done == rounds:
                    self._check(done)
        finally:
            self._wrong += [f"left running: {each}" for each in self.site.close()]
        if not self._wrong:
            self.site.remove()
        return Verdict(
            seed=self._seed,
            rounds=done,
            calls=self._calls,
            runs=self._began,
            faults=dict(sorted(self._happened.items())),
            wrong=self._wrong,
        )

    def _submit(self) -> None:
        """Calls that have ended make room for new ones."""
        for number, future in list(self._open.items()):
            if future.done():
                self._take(number)
        while len(self._open) < _CALLS:
            number, self._calls = self._calls, self._calls + 1
            seconds = self._chance.choice((0.0, 0.05, 0.5, 2.0))
            self._open[number] = self._function.submit(str(self._runs), number, seconds)

    def _strike(self) -> None:
        time.sleep(self._chance.uniform(0, 0.6))
        node = self._chance.choice(self.site.names)
        fault, struck = (
            self._chance.choice(("scheduler", "agent", "keeper", "worker", "scheduler and agent")),
            True,
        )
        if fault == "keeper":
            struck = send(self.site.keeper(node), signal.SIGKILL)
        elif fault == "worker":
            workers = self._workers()
            struck = bool(workers) and send(self._chance.choice(workers), signal.SIGKILL)
        if "scheduler" in fault:
            self.site.kill("scheduler")
        if "agent" in fault:
            self.site.kill(node)
        for name in ("scheduler", *self.site.names):
            self.site.start(name)
        self._happened[fault if struck else "none to kill"] += 1

    def _workers(self) -> list[int]:
        """Processes of this site that run calls."""
        mark, found = f"{_MARK}={self.site.home}".encode(), []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found += [int(entry.name)] if mark in (entry / "environ").read_bytes().split(b"\0") else []
        return sorted(found)

    def _check(self, done: int) -> None:
        for number in list(self._open):
            self._take(number)
        self._wrong += self._lines("violations.log")
        self._began = len(self._lines("runs.log"))
        self._wrong += [f"{name} ended by itself" for name in self.site.died()]
        self._say(
            f"round {done}: {self._calls} calls, {sum(self._happened.values())} faults, {len(self._wrong)} wrong"
        )

    def _take(self, number: int) -> None:
        future = self._open.pop(number)
        try:
            value = future.result(timeout=_PATIENCE_SECONDS)
        except (RemoteError, TimeoutError) as error:
            self._wrong.append(f"{future.task_id}: {error!r}")
            return
        if value != number:
            self._wrong.append(f"{future.task_id} returned {value}, not {number}")

    def _lines(self, name: str) -> list[str]:
        file = self._runs / name
        return file.read_text().splitlines() if file.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    program = CallKills(arguments.seed, lambda line: print(line, flush=True))
    verdict = program.run(arguments.rounds)
    print(msgspec.json.format(msgspec.json.encode(verdict)).decode())
    if verdict.wrong:
        print(f"The site is kept in {program.site.home}", file=sys.stderr)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
