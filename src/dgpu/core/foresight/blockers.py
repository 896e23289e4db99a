"""What keeps a demand off the nodes.

A node that could hold it, if all were well and nothing ran there, names what is in the way now: it is offline,
unconfirmed or draining, cards are busy, faulty, reserved or partly used by others, cpus or ram are given away. All of these are
blockers, for on some node each of them is in the way. Where a rule of the task alone shuts out idle cards (their
model, their memory), that is a blocker too. If a node can take it now, there is none.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from dgpu.core.foresight.alike import alike
from dgpu.core.index.cards import usable_mb
from dgpu.core.index.room import Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.health import SERVING, Health
from dgpu.core.model.ids import NodeId
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rejections import NeverFits
from dgpu.core.rules.capacity import cpus, never_fits, promised_mb
from dgpu.core.rules.fit import accepts, chosen_cards, fits, holds, milli_on
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
        self.most_free_milli = 0  # of a card that is shared already

    def add(self, other: _Tally, times: int) -> None:
        for way, number in other.nodes.items():
            self.nodes[way] += times * number
        for way, number in other.gpus.items():
            self.gpus[way] += times * number
        self.free += times * other.free
        self.other_models |= other.other_models
        for name in (
            "most_free",
            "most_cpus_free_milli",
            "most_ram_free_mb",
            "most_memory_mb",
            "most_free_milli",
        ):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


def blockers_of(state: ClusterState, demand: Demand) -> list[Blocker]:
    if not state.nodes:
        return [Blocker(code="no_nodes", detail="no node has registered yet")]
    if demand.nodes > 1:
        return _gang_blockers(state, demand)
    if state.rooms.best(demand) is not None:
        return []
    impossible = never_fits(state, demand)
    if impossible is not None:
        return [_impossible(impossible), *_reserved_suiting(state, demand)]
    tally = _Tally()
    for room, number in alike(state, demand):
        of_one = _Tally()
        _weigh(of_one, state, state.nodes[room.node_id], room, demand)
        tally.add(of_one, number)
    return [*_node_blockers(tally), *_card_blockers(tally, demand), *_share_blockers(tally, demand, state)]


def _gang_blockers(state: ClusterState, demand: Demand) -> list[Blocker]:
    """Nodes with room for one rank are there or not; what keeps the others from having it is not told one by one."""
    free = len(state.rooms.fitting(demand))
    if free >= demand.nodes:
        return []
    impossible = never_fits(state, demand)
    if impossible is not None:
        return [_impossible(impossible)]
    each = f"{plural(demand.gpus, 'GPU')} each"
    detail = f"needs {demand.nodes} nodes at once with room for {each}; {free} {'has' if free == 1 else 'have'} it now"
    numbers: dict[str, int | str] = {"needed": demand.nodes, "free": free, "gpus_on_each": demand.gpus}
    return [Blocker(code="nodes", detail=detail, numbers=numbers)]


def nearest_node(state: ClusterState, demand: Demand) -> Nearest | None:
    """Among connected nodes in service: fewest GPUs short, then least cpus, then least ram; ties by node id.

    First of all those whose cards could ever serve it: one of another model comes no nearer by waiting.
    """
    best: tuple[bool, int, int, int, NodeId] | None = None
    for node_id, room in state.rooms.by_node.items():
        if not room.ready:
            continue
        if demand.constraints and not holds(room.labels, demand.constraints):
            continue
        idle = room.idle + room.kept if room.kept else room.idle
        if room.mixed or room.used:
            good = sum(accepts(card, demand) for card in idle) or bool(chosen_cards(room, demand))
        else:
            good = len(idle) if idle and accepts(idle[0], demand) else 0
        short = (
            good < demand.gpus and not _could_serve(state, room, demand),
            max(0, demand.gpus - good),
            max(0, demand.cpus_milli - room.cpus_free_milli) if demand.cpus_milli else 0,
            max(0, demand.ram_mb - room.ram_free_mb) if demand.ram_mb else 0,
            node_id,
        )
        if best is None or short < best:
            best = short
    if best is None:
        return None
    lacks = dict(zip(("gpus", "cpus_milli", "ram_mb"), best[1:4], strict=True))
    return Nearest(node_id=best[4], lacks={what: number for what, number in lacks.items() if number})


def _could_serve(state: ClusterState, room: Room, demand: Demand) -> bool:
    """If all its cards were well and idle. Looks at one of them where all are alike: there may be 20,000 nodes."""
    if not room.mixed and len(room.cards) >= demand.gpus:
        card = next(iter(room.cards.values()))
        if demand.gpu_models and card.model not in demand.gpu_models:
            return False
        if accepts(card, demand):
            return True
    cards = (gpu for gpu in state.node_gpus(room.node_id) if not gpu.gone)
    return sum(_suits(state, gpu, demand) for gpu in cards) >= demand.gpus


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _weigh(tally: _Tally, state: ClusterState, node: Node, room: Room, demand: Demand) -> None:
    if demand.constraints and not holds(room.labels, demand.constraints):
        anywhere = demand.but(constraints=())
        tally.nodes["constraints"] += fits(room, anywhere, state.settings.most_leases)
        return
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
    # Once it is back, what runs there is still in the way: that is told too.
    for away, holds_now in (
        ("offline", node.offline_since),
        ("unconfirmed", node.unconfirmed_since),
        ("draining", node.draining),
    ):
        if holds_now:
            tally.nodes[away] += 1
            tally.gpus[away] += could
    if good < demand.gpus:
        tally.most_free_milli = max(
            [
                tally.most_free_milli,
                *(room.free_milli(room.cards[each]) for each in room.used if each in room.cards),
            ]
        )
        for way in ("reserved", *_HEALTH, "busy", "shared", "foreign"):
            if ways[way]:
                tally.gpus[way] += ways[way]
                tally.nodes[way] += 1
    _weigh_shares(tally, state, room, demand)


def _weigh_rules(tally: _Tally, room: Room, demand: Demand) -> None:
    """Idle cards that only the task's own rule on model or memory shuts out."""
    trusted = [card for card in room.idle if demand.parole or not card.parole]
    others = [card for card in trusted if demand.gpu_models and card.model not in demand.gpu_models]
    roomy = sum(card.usable_mb >= demand.gpu_memory_mb for card in trusted)
    matching = [card for card in trusted if not demand.gpu_models or card.model in demand.gpu_models]
    if demand.gpus and others and roomy >= demand.gpus:
        tally.gpus["model"] += len(others)
        tally.other_models.update(card.model for card in others)
    if demand.gpus and len(matching) >= demand.gpus:
        tally.gpus["memory"] += sum(card.usable_mb < demand.gpu_memory_mb for card in matching)
        offers = sorted((card.usable_mb for card in matching), reverse=True)
        tally.most_memory_mb = max(tally.most_memory_mb, offers[demand.gpus - 1])


