"""What keeps a demand off the nodes.

A node that could hold it, if all were well and nothing ran there, names what is in the way now: it is offline or
draining, cards are busy, faulty, reserved or partly used by others, cpus or ram are given away. All of these are
blockers, for on some node each of them is in the way. Where a rule of the task alone shuts out idle cards (their
model, their memory), that is a blocker too. If a node can take it now, there is none.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from dgpu.core.ids import NodeId
from dgpu.core.node import Gpu, Node
from dgpu.core.policy.capacity import cpus, never_fits
from dgpu.core.policy.fit import Demand
from dgpu.core.rejections import NeverFits
from dgpu.core.room import Room
from dgpu.core.state import ClusterState


class Blocker(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    detail: str  # plain words, no full stop
    numbers: dict[str, int | str] = {}


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """The node that lacks least, and what it lacks."""

    node_id: NodeId
    lacks: dict[str, int]


class _Tally:
    """What is in the way, summed over the nodes."""

    def __init__(self) -> None:
        self.nodes: Counter[str] = Counter()  # nodes on which something is in the way
        self.gpus: Counter[str] = Counter()  # cards, by what is in the way
        self.free = 0
        self.most_free = 0
        self.most_cpus_free_milli = 0
        self.most_ram_free_mb = 0
        self.other_models: set[str] = set()
        self.most_memory_mb = 0


def blockers_of(state: ClusterState, demand: Demand) -> list[Blocker]:
    if not state.nodes:
        return [Blocker(code="no_nodes", detail="no node has registered yet")]
    if state.rooms.best(demand) is not None:
        return []
    impossible = never_fits(state, demand)
    if impossible is not None:
        return [_impossible(impossible), *_reserved_suiting(state, demand)]
    tally = _Tally()
    for node_id, node in state.nodes.items():
        _weigh(tally, state, node, state.rooms.by_node[node_id], demand)
    return [*_node_blockers(tally), *_card_blockers(tally, demand), *_share_blockers(tally, demand, state)]


def nearest_node(state: ClusterState, demand: Demand) -> Nearest | None:
    """Among connected nodes in service: fewest GPUs short, then least cpus, then least ram; ties by node id."""
    best: tuple[int, int, int, NodeId] | None = None
    for node_id, room in state.rooms.by_node.items():
        if not room.ready:
            continue
        good = sum(_suits(card[3], -card[0], demand) for card in room.idle)
        short = (
            max(0, demand.gpus - good),
            max(0, demand.cpus_milli - room.cpus_free_milli) if demand.cpus_milli else 0,
            max(0, demand.ram_mb - room.ram_free_mb) if demand.ram_mb else 0,
            node_id,
        )
        if best is None or short < best:
            best = short
    if best is None:
        return None
    lacks = dict(zip(("gpus", "cpus_milli", "ram_mb"), best[:3], strict=True))
    return Nearest(node_id=best[3], lacks={what: number for what, number in lacks.items() if number})


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _weigh(tally: _Tally, state: ClusterState, node: Node, room: Room, demand: Demand) -> None:
    gpus = [gpu for gpu in state.node_gpus(node.id) if not gpu.gone]
    ways = Counter(_in_the_way(state, gpu, demand) for gpu in gpus)
    good = ways.pop("", 0)
    if room.ready:
        tally.free += good
        tally.most_free = max(tally.most_free, good)
        _weigh_rules(tally, room, demand)
    could = good + sum(number for way, number in ways.items() if way not in {"model", "too_small"})
    if could < demand.gpus or node.cpus_milli < demand.cpus_milli or node.ram_in_steps_mb < demand.ram_mb:
        return
    if node.offline_since:
        tally.nodes["offline"] += 1
        tally.gpus["offline"] += could
        return
    if node.draining:
        tally.nodes["draining"] += 1
        tally.gpus["draining"] += could
        return
    if good < demand.gpus:
        for way in ("reserved", "faulty", "busy", "foreign"):
            if ways[way]:
                tally.gpus[way] += ways[way]
                tally.nodes[way] += 1
    _weigh_shares(tally, state, room, demand)


def _weigh_rules(tally: _Tally, room: Room, demand: Demand) -> None:
    """Idle cards that only the task's own rule on model or memory shuts out."""
    others = [card for card in room.idle if demand.gpu_models and card[3] not in demand.gpu_models]
    roomy = sum(-card[0] >= demand.gpu_memory_mb for card in room.idle)
    matching = [card for card in room.idle if not demand.gpu_models or card[3] in demand.gpu_models]
    if demand.gpus and others and roomy >= demand.gpus:
        tally.gpus["model"] += len(others)
        tally.other_models.update(card[3] for card in others)
    if demand.gpus and len(matching) >= demand.gpus:
        tally.gpus["memory"] += sum(-card[0] < demand.gpu_memory_mb for card in matching)
        tally.most_memory_mb = max(tally.most_memory_mb, -matching[demand.gpus - 1][0])


def _weigh_shares(tally: _Tally, state: ClusterState, room: Room, demand: Demand) -> None:
    tally.most_cpus_free_milli = max(tally.most_cpus_free_milli, room.cpus_free_milli)
    tally.most_ram_free_mb = max(tally.most_ram_free_mb, room.ram_free_mb)
    if demand.cpus_milli and room.cpus_free_milli < demand.cpus_milli:
        tally.nodes["cpus"] += 1
    if demand.ram_mb and room.ram_free_mb < demand.ram_mb:
        tally.nodes["ram"] += 1
    if len(room.leases) >= state.settings.most_leases:
        tally.nodes["leases"] += 1


