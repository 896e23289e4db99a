"""The process of one scheduler among several: it dies, stops and starts again. Its disk stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgpu.core.model.ids import NodeId
from dgpu.journal.engine import EngineError
from dgpu.sim.checkers import Violation
from dgpu.sim.engine import SimEngine
from dgpu.sim.network import Connection
from dgpu.sim.scheduler_host import SimMachine
from dgpu.sim.two.copy import LocalCopy
from dgpu.sim.two.life import Life, Rules
from dgpu.sim.two.truth import Truth
from dgpu.sim.world import World

_RETRY_MS = 1_000
MakeLife = Callable[..., Life]


class MemberHost:
    def __init__(
        self,
        world: World,
        engine: SimEngine,
        truth: Truth,
        rules: Rules,
        name: str,
        make_life: MakeLife = Life,
    ) -> None:
        self._world = world
        self._client = engine.client(name)
        self._truth = truth
        self._rules = rules
        self.name = name
        self._make_life = make_life
        self.machine = SimMachine(world, f"{name}-", up_ms=world.between(1_000_000, 90_000_000))
        self.copy = LocalCopy(world)
        self.copy.on_broken = self.die_soon
        self.dies_at_next_commit = False
        self.life: Life | None = None
        self._process: object | None = None  # a token; callbacks of an earlier one are dropped
        self._paused: list[Callable[[], None]] | None = None
        self.lives = 0
        self.led = 0  # how many lives led

    # Faults

    def start(self) -> None:
        if self._process is None:
            self._process = object()
            self._open()

    def crash(self) -> None:
        """Like kill -9."""
        if self._process is None:
            return
        self._process = self._paused = None
        self.dies_at_next_commit = False
        self._drop_life()
        self.copy.crash()

    def reboot(self) -> None:
        self.crash()
        self.machine.reboot()

    def hand_over(self) -> None:
        """A planned stop: the group in flight first, then nothing more leaves, then the key is given back."""
        life = self.life
        if life is None or self._paused is not None or not life.leads:
            return
        if life.scheduler.in_flight:
            self._world.after(5, self.guarded(life, self.hand_over))
            return
        term = life.candidacy.machine.term
        self.crash()
        if term is not None:
            self._client.resign(term, lambda _: None)
        self._world.after(self._world.between(500, 20_000), self.start)

    def die_soon(self) -> None:
        process = self._process

        def die() -> None:
            if self._process is process:
                self.crash()
                self._world.after(self._world.between(100, 20_000), self.start)

        self._world.after(self._world.between(0, 8), die)

    def pause(self, ms: int) -> None:
        """SIGSTOP."""
        if self._process is None or self._paused is not None:
            return
        self._paused = []
        process = self._process

        def resume() -> None:
            if self._process is process and self._paused is not None:
                waiting, self._paused = self._paused, None
                for action in waiting:
                    action()

        self._world.after(ms, resume)

    # The life's side

    def end_life(self) -> None:
        self._drop_life()
        self.copy.crash()  # a group on its way to the files is read again from the engine
        self._open()

    def guarded(self, life: object, action: Callable[..., None]) -> Callable[..., None]:
        """Drops the action after the end of the life (or process), and postpones it while the process is stopped."""

        def act(*values: Any) -> None:
            if life is not self.life and life is not self._process:
                return
            if self._paused is not None:
                self._paused.append(lambda: act(*values))
                return
            action(*values)

        return act

    # Clients and agents

    @property
    def serves(self) -> bool:
        return self.life is not None and self.life.serves

    @property
    def is_up(self) -> bool:
        """The port for agents opens when the epoch is durable."""
        return self.serves

    def session_of(self, node_id: NodeId) -> str:
        return self.life.session_of(node_id) if self.life is not None else ""

    def accept(self, connection: Connection) -> None:
        if self.life is not None:
            self.life.accept(connection)

    def on_message(self, connection: Connection, content: bytes) -> None:
        if self.life is not None:
            self.guarded(self.life, self.life.on_message)(connection, content)

    def on_broken(self, connection: Connection) -> None:
        if self.life is not None:
            self.guarded(self.life, self.life.on_broken)(connection)

    # Opening the local copy

    def _drop_life(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            self.led += life.leads
            life.close()

    def _open(self) -> None:
        """As `ReplicatedJournal.open` does: finds the last group that copy and engine have in common."""
        self.copy.open()
        process = self._process

        def floored(floor: Any) -> None:
            if isinstance(floor, EngineError):
                self._world.after(_RETRY_MS, self.guarded(process, self._open))
            elif self.copy.last_index + 1 < floor:
                self._client.snapshot(self.guarded(process, self._fetched))
            else:
                last = self.copy.last_index
                self._client.head(self.guarded(process, lambda head: self._compare(head, last)))

        self._client.floor(self.guarded(process, floored))

    def _fetched(self, found: Any) -> None:
        """As `journal.fetched` does."""
        if isinstance(found, EngineError) or self.copy.is_full:
            self._world.after(_RETRY_MS, self.guarded(self._process, self._open))
            return
        stored, parts = found
        self.copy.begin_at(stored.index, stored.chain, b"".join(parts))
        self._open()

    def _compare(self, head: Any, index: int) -> None:
        process = self._process
        if isinstance(head, EngineError):
            self._world.after(_RETRY_MS, self.guarded(process, self._open))
            return
        common = min(index, head.index)

        def compared(chain: Any) -> None:
            if isinstance(chain, EngineError) or chain is None:  # None: the floor has moved meanwhile
                self._world.after(_RETRY_MS, self.guarded(process, self._open))
            elif chain == self.copy.chains[common]:
                self._begin(common)
            else:
                self._compare(head, common - 1)

        self._client.chain_at(common, self.guarded(process, compared))

    def _begin(self, common: int) -> None:
        if common < self.copy.last_index:
            raise Violation(
                f"seed {self._world.seed}: the copy of {self.name} has group {self.copy.last_index}, but the journal "
                f"has only {common} of them"
            )
        self.lives += 1
        nonce = f"{self.name}-{self.lives}"
        self.life = self._make_life(self._world, self, self._client, self._truth, self._rules, nonce)
        self.life.start()