def _weigh_shares(tally: _Tally, state: ClusterState, room: Room, demand: Demand) -> None:
    if room.ready:
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
    if demand.gpu_memory_mb and promised_mb(state, gpu) < demand.gpu_memory_mb:
        return "too_small"
    if gpu.reserved:
        return "reserved"
    if gpu.health not in SERVING:
        return gpu.health.value
    if gpu.fault:
        return "fault"
    if gpu.health is Health.PAROLE and not demand.parole:
        return "parole"
    usable = usable_mb(gpu, state.settings)
    if gpu.id not in state.rooms.holders:
        return "" if usable >= demand.gpu_memory_mb else "foreign"
    room = state.rooms.by_node[gpu.node_id]
    if demand.share_milli == WHOLE_MILLI or gpu.id not in room.used:
        return "busy"
    return "" if milli_on(demand, usable) <= room.free_milli(room.cards[gpu.id]) else "shared"


def _suits(state: ClusterState, gpu: Gpu, demand: Demand) -> bool:
    if demand.gpu_models and gpu.model not in demand.gpu_models:
        return False
    return not demand.gpu_memory_mb or promised_mb(state, gpu) >= demand.gpu_memory_mb


def _node_blockers(tally: _Tally) -> list[Blocker]:
    words = {
        "offline": ("cannot be reached", "cannot be reached"),
        "unconfirmed": (
            "has not contacted this scheduler since it started",
            "have not contacted this scheduler since it started",
        ),
        "draining": ("is being drained", "are being drained"),
    }
    found = []
    if tally.nodes["constraints"]:
        number = tally.nodes["constraints"]
        detail = f"its constraints shut out {plural(number, 'node')} with room for it"
        found.append(Blocker(code="constraints", detail=detail, numbers={"nodes": number}))
    for code, (of_one, of_several) in words.items():
        nodes, gpus = tally.nodes[code], tally.gpus[code]
        if nodes:
            detail = f"{plural(nodes, 'node')} that could run it {of_several if nodes > 1 else of_one}"
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
    if gpus["shared"]:
        found.append(_shared_full(tally, demand))
    return [*found, *_set_apart("reserved", gpus["reserved"]), *_health_blockers(gpus)]


