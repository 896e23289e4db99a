"""`dgpu chaos`: faults against a throw-away cluster under load, one after the other, and a verdict."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dgpu.entry.chaos import check, history
from dgpu.entry.chaos.cluster import NODES, ChaosFailed, Cluster
from dgpu.entry.chaos.faults import FAULTS, Fault, Struck
from dgpu.entry.chaos.load import Load
from dgpu.entry.chaos.network import Network
from dgpu.entry.chaos.report import Round, Verdict, clock, fault_counts, round_line, times_of
from dgpu.entry.chaos.takeovers import longest_gap, not_taken_over, takeover
from dgpu.entry.chaos.watch import Watch

_TAKEOVER_S = 60.0
_SETTLE_S = 180.0
_END_S = 180.0
_PAUSE_S = 0.1
_ACKNOWLEDGED = 5  # submits after a fault that show that the cluster works
_WARM_UP_S = 2.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    faults: tuple[str, ...]  # to choose from
    minutes: float | None = None  # None: until `rounds`
    rounds: int | None = None
    rate: float = 200.0  # submits per second
    network: bool = False  # machines in network namespaces
    keep: bool = False


class _Times(msgspec.Struct, frozen=True, kw_only=True):
    struck_s: float
    down_s: float  # the fault is there
    undone_s: float
    settled_s: float


class Run:
    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._chance = random.Random(settings.seed)  # noqa: S311 - a seed shall repeat it
        self._network = Network() if settings.network else None
        self._rounds: list[Round] = []
        self._wrong: list[str] = []
        self._checked = 0  # submits
        self._interrupted = False

    @contextlib.contextmanager
    def cluster(self) -> Iterator[None]:
        """A healthy cluster under load runs inside. Raises ChaosFailed or NetworkFailed if it cannot be made."""
        if self._network is not None:
            self._network.open()
        try:
            self._cluster = Cluster(self._network)
            try:
                self._begin()
                yield
            finally:
                self._end()
        finally:
            if self._network is not None:
                self._network.close()

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        home = self._cluster.home
        self._cluster.found(lambda text: self._say(f"{clock(self._now()):>7}  {text}"))
        self._release = home / "release"
        urls, ledger = self._cluster.urls, home / "ledger"
        self._load = Load(urls, ledger, self._settings.rate, self._now)
        self._watch = Watch(urls, ledger, self._now)
        self._watch.start()
        self._load.submit_long(len(NODES), self._release)
        self._load.start()
        time.sleep(_WARM_UP_S)

    def _end(self) -> None:
        if self._settings.keep:
            self._say(f"Logs and history: {self._cluster.home}")
        with _no_interrupts():
            if hasattr(self, "_load"):
                self._load.stop()
                self._watch.stop()
                if self._settings.keep:
                    self._save(self._cluster.home / "history.jsonl")
            self._cluster.close(keep=self._settings.keep)

    def play(self) -> Verdict:
        """Strikes until the time is over, then judges. After Ctrl-C it judges at once."""
        settings, began_s = self._settings, self._now()
        try:
            while not self._wrong:
                if settings.rounds is not None and len(self._rounds) >= settings.rounds:
                    break
                if settings.minutes is not None and self._now() - began_s >= settings.minutes * 60:
                    break
                self.strike(self._chance.choice(settings.faults))
        except KeyboardInterrupt:
            self._interrupted = True
            self._say("Interrupted. The history so far is checked.")
            self._cluster.repair()
        except ChaosFailed as error:
            self._wrong.append(f"stuck: {error}")
            self._cluster.repair()
        return self.judge()

    def strike(self, name: str) -> Round:
        """One fault, and the checks after it."""
        fault = FAULTS[name]
        master = self._cluster.master()
        struck_s = self._now()
        try:
            struck = fault.strike(self._cluster)
        except ChaosFailed:
            self._cluster.repair()
            raise
        down_s = self._now()
        try:
            self._hold(fault, master.name if master else "", struck_s)
        finally:
            undone_s = self._now()
            struck.undo()
        self._settle(name, undone_s)
        times = _Times(struck_s=struck_s, down_s=down_s, undone_s=undone_s, settled_s=self._now())
        done = self._round(name, struck, master.name if master else "", times)
        self._rounds.append(done)
        self._wrong += done.wrong
        self._say(round_line(done))
        check.cancel_held(self._cluster.urls.values())
        return done

    def _hold(self, fault: Fault, old: str, struck_s: float) -> None:
        until_s = struck_s + (_TAKEOVER_S if fault.lasts_s is None else fault.lasts_s)
        while self._now() < until_s:
            if fault.lasts_s is None and self._is_taken_over(old, struck_s, fault):
                return
            time.sleep(_PAUSE_S)

    def _is_taken_over(self, old: str, struck_s: float, fault: Fault) -> bool:
        found = takeover(self._load.submits[self._checked :], self._watch.steps, old, struck_s)
        return found is not None and (found.first_run_s is not None or not fault.needs_network)

    def _settle(self, name: str, since_s: float) -> None:
        try:
            self._cluster.until(
                lambda: not self._unsettled(since_s), f"a healthy cluster after {name}", _SETTLE_S
            )
        except ChaosFailed as error:
            raise ChaosFailed(f"{error} {self._unsettled(since_s)}") from None

    def _unsettled(self, since_s: float) -> str:
        """The first thing that is not yet as it should be; empty: nothing."""
        if self._load.problem:
            raise ChaosFailed(self._load.problem)
        recent = self._load.submits[-_ACKNOWLEDGED:]
        if len(recent) < _ACKNOWLEDGED or recent[0].sent_s < since_s:
            return "Submits are not acknowledged."
        return self._cluster.trouble()

    def _round(self, name: str, struck: Struck, master: str, times: _Times) -> Round:
        fault, struck_s, settled_s = FAULTS[name], times.struck_s, times.settled_s
        submits = self._load.submits[self._checked :]
        self._checked += len(submits)
        wrong = [
            *check.check_submits(self._cluster.urls, submits),
            *history.given_twice(submits),
            *history.out_of_order(submits),
        ]
        failed = [each for each in self._load.failed_calls if struck_s <= each.failed_s <= settled_s]
        if fault.is_hidden:
            wrong += history.noticed(failed, struck_s, settled_s)
        if fault.stalls:
            wrong += history.stored_without_majority(submits, times.down_s, times.undone_s)
            wrong += history.reads_of_stall(self._watch.reads, master, times.down_s, times.undone_s)
        wrong += history.ran_twice(self._watch.steps)
        wrong += history.epochs_go_back(self._watch.leading)
        found = takeover(submits, self._watch.steps, master, struck_s)
        if fault.lasts_s is None:
            wrong += not_taken_over(found, master, times.undone_s - struck_s)
        return Round(
            fault=name,
            target=struck.target,
            struck_s=struck_s,
            undone_s=times.undone_s,
            settled_s=settled_s,
            submits=len(submits),
            failed_calls=len(failed),
            longest_gap_s=longest_gap(submits, struck_s, settled_s),
            takeover=found,
            wrong=tuple(wrong),
        )

    def judge(self) -> Verdict:
        """Stops the load, lets every task end, and checks the whole history."""
        self._load.stop()
        self._release.touch()
        urls = self._cluster.urls
        try:
            self._cluster.until(self._has_ended, "both schedulers and the end of all tasks", _END_S)
        except ChaosFailed as error:
            self._wrong.append(f"stuck: {error}")
        self._watch.stop()
        submits, steps = self._load.submits, self._watch.steps
        lists = check.all_tasks(urls)
        for name, found in zip(urls, lists, strict=True):
            self._wrong += history.lost(submits, found, name)
        self._wrong += [
            *history.differ(lists[0], lists[-1]),
            *history.without_cause(lists[0]),
            *history.unfinished(lists[0]),
            *history.succeeded_without_a_run(lists[0], steps),
            *history.given_twice(submits),
            *history.out_of_order(submits),
            *history.ran_twice(steps),
            *history.epochs_go_back(self._watch.leading),
        ]
        return self._verdict()

    def _has_ended(self) -> bool:
        cluster = self._cluster
        return all(map(cluster.is_ready, cluster.schedulers)) and check.open_tasks(cluster.urls.values()) == 0

    def _verdict(self) -> Verdict:
        rounds, changed = self._rounds, [each for each in self._rounds if each.takeover is not None]
        return Verdict(
            seed=self._settings.seed,
            seconds=round(self._now(), 1),
            interrupted=self._interrupted,
            submits=len(self._load.submits),
            runs=sum(step.begins for step in self._watch.steps),
            failed_calls=len(self._load.failed_calls),
            epochs=len({each.epoch for each in self._watch.leading}),
            faults=fault_counts(rounds),
            takeovers=times_of((each.fault, each.takeover.gap_s) for each in changed if each.takeover),
            first_runs=times_of((each.fault, each.takeover.first_run_s) for each in changed if each.takeover),
            gaps=times_of((each.fault, each.longest_gap_s) for each in rounds if each.takeover is None),
            wrong=tuple(dict.fromkeys(self._wrong)),
        )

    def _save(self, file: Path) -> None:
        """One record in a line, with its kind."""
        parts: dict[str, Any] = {
            "round": self._rounds,
            "leading": self._watch.leading,
            "submit": self._load.submits,
            "failed_call": self._load.failed_calls,
            "step": self._watch.steps,
            "read": self._watch.reads,
        }
        with file.open("wb") as lines:
            for kind, records in parts.items():
                for record in records:
                    lines.write(msgspec.json.encode({"kind": kind, **msgspec.to_builtins(record)}) + b"\n")

    def _now(self) -> float:
        return time.monotonic() - self._began_s


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the clean-up."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
