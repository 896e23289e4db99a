"""Faults of a world with two schedulers. Every fault ends by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dgpu.sim.engine import SimEngine
from dgpu.sim.network import Network
from dgpu.sim.node_host import NodeHost
from dgpu.sim.two.cluster import Cluster
from dgpu.sim.two.member import MemberHost
from dgpu.sim.two.truth import Truth
from dgpu.sim.world import World


class TwoFaults:
    def __init__(
        self,
        world: World,
        network: Network,
        engine: SimEngine,
        truth: Truth,
        cluster: Cluster,
        nodes: list[NodeHost],
    ) -> None:
        self._world = world
        self._network = network
        self._engine = engine
        self._truth = truth
        self._cluster = cluster
        self._nodes = nodes
        self.happened: dict[str, int] = {}

    def plan(self, faults: int, over_ms: int, only: str = "") -> None:
        """`only` names one kind, for a mutant that no other kind reveals."""
        kinds: list[Callable[[], None]] = [
            self.master_dies,
            self.master_dies_committing,
            self.master_sleeps,
            self.master_is_cut_off_with_nodes,
            self.master_is_cut_off_with_nodes,
            self.nodes_change_sides,
            self.master_keeps_one_node,
            self.member_is_cut_off_from_engine,
            self.master_hands_over,
            self.standby_dies,
            self.standby_sleeps,
            self.standby_is_off_for_long,
            self.machine_restarts,
            self.clock_is_set,
            self.disk_is_full,
            self.disk_fails,
            self.engine_is_away,
            self.engine_is_slow,
            self.engine_loses_messages,
            self.engine_renews_from_memory,
            self.engine_revokes_early,
            self.engine_loses_hints,
            self.engine_is_full,
            self.agent_dies,
            self.agent_sleeps,
            self.keeper_dies,
            self.node_restarts,
            self.connection_breaks,
            self.node_is_cut_off,
            self.node_is_cut_off_and_master_dies,
            self.node_is_cut_off_from_one,
            self.node_hears_nothing,
            self.node_is_not_heard,
            self.network_is_slow,
            self.messages_come_twice,
        ]
        for _ in range(faults):
            kind = getattr(self, only) if only else self._world.chance.choice(kinds)
            self._world.after(self._world.between(0, over_ms), lambda k=kind: self._do(k))  # type: ignore[misc]

    def heal(self) -> None:
        self._network.heal()
        self._engine.heal()
        self._truth.is_full = False
        for member in self._cluster.members:
            member.start()
        for node in self._nodes:
            node.start_agent()

    def _do(self, kind: Callable[[], None]) -> None:
        self.happened[kind.__name__] = self.happened.get(kind.__name__, 0) + 1
        kind()

    # Schedulers

    def _master(self) -> MemberHost:
        return self._cluster.master() or self._world.chance.choice(self._cluster.members)

    def _standby(self) -> MemberHost:
        master = self._master()
        return next(member for member in self._cluster.members if member is not master)

    def _kill(self, member: MemberHost) -> None:
        member.crash()
        self._world.after(self._world.chance.choice((500, 5_000, 60_000)), member.start)

    def master_dies(self) -> None:
        self._kill(self._master())

    def master_dies_committing(self) -> None:
        self._master().dies_at_next_commit = True

    def standby_dies(self) -> None:
        self._kill(self._standby())

    def master_sleeps(self) -> None:
        self._master().pause(self._world.chance.choice((3_000, 7_000, 12_000, 30_000, 100_000)))

    def standby_sleeps(self) -> None:
        self._standby().pause(self._world.between(1_000, 60_000))

    def master_hands_over(self) -> None:
        self._master().hand_over()

    def standby_is_off_for_long(self) -> None:
        """Until its next group may be deleted."""
        standby = self._standby()
        standby.crash()
        self._world.after(self._world.between(60_000, 200_000), standby.start)

    def machine_restarts(self) -> None:
        member = self._world.chance.choice(self._cluster.members)
        member.reboot()
        self._world.after(self._world.between(5_000, 60_000), member.start)

    def clock_is_set(self) -> None:
        """An hour, or ten years, in either direction."""
        by_ms = self._world.chance.choice((3_600_000, 10 * 365 * 86_400_000))
        machine = self._world.chance.choice(self._cluster.members).machine
        machine.wall_off_ms += by_ms * self._world.chance.choice((-1, 1))

    def disk_is_full(self) -> None:
        member = self._world.chance.choice(self._cluster.members)
        member.copy.full_until = self._world.now + self._world.between(500, 40_000)

    def disk_fails(self) -> None:
        """The next sync fails: the process ends, and the machine gets a good disk again."""
        self._master().copy.fails_next_sync = True

    def master_is_cut_off_with_nodes(self) -> None:
        """Some nodes reach only the old master, which does not reach the engine."""
        master, standby = self._master(), self._standby()
        nodes = [node for node in self._nodes if self._world.chance.random() < 0.5]
        ms = self._world.chance.choice((3_000, 10_000, 60_000, 150_000))
        self._cut_from_engine(master, ms)
        for node in nodes:
            self._cut(node.link_to(standby.name), ms)
        if self._world.chance.random() < 0.3:
            self._world.after(self._world.between(0, 60_000), lambda: master.pause(8_000))

    def master_keeps_one_node(self) -> None:
        """For longer than a task lease: the new master gives its tasks to other nodes."""
        master, standby, node = self._master(), self._standby(), self._node()
        self._cut_from_engine(master, 150_000)
        self._cut(node.link_to(standby.name), 150_000)

    def nodes_change_sides(self) -> None:
        """They join the new master, and later reach only the old one."""
        master, standby = self._master(), self._standby()
        self._cut_from_engine(master, 150_000)
        for node in self._nodes:
            self._break(node)
            cut = partial(self._cut, node.link_to(standby.name), 90_000)
            self._world.after(self._world.between(15_000, 60_000), cut)

    def member_is_cut_off_from_engine(self) -> None:
        member = self._world.chance.choice(self._cluster.members)
        self._cut_from_engine(member, self._world.between(500, 60_000))

    def _cut_from_engine(self, member: MemberHost, ms: int) -> None:
        self._engine.cut_off(member.name)
        self._world.after(ms, lambda: self._engine.heal(member.name))

    # Engine

    def engine_is_away(self) -> None:
        self._engine.lose_majority(self._world.chance.choice((500, 5_000, 30_000, 90_000)))

    def engine_is_slow(self) -> None:
        self._engine.slow_down(self._world.between(1_000, 20_000))

    def engine_loses_messages(self) -> None:
        self._engine.lose_messages(self._world.between(1_000, 20_000))

    def engine_renews_from_memory(self) -> None:
        self._engine.answer_renewals_from_memory(self._world.between(1_000, 20_000))

    def engine_revokes_early(self) -> None:
        self._engine.revoke_early()

    def engine_loses_hints(self) -> None:
        self._engine.lose_hints(self._world.between(1_000, 60_000))

    def engine_is_full(self) -> None:
        self._truth.is_full = True
        self._world.after(self._world.between(100, 20_000), self._make_room)

    def _make_room(self) -> None:
        self._truth.is_full = False

    # Nodes and network

    def _node(self) -> NodeHost:
        return self._world.chance.choice(self._nodes)

    def _links(self, node: NodeHost) -> list[str]:
        return [node.name, *(node.link_to(member.name) for member in self._cluster.members)]

    def _cut(self, link: str, ms: int, *sides: str) -> None:
        self._network.cut_off(link, *sides)
        self._world.after(ms, lambda: self._network.heal(link))

    def agent_dies(self) -> None:
        node = self._node()
        node.crash_agent()
        self._world.after(self._world.between(100, 20_000), node.start_agent)

    def agent_sleeps(self) -> None:
        self._node().pause_agent(self._world.between(1_000, 100_000))

    def keeper_dies(self) -> None:
        self._node().crash_keeper()

    def node_restarts(self) -> None:
        node = self._node()
        node.reboot()
        self._world.after(self._world.between(5_000, 60_000), node.start_agent)

    def connection_breaks(self) -> None:
        self._break(self._node())

    def _break(self, node: NodeHost) -> None:
        links = self._links(node)
        for connection in self._network.connections:
            if connection.name in links:
                connection.cut()

    def node_is_cut_off(self) -> None:
        ms = self._world.between(1_000, 150_000)
        for link in self._links(self._node()):
            self._cut(link, ms)

    def node_is_cut_off_and_master_dies(self) -> None:
        """The next master finds a lost node whose task lease is not over."""
        for link in self._links(self._node()):
            self._cut(link, 150_000)
        self._world.after(self._world.between(16_000, 40_000), self.master_dies)

    def node_is_cut_off_from_one(self) -> None:
        member = self._world.chance.choice(self._cluster.members)
        self._cut(self._node().link_to(member.name), self._world.between(1_000, 150_000))

    def node_hears_nothing(self) -> None:
        ms = self._world.between(1_000, 150_000)
        for link in self._links(self._node()):
            self._cut(link, ms, "agent")

    def node_is_not_heard(self) -> None:
        ms = self._world.between(1_000, 150_000)
        for link in self._links(self._node()):
            self._cut(link, ms, "scheduler")

    def network_is_slow(self) -> None:
        self._network.slow_down(self._world.between(1_000, 20_000))

    def messages_come_twice(self) -> None:
        self._network.deliver_twice(self._world.between(1_000, 30_000))