# Per state of health: what is said of one card, and of several.
_HEALTH: Final = {
    "quarantined": ("is quarantined", "are quarantined"),
    "probing": ("is being checked", "are being checked"),
    "out": ("is out of service and waits for a person", "are out of service and wait for a person"),
    "fault": ("has a fault", "have a fault"),
    "parole": (
        "on parole takes only tasks below normal priority",
        "on parole take only tasks below normal priority",
    ),
}


def _health_blockers(gpus: Counter[str]) -> list[Blocker]:
    numbers: dict[str, int | str] = {state: gpus[state] for state in _HEALTH if gpus[state]}
    if not numbers:
        return []
    told = (f"{plural(gpus[state], 'GPU')} {_HEALTH[state][gpus[state] > 1]}" for state in numbers)
    return [Blocker(code="gpu_health", detail=", ".join(told), numbers=numbers)]


def _shared_full(tally: _Tally, demand: Demand) -> Blocker:
    gpus = tally.gpus["shared"]
    asked = f"{demand.gpu_memory_mb} MB" if demand.gpu_memory_mb else f"{demand.share_milli / 10:g} %"
    detail = f"needs {asked} of a GPU; {plural(gpus, 'shared GPU')} with less left, at most {tally.most_free_milli / 10:g} %"
    numbers: dict[str, int | str] = {
        "asked_mb": demand.gpu_memory_mb,
        "asked_milli": demand.share_milli,
        "most_free_milli": tally.most_free_milli,
        "gpus": gpus,
    }
    return Blocker(code="gpu_share", detail=detail, numbers=numbers)


def _set_apart(code: str, gpus: int) -> list[Blocker]:
    if not gpus:
        return []
    detail = f"{plural(gpus, 'GPU')} {'is' if gpus == 1 else 'are'} {code}"
    return [Blocker(code=code, detail=detail, numbers={"gpus": gpus})]


def _share_blockers(tally: _Tally, demand: Demand, state: ClusterState) -> list[Blocker]:
    found = []
    if tally.nodes["cpus"]:
        most = max(0, tally.most_cpus_free_milli)
        unit = "cpu" if demand.cpus_milli == 1_000 else "cpus"
        detail = f"needs {cpus(demand.cpus_milli)} {unit} on one node; at most {cpus(most)} free"
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


_IMPOSSIBLE: Final = {
    "nodes": ("nodes", "needs {requested} nodes with room for one rank each; there are {largest} such nodes"),
    "constraints": (
        "constraints",
        "asks for nodes with {requested}; none of the {largest} nodes is like that",
    ),
    "gpus": ("gpus_per_node", "needs {requested} GPUs on one node; the largest has {largest}"),
    "gpu_model": ("gpu_model", "asks for {requested}; the nodes have {largest}"),
    "gpu_memory_mb": ("gpu_memory", "asks for {requested} MB on each GPU; the largest offer is {largest}"),
    "cpus": ("cpus", "needs {requested} cpus on one node; the largest has {largest}"),
    "ram_mb": ("ram", "needs {requested} MB of ram on one node; the largest has {largest}"),
}


def _reserved_suiting(state: ClusterState, demand: Demand) -> list[Blocker]:
    """Cards that would do, were they not reserved."""
    suiting = sum(gpu.reserved and not gpu.gone and _suits(state, gpu, demand) for gpu in state.gpus.values())
    return _set_apart("reserved", suiting) if demand.gpus else []


def _impossible(lack: NeverFits) -> Blocker:
    """It was possible once, or came before any node: now no registered node could hold it, even empty."""
    code, words = _IMPOSSIBLE[lack.lacks]
    return Blocker(
        code=code,
        detail=words.format(requested=lack.requested, largest=lack.largest),
        numbers={"requested": lack.requested, "largest": lack.largest},
    )
