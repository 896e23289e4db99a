"""The faults and their times. Every fault ends by itself; after the last one the world must come to rest."""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.model.ids import NodeId
from dgpu.sim.network import Network
from dgpu.sim.node_host import NodeHost
from dgpu.sim.scheduler_host import JUMPS_MS, SchedulerHost
from dgpu.sim.world import World


class Faults:
    def __init__(
        self, world: World, network: Network, scheduler: SchedulerHost, nodes: list[NodeHost]
    ) -> None:
        self._world = world
        self._network = network
        self._scheduler = scheduler
        self._nodes = nodes
        self.happened: dict[str, int] = {}

    def plan(self, faults: int, over_ms: int, only: str = "", *, has_calls: bool = False) -> None:
        """`only` names one kind, for a mutant that no other kind reveals."""
        kinds: list[Callable[[NodeHost], None]] = [
            self.scheduler_dies,
            self.scheduler_dies_writing,
            self.scheduler_dies_writing,
            self.agent_dies,
            self.agent_sleeps,
            self.falls_asleep_and_is_cut_off,
            self.keeper_dies,
            self.keeper_hangs,
            self.keeper_hangs_and_is_cut_off,
            self.node_restarts,
            self.connection_breaks,
            self.node_is_cut_off,
            self.node_is_cut_off,
            self.node_is_cut_off,
            self.node_hears_nothing,
            self.node_is_not_heard,
            self.network_is_slow,
            self.messages_come_twice,
            self.scheduler_sleeps,
            self.disk_is_full,
            self.sync_fails,
            self.snapshot,
            self.wall_clock_is_set,
            self.scheduler_restarts_with_its_machine,
        ]
        if has_calls:
            kinds += [self.worker_dies, self.worker_hangs, self.worker_is_cut_off] * 3
        chosen = [self._world.chance.choice(kinds) for _ in range(faults)]
        chosen += [self.output_is_forged, self.output_disk_is_full]
        if only:
            chosen = [getattr(self, only)] * faults
        for kind in chosen:
            node = self._world.chance.choice(self._nodes)
            self._world.after(self._world.between(0, over_ms), lambda k=kind, n=node: self._do(k, n))  # type: ignore[misc]

    def lose_state(self) -> None:
        """Once: a new state directory, while keepers hold leases of the old one."""
        self._scheduler.lose_state()
        for node in self._nodes:
            node.leave_cluster()
            self._world.after(self._world.between(100, 20_000), node.start_agent)

    def lose_tail(self) -> None:
        """Once: the journal loses its last groups, few or many."""
        self._scheduler.lose_tail(self._world.chance.choice((1, 2, 5, 20, 100)))

    def heal(self) -> None:
        self._network.heal()
        self._scheduler.start()
        for node in self._nodes:
            node.start_agent()

    def _do(self, kind: Callable[[NodeHost], None], node: NodeHost) -> None:
        self.happened[kind.__name__] = self.happened.get(kind.__name__, 0) + 1
        kind(node)

    def scheduler_dies(self, _node: NodeHost) -> None:
        self._scheduler.crash()
        down_ms = self._world.between(100, 90_000) if self._world.chance.random() < 0.3 else 500
        self._world.after(down_ms, self._scheduler.start)

    def scheduler_dies_writing(self, _node: NodeHost) -> None:
        self._scheduler.dies_at_next_write = True

    def disk_is_full(self, _node: NodeHost) -> None:
        """A write fails. Sometimes the scheduler is killed meanwhile."""
        disk = self._scheduler.disk
        disk.full_until = self._world.now + self._world.between(100, 30_000)
        if self._world.chance.random() < 0.3:
            self._world.after(self._world.between(0, 5_000), lambda: self.scheduler_dies(_node))

    def sync_fails(self, _node: NodeHost) -> None:
        self._scheduler.disk.fail_next_sync()

    def agent_dies(self, node: NodeHost) -> None:
        node.crash_agent()
        self._world.after(self._world.between(100, 20_000), node.start_agent)

    def agent_sleeps(self, node: NodeHost) -> None:
        node.pause_agent(self._world.between(1_000, 100_000))

    def falls_asleep_and_is_cut_off(self, node: NodeHost) -> None:
        """It wakes without a network, with an old answer in its buffer."""
        self._network.slow_down(8_000)
        asleep_at_ms = self._world.between(1_000, 6_000)
        self._world.after(asleep_at_ms, lambda: node.pause_agent(self._world.between(20_000, 59_000)))
        self._world.after(asleep_at_ms + 2_000, lambda: self._network.cut_off(node.name))
        self._world.after(asleep_at_ms + 150_000, lambda: self._network.heal(node.name))

    def keeper_dies(self, node: NodeHost) -> None:
        node.crash_keeper()

    def keeper_hangs(self, node: NodeHost) -> None:
        node.hang_keeper(self._world.between(1_000, 100_000))

    def keeper_hangs_and_is_cut_off(self, node: NodeHost) -> None:
        """Only the guard can end its tasks before they are placed on another node."""
        node.hang_keeper(self._world.between(60_000, 150_000))
        self._world.after(self._world.between(0, 5_000), lambda: self._network.cut_off(node.name))
        self._world.after(150_000, lambda: self._network.heal(node.name))

    def worker_dies(self, node: NodeHost) -> None:
        if workers := node.keeper.workers.alive:
            node.keeper.kill_worker(self._world.chance.choice(workers).order.lease_id)

    def worker_hangs(self, node: NodeHost) -> None:
        """SIGSTOP of its process; a long one ends it."""
        if workers := node.keeper.workers.alive:
            worker = self._world.chance.choice(workers)
            worker.stop("signal")
            self._world.after(self._world.between(100, 60_000), lambda: worker.go_on("signal"))

    def worker_is_cut_off(self, node: NodeHost) -> None:
        for worker in node.keeper.workers.alive:
            worker.break_link()

    def node_restarts(self, node: NodeHost) -> None:
        node.reboot()
        self._world.after(self._world.between(5_000, 60_000), node.start_agent)

    def connection_breaks(self, node: NodeHost) -> None:
        for connection in self._network.connections:
            if connection.name == node.name:
                connection.cut()

    def node_is_cut_off(self, node: NodeHost) -> None:
        self._network.cut_off(node.name)
        self._world.after(self._world.between(1_000, 150_000), lambda: self._network.heal(node.name))

    def node_hears_nothing(self, node: NodeHost) -> None:
        """Its heartbeats arrive, their answers do not: the scheduler counts a lease that the node cannot renew."""
        self._network.cut_off(node.name, "agent")
        self._world.after(self._world.between(1_000, 150_000), lambda: self._network.heal(node.name))

    def node_is_not_heard(self, node: NodeHost) -> None:
        self._network.cut_off(node.name, "scheduler")
        self._world.after(self._world.between(1_000, 150_000), lambda: self._network.heal(node.name))

    def messages_come_twice(self, _node: NodeHost) -> None:
        self._network.deliver_twice(self._world.between(1_000, 30_000))

    def scheduler_sleeps(self, _node: NodeHost) -> None:
        self._scheduler.pause(self._world.between(1_000, 100_000))

    def network_is_slow(self, _node: NodeHost) -> None:
        self._network.slow_down(self._world.between(1_000, 20_000))

    def output_is_forged(self, node: NodeHost) -> None:
        """By a node that sends output of another one's attempt, and by a caller that invents a session."""
        node_id = NodeId(node.name)
        self._scheduler.output.forge(node_id, self._scheduler.session_of(node_id))
        self._scheduler.output.forge(node_id, "invented")

    def output_disk_is_full(self, _node: NodeHost) -> None:
        self._scheduler.output.full_until = self._world.now + self._world.between(1_000, 90_000)

    def snapshot(self, _node: NodeHost) -> None:
        self._scheduler.disk.take_snapshot()

    def wall_clock_is_set(self, _node: NodeHost) -> None:
        self._scheduler.machine.wall_off_ms = self._world.chance.choice((0, *JUMPS_MS))

    def scheduler_restarts_with_its_machine(self, node: NodeHost) -> None:
        """With a wall clock that may be wrong."""
        self._scheduler.crash()
        self._scheduler.machine.reboot()
        self.wall_clock_is_set(node)
        self._world.after(self._world.between(5_000, 90_000), self._scheduler.start)