def _in_the_way(state: ClusterState, gpu: Gpu, demand: Demand) -> str:
    if demand.gpu_models and gpu.model not in demand.gpu_models:
        return "model"
    if gpu.memory_in_steps_mb < demand.gpu_memory_mb:
        return "too_small"
    if gpu.reserved:
        return "reserved"
    if gpu.fault:
        return "faulty"
    if gpu.id in state.rooms.holders:
        return "busy"
    return "" if gpu.memory_in_steps_mb - gpu.foreign_mb >= demand.gpu_memory_mb else "foreign"


def _suits(model: str, free_mb: int, demand: Demand) -> bool:
    return (not demand.gpu_models or model in demand.gpu_models) and free_mb >= demand.gpu_memory_mb


def _node_blockers(tally: _Tally) -> list[Blocker]:
    words = {"offline": "cannot be reached", "draining": "being drained"}
    found = []
    for code, word in words.items():
        nodes, gpus = tally.nodes[code], tally.gpus[code]
        if nodes:
            verb = "" if code == "offline" else "are " if nodes > 1 else "is "
            detail = f"{plural(nodes, 'node')} that could run it {verb}{word}"
            found.append(Blocker(code=code, detail=detail, numbers={"nodes": nodes, "gpus": gpus}))
    return found


def _card_blockers(tally: _Tally, demand: Demand) -> list[Blocker]:
    gpus, found = tally.gpus, []
    if gpus["busy"]:
        detail = (
            f"needs {plural(demand.gpus, 'GPU')} on one node; at most {tally.most_free} free on one,"
            f" {tally.free} in all, {gpus['busy']} busy"
        )
        numbers: dict[str, int | str] = {
            "needed": demand.gpus,
            "most_free_on_one_node": tally.most_free,
            "free": tally.free,
            "busy": gpus["busy"],
        }
        found.append(Blocker(code="gpus_busy", detail=detail, numbers=numbers))
    if gpus["model"]:
        asked, others = ", ".join(demand.gpu_models), ", ".join(sorted(tally.other_models))
        detail = f"asks for {asked}; {plural(gpus['model'], 'idle GPU')} of another model ({others})"
        found.append(
            Blocker(
                code="gpu_model",
                detail=detail,
                numbers={"asked": asked, "other": others, "idle": gpus["model"]},
            )
        )
    if gpus["memory"] or gpus["foreign"]:
        idle = max(gpus["memory"], gpus["foreign"])
        detail = f"asks for {demand.gpu_memory_mb} MB on each GPU; {plural(idle, 'idle GPU')} with less free memory"
        numbers = {"asked_mb": demand.gpu_memory_mb, "most_free_mb": tally.most_memory_mb, "idle": idle}
        found.append(Blocker(code="gpu_memory", detail=detail, numbers=numbers))
    return [*found, *_set_apart("reserved", gpus["reserved"]), *_set_apart("faulty", gpus["faulty"])]


def _set_apart(code: str, gpus: int) -> list[Blocker]:
    if not gpus:
        return []
    detail = f"{plural(gpus, 'GPU')} {'is' if gpus == 1 else 'are'} {code}"
    return [Blocker(code=code, detail=detail, numbers={"gpus": gpus})]


def _share_blockers(tally: _Tally, demand: Demand, state: ClusterState) -> list[Blocker]:
    found = []
    if tally.nodes["cpus"]:
        most = max(0, tally.most_cpus_free_milli)
        detail = f"needs {cpus(demand.cpus_milli)} cpus on one node; at most {cpus(most)} free"
        numbers: dict[str, int | str] = {"needed_milli": demand.cpus_milli, "most_free_milli": most}
        found.append(Blocker(code="cpus", detail=detail, numbers=numbers))
    if tally.nodes["ram"]:
        most = max(0, tally.most_ram_free_mb)
        detail = f"needs {demand.ram_mb} MB of ram on one node; at most {most} free"
        found.append(
            Blocker(code="ram", detail=detail, numbers={"needed_mb": demand.ram_mb, "most_free_mb": most})
        )
    if tally.nodes["leases"]:
        limit = state.settings.most_leases
        detail = (
            f"{plural(tally.nodes['leases'], 'node')} already runs the most tasks allowed on one ({limit})"
        )
        found.append(Blocker(code="node_full", detail=detail, numbers={"limit": limit}))
    return found


_IMPOSSIBLE = {
    "gpus": ("gpus_per_node", "needs {requested} GPUs on one node; the largest has {largest}"),
    "gpu_model": ("gpu_model", "asks for {requested}; the nodes have {largest}"),
    "gpu_memory_mb": ("gpu_memory", "asks for {requested} MB on each GPU; the largest offer is {largest}"),
    "cpus": ("cpus", "needs {requested} cpus on one node; the largest has {largest}"),
    "ram_mb": ("ram", "needs {requested} MB of ram on one node; the largest has {largest}"),
}


def _reserved_suiting(state: ClusterState, demand: Demand) -> list[Blocker]:
    """Cards that would do, were they not reserved."""
    suiting = sum(
        gpu.reserved and not gpu.gone and _suits(gpu.model, gpu.memory_in_steps_mb, demand)
        for gpu in state.gpus.values()
    )
    return _set_apart("reserved", suiting) if demand.gpus else []


def _impossible(lack: NeverFits) -> Blocker:
    """It was possible once, or came before any node: now no registered node could hold it, even empty."""
    code, words = _IMPOSSIBLE[lack.lacks]
    return Blocker(
        code=code,
        detail=words.format(requested=lack.requested, largest=lack.largest),
        numbers={"requested": lack.requested, "largest": lack.largest},
    )
