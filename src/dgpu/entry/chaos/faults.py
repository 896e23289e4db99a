"""The faults that a run may strike with, and how each of them ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

import msgspec

from dgpu.entry.chaos.cluster import ChaosFailed, Cluster
from dgpu.entry.chaos.machines import Machine
from dgpu.entry.chaos.network import Direction


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    target: str  # machine
    undo: Callable[[], None]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    summary: str
    strike: Callable[[Cluster], Struck]
    lasts_s: float | None = None  # None: until another scheduler leads
    is_hidden: bool = False  # clients must not notice: no call of the SDK fails
    stalls: bool = False  # no scheduler can store anything meanwhile
    needs_network: bool = False
    is_rare: bool = False  # only when it is asked for: it takes long


def _kill_master(cluster: Cluster) -> Struck:
    master = _master(cluster)
    master.kill()
    return Struck(target=master.name, undo=master.start)


def _kill_master_revoke(cluster: Cluster) -> Struck:
    """As a service manager with `ExecStopPost=dgpu ha handover --from NAME` does it."""
    struck, witness = _kill_master(cluster), cluster.witness
    cluster.dgpu(witness, "ha", "handover", "--from", struck.target, "--dir", str(witness.directory))
    return struck


def _kill_machine(cluster: Cluster) -> Struck:
    master = _master(cluster)
    master.kill_with_member()
    return Struck(target=master.name, undo=master.start)


def _kill_standby(cluster: Cluster) -> Struck:
    standby = _standby(cluster)
    standby.kill()
    return Struck(target=standby.name, undo=standby.start)


def _stop_master(cluster: Cluster) -> Struck:
    master = _master(cluster)
    master.signal(signal.SIGSTOP)
    return Struck(target=master.name, undo=lambda: master.signal(signal.SIGCONT))


def _kill_engine_leader(cluster: Cluster) -> Struck:
    leader = cluster.engine_leader()
    if leader is None:
        raise ChaosFailed("No member of the engine leads.")
    leader.kill_member()
    return Struck(target=leader.name, undo=_nothing)


def _kill_engine_follower(cluster: Cluster) -> Struck:
    leader = cluster.engine_leader()
    follower = next(machine for machine in reversed(cluster.members) if machine != leader)
    follower.kill_member()
    return Struck(target=follower.name, undo=_nothing)


def _lose_majority(cluster: Cluster) -> Struck:
    """The witness and the machine of the standby are gone, and the master cannot store anything."""
    standby = _standby(cluster)
    lost = (standby, cluster.witness)
    for machine in lost:
        machine.kill_with_member()

    def undo() -> None:
        for machine in lost:
            machine.start()

    return Struck(target=f"{standby.name}, {cluster.witness.name}", undo=undo)


def _hand_over(cluster: Cluster) -> Struck:
    master = _master(cluster)
    cluster.dgpu(master, "ha", "handover", "--config", str(master.config))
    return Struck(target=master.name, undo=_nothing)


def _kill_agent(cluster: Cluster) -> Struck:
    agent = cluster.agents[0]
    agent.kill()
    return Struck(target=agent.name, undo=agent.start)


def _cut(choose: Callable[[Cluster], Machine], *directions: Direction) -> Callable[[Cluster], Struck]:
    def strike(cluster: Cluster) -> Struck:
        network, machine = cluster.network, choose(cluster)
        if network is None:
            raise ChaosFailed("The machines have no network of their own.")
        network.drop(machine.name, *directions)
        return Struck(target=machine.name, undo=lambda: network.pass_on(machine.name, *directions))

    return strike


def _master(cluster: Cluster) -> Machine:
    master = cluster.master()
    if master is None:
        raise ChaosFailed("No scheduler leads.")
    return master


def _standby(cluster: Cluster) -> Machine:
    standby = cluster.standby()
    if standby is None:
        raise ChaosFailed("No scheduler follows.")
    return standby


def _nothing() -> None:
    """The supervisor of the process starts it again."""


FAULTS: Mapping[str, Fault] = {
    "kill-master": Fault(summary="kill -9 of the scheduler that leads", strike=_kill_master),
    "kill-master-revoke": Fault(
        summary="the same, and a service manager ends its lease at once", strike=_kill_master_revoke
    ),
    "kill-machine": Fault(summary="kill -9 of the master and its etcd", strike=_kill_machine),
    "kill-standby": Fault(
        summary="kill -9 of the scheduler that follows", strike=_kill_standby, lasts_s=1, is_hidden=True
    ),
    "stop-3": Fault(summary="SIGSTOP of the master for 3 s", strike=_stop_master, lasts_s=3),
    "stop-7": Fault(summary="SIGSTOP of the master for 7 s", strike=_stop_master, lasts_s=7),
    "stop-30": Fault(summary="SIGSTOP of the master for 30 s", strike=_stop_master, lasts_s=30),
    "kill-engine-leader": Fault(
        summary="kill -9 of the etcd that leads", strike=_kill_engine_leader, lasts_s=3, is_hidden=True
    ),
    "kill-engine-follower": Fault(
        summary="kill -9 of another etcd", strike=_kill_engine_follower, lasts_s=3, is_hidden=True
    ),
    "lose-majority": Fault(
        summary="two of three machines are gone for 10 s", strike=_lose_majority, lasts_s=10, stalls=True
    ),
    "lose-majority-30": Fault(
        summary="the same for 30 s; only if it is asked for",
        strike=_lose_majority,
        lasts_s=30,
        stalls=True,
        is_rare=True,
    ),
    "lose-majority-60": Fault(
        summary="the same for 60 s; only if it is asked for",
        strike=_lose_majority,
        lasts_s=60,
        stalls=True,
        is_rare=True,
    ),
    "lose-majority-300": Fault(
        summary="the same for 300 s; only if it is asked for",
        strike=_lose_majority,
        lasts_s=300,
        stalls=True,
        is_rare=True,
    ),
    "hand-over": Fault(summary="dgpu ha handover", strike=_hand_over, is_hidden=True),
    "kill-agent": Fault(summary="kill -9 of an agent", strike=_kill_agent, lasts_s=1, is_hidden=True),
    "vanish-master": Fault(
        summary="all packets of the master's machine are dropped",
        strike=_cut(_master, "in", "out"),
        needs_network=True,
    ),
    "deaf-master": Fault(
        summary="packets to the master's machine are dropped for 10 s",
        strike=_cut(_master, "in"),
        lasts_s=10,
        needs_network=True,
    ),
    "mute-master": Fault(
        summary="packets from the master's machine are dropped for 10 s",
        strike=_cut(_master, "out"),
        lasts_s=10,
        needs_network=True,
    ),
    "cut-standby": Fault(
        summary="all packets of the standby's machine are dropped for 10 s",
        strike=_cut(_standby, "in", "out"),
        lasts_s=10,
        needs_network=True,
        is_hidden=True,
    ),
    "cut-agent": Fault(
        summary="all packets of an agent's machine are dropped for 20 s",
        strike=_cut(lambda cluster: cluster.agents[0], "in", "out"),
        lasts_s=20,
        needs_network=True,
        is_hidden=True,
    ),
}
