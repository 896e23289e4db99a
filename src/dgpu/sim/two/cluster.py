"""Several schedulers as clients see them. A client does not know the master and asks one after the other."""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.commands import Command
from dgpu.core.model.ids import NodeId
from dgpu.sim.history import SimHistory
from dgpu.sim.scheduler_host import Answer, Look
from dgpu.sim.two.life import Life
from dgpu.sim.two.member import MemberHost
from dgpu.sim.two.truth import Truth
from dgpu.sim.world import World


class Cluster:
    def __init__(self, world: World, truth: Truth, members: list[MemberHost]) -> None:
        self._world = world
        self._truth = truth
        self.members = members
        self.read_in_flight: Callable[[], None] = lambda: None

    @property
    def history(self) -> SimHistory:
        return self._truth.history

    def master(self) -> MemberHost | None:
        """By the engine's word."""
        leader = self._truth.leader(self._world.now)
        return next((m for m in self.members if leader is not None and m.name == leader.candidate.name), None)

    def session_of(self, node_id: NodeId) -> str:
        master = self.master()
        return master.session_of(node_id) if master is not None else ""

    def execute(self, command: Command, answer: Answer) -> None:
        self._ask(lambda life: life.execute(command, answer))

    def read(self, look: Look) -> None:
        self._ask(lambda life: life.read(look))

    def _ask(self, call: Callable[[Life], None]) -> None:
        """The first one that believes to lead gets the request. Standbys refuse it."""
        for member in self._world.chance.sample(self.members, len(self.members)):
            if member.life is not None and member.serves:
                member.guarded(member.life, call)(member.life)
                return
