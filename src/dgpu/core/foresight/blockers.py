"""Reasons why a demand fits on no node.

A node that could hold the task if it were healthy and empty names what blocks the task now: the node is offline,
unconfirmed or draining; GPUs are busy, faulty, reserved or partly used by other tasks; cpus or ram are in use. All of
these are blockers, because each of them blocks the task on some node. If only a requirement of the task (model, memory)
rules out idle GPUs, that is a blocker, too. If a node can take the task now, there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from dgpu.core.foresight.alike import alike
from dgpu.core.index.room import Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.health import SERVING
from dgpu.core.model.ids import NodeId
from dgpu.core.model.node import Gpu
from dgpu.core.model.task import RUNS_CONTAINERS, WHOLE_MILLI, in_units
from dgpu.core.rejections import NeverFits
from dgpu.core.rules.capacity import could_host, never_fits, suits
from dgpu.core.rules.fit import accepts, chosen_cards, fits, holds, milli_on
from dgpu.core.rules.gpu_models import suits_model
from dgpu.core.state import ClusterState


class Blocker(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    detail: str  # plain text, no full stop
    numbers: dict[str, int | str] = {}


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """The node that lacks the least, and what it lacks."""

    node_id: NodeId
    lacks: dict[str, int]


def blocker(code: str, detail: str, **numbers: int | str) -> Blocker:
    return Blocker(code=code, detail=detail, numbers=numbers)


class _Tally:
    """Blockers, summed over the nodes."""

    def __init__(self, demand: Demand) -> None:
        self.any_model = demand.but(gpu_models=())
        self.any_memory = demand.but(gpu_memory_mb=0)
        self.any_card = demand.but(gpu_models=(), gpu_memory_mb=0)
        self.nodes: Counter[str] = Counter()  # nodes, by blocker
        self.gpus: Counter[str] = Counter()  # GPUs, by blocker
        self.without_containers: list[NodeId] = []  # some of these nodes
        self.free = 0
        self.most_free = 0
        self.most_cpus_free_milli = 0
        self.most_ram_free_mb = 0
        self.other_models: set[str] = set()
        self.most_memory_mb = 0
        self.most_free_milli = 0  # of a GPU that is shared already


def blockers_of(state: ClusterState, demand: Demand) -> list[Blocker]:
    if not state.nodes:
        return [blocker("no_nodes", "no node has registered yet")]
    if demand.nodes > 1:
        return _gang_blockers(state, demand)
    if state.rooms.find(demand) is not None:
        return []
    impossible = never_fits(state, demand)
    if impossible is not None:
        return [_impossible(impossible), *_reserved_suiting(state, demand)]
    tally = _Tally(demand)
    for room, number in alike(state, demand):
        _weigh(tally, state, room, demand, number)
    return [*_node_blockers(tally), *_card_blockers(tally, demand), *_share_blockers(tally, demand, state)]


def _gang_blockers(state: ClusterState, demand: Demand) -> list[Blocker]:
    """Reports how many nodes have room for one rank, without the reasons of the other nodes."""
    free = len(state.rooms.fitting(demand))
    if free >= demand.nodes:
        return []
    impossible = never_fits(state, demand)
    if impossible is not None:
        return [_impossible(impossible)]
    each = f"{plural(demand.gpus, 'GPU')} each"
    detail = f"needs {demand.nodes} nodes at once with room for {each}; {free} {'has' if free == 1 else 'have'} it now"
    return [blocker("nodes", detail, needed=demand.nodes, free=free, gpus_on_each=demand.gpus)]


def nearest_node(state: ClusterState, demand: Demand) -> Nearest | None:
    """Among connected nodes in service: fewest GPUs short, then least cpus, then least ram; ties go by node id.

    Nodes whose GPUs could ever serve the task come first: waiting does not help if all GPUs are of another model.
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
    """Whether the node could serve the task if all its GPUs were healthy and idle. If all are alike, one is checked,
    because there may be 20,000 nodes.
    """
    if not room.mixed and len(room.cards) >= demand.gpus:
        card = next(iter(room.cards.values()))
        if demand.gpu_models and not suits_model(demand.gpu_models, card.model):
            return False
        if accepts(card, demand):
            return True
    cards = (gpu for gpu in state.node_gpus(room.node_id) if not gpu.gone)
    return sum(suits(state, gpu, demand) for gpu in cards) >= demand.gpus


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _weigh(tally: _Tally, state: ClusterState, room: Room, demand: Demand, number: int) -> None:
    """Counts the blockers of a room, which stands for a number of rooms that are alike."""
    if demand.constraints and not holds(room.labels, demand.constraints):
        if not fits(room, demand.but(constraints=())):
            return
        own = tuple(each for each in demand.constraints if each != RUNS_CONTAINERS)
        if holds(room.labels, own):
            tally.nodes["containers"] += number
            tally.without_containers.append(room.node_id)
        else:
            tally.nodes["constraints"] += number
        return
    node = state.nodes[room.node_id]
    gpus = [gpu for gpu in state.node_gpus(node.id) if not gpu.gone]
    ways = Counter(_in_the_way(state, room, gpu, demand) for gpu in gpus)
    could = len(gpus) - ways["unsuited"]
    good = ways[""]
    if room.ready:
        tally.free += number * good
        tally.most_free = max(tally.most_free, good)
        if demand.gpu_models or demand.gpu_memory_mb:
            _weigh_rules(tally, room, demand, number)
    if could < demand.gpus or not could_host(node, demand):
        return
    # Tasks that run there still block the GPUs after the node is back: they count, too.
    for away, holds_now in (
        ("offline", node.offline_since),
        ("unconfirmed", node.unconfirmed_since),
        ("draining", node.draining),
    ):
        if holds_now:
            tally.nodes[away] += number
            tally.gpus[away] += number * could
    if good < demand.gpus:
        parts = [room.free_milli(room.cards[each]) for each in room.used if each in room.cards]
        tally.most_free_milli = max([tally.most_free_milli, *parts])
        for way in ("reserved", *_HEALTH, "busy", "shared", "foreign"):
            tally.gpus[way] += number * ways[way]
    _weigh_shares(tally, room, demand, number)


def _weigh_rules(tally: _Tally, room: Room, demand: Demand, number: int) -> None:
    """Counts idle GPUs that only the task's own requirement on model or memory rules out."""
    matching = [card for card in room.idle if accepts(card, tally.any_memory)]
    others = [card for card in room.idle if accepts(card, tally.any_card) and card not in matching]
    roomy = sum(accepts(card, tally.any_model) for card in room.idle)
    if others and roomy >= demand.gpus:
        tally.gpus["model"] += number * len(others)
        tally.other_models.update(card.model for card in others)
    if len(matching) >= demand.gpus:
        tally.gpus["memory"] += number * sum(not accepts(card, demand) for card in matching)
        offers = sorted((card.usable_mb for card in matching), reverse=True)
        tally.most_memory_mb = max(tally.most_memory_mb, offers[demand.gpus - 1])


def _weigh_shares(tally: _Tally, room: Room, demand: Demand, number: int) -> None:
    if room.ready:
        tally.most_cpus_free_milli = max(tally.most_cpus_free_milli, room.cpus_free_milli)
        tally.most_ram_free_mb = max(tally.most_ram_free_mb, room.ram_free_mb)
    if demand.cpus_milli and room.cpus_free_milli < demand.cpus_milli:
        tally.nodes["cpus"] += number
    if demand.ram_mb and room.ram_free_mb < demand.ram_mb:
        tally.nodes["ram"] += number
    if room.is_full:
        tally.nodes["leases"] += number


def _in_the_way(state: ClusterState, room: Room, gpu: Gpu, demand: Demand) -> str:
    """Empty: the task can have this GPU."""
    if not suits(state, gpu, demand):
        return "unsuited"
    if gpu.reserved:
        return "reserved"
    if gpu.health not in SERVING:
        return gpu.health.value
    if gpu.fault:
        return "fault"
    card = room.cards[gpu.id]
    if card.parole and not demand.parole:
        return "parole"
    if gpu.id not in state.rooms.holders:
        return "" if accepts(card, demand) else "foreign"
    if demand.share_milli == WHOLE_MILLI or gpu.id not in room.used:
        return "busy"
    return "" if milli_on(demand, card.usable_mb) <= room.free_milli(card) else "shared"


_MAX_NAMED: Final = 3
_AWAY: Final = {
    "offline": ("cannot be reached", "cannot be reached"),
    "unconfirmed": (
        "has not contacted this scheduler since it started",
        "have not contacted this scheduler since it started",
    ),
    "draining": ("is being drained", "are being drained"),
}


def _node_blockers(tally: _Tally) -> Iterator[Blocker]:
    shut_out = tally.nodes["constraints"]
    if shut_out:
        detail = f"its constraints rule out {plural(shut_out, 'node')} with room for it"
        yield blocker("constraints", detail, nodes=shut_out)
    lacking = tally.nodes["containers"]
    if lacking:
        named = sorted(tally.without_containers)[:_MAX_NAMED]
        more = f" and {lacking - len(named)} more" if lacking > len(named) else ""
        has = "has" if lacking == 1 else "have"
        detail = (
            f"{plural(lacking, 'node')} with room for it {has} no container engine that answers: "
            f"{', '.join(named)}{more}"
        )
        yield blocker("containers", detail, nodes=lacking, named=", ".join(named), more=lacking - len(named))
    for code, words in _AWAY.items():
        nodes = tally.nodes[code]
        if nodes:
            detail = f"{plural(nodes, 'node')} that could run it {words[nodes > 1]}"
            yield blocker(code, detail, nodes=nodes, gpus=tally.gpus[code])


def _card_blockers(tally: _Tally, demand: Demand) -> Iterator[Blocker]:
    gpus, needed, memory_mb = tally.gpus, demand.gpus, demand.gpu_memory_mb
    if gpus["busy"]:
        detail = (
            f"needs {plural(needed, 'GPU')} on one node; at most {tally.most_free} free on one,"
            f" {tally.free} in all, {gpus['busy']} busy"
        )
        yield blocker(
            "gpus_busy",
            detail,
            needed=needed,
            most_free_on_one_node=tally.most_free,
            free=tally.free,
            busy=gpus["busy"],
        )
    if gpus["model"]:
        asked, others = ", ".join(demand.gpu_models), ", ".join(sorted(tally.other_models))
        detail = f"asks for {asked}; {plural(gpus['model'], 'idle GPU')} of another model ({others})"
        yield blocker("gpu_model", detail, asked=asked, other=others, idle=gpus["model"])
    idle = max(gpus["memory"], gpus["foreign"])
    if idle:
        detail = f"asks for {memory_mb} MB on each GPU; {plural(idle, 'idle GPU')} with less free memory"
        max_mb = tally.most_memory_mb
        yield blocker("gpu_memory", detail, asked_mb=memory_mb, most_free_mb=max_mb, idle=idle)
    if gpus["shared"]:
        yield _shared_full(tally, demand)
    yield from _set_apart(gpus["reserved"])
    yield from _health_blockers(gpus)


# Per state of health: the text for one GPU, and for several.
_HEALTH: Final = {
    "quarantined": ("is quarantined", "are quarantined"),
    "probing": ("is being checked", "are being checked"),
    "out": ("is out of service and waits for an operator", "are out of service and wait for an operator"),
    "fault": ("has a fault", "have a fault"),
    "parole": (
        "on parole takes only tasks below normal priority",
        "on parole take only tasks below normal priority",
    ),
}


def _health_blockers(gpus: Counter[str]) -> Iterator[Blocker]:
    numbers = {state: gpus[state] for state in _HEALTH if gpus[state]}
    if numbers:
        told = (f"{plural(gpus[state], 'GPU')} {_HEALTH[state][gpus[state] > 1]}" for state in numbers)
        yield blocker("gpu_health", ", ".join(told), **numbers)


def _shared_full(tally: _Tally, demand: Demand) -> Blocker:
    gpus, most = tally.gpus["shared"], tally.most_free_milli
    asked = f"{demand.gpu_memory_mb} MB" if demand.gpu_memory_mb else f"{demand.share_milli / 10:g} %"
    detail = f"needs {asked} of a GPU; {plural(gpus, 'shared GPU')} with less left, at most {most / 10:g} %"
    return blocker(
        "gpu_share",
        detail,
        asked_mb=demand.gpu_memory_mb,
        asked_milli=demand.share_milli,
        most_free_milli=most,
        gpus=gpus,
    )


def _set_apart(gpus: int) -> Iterator[Blocker]:
    """GPUs reserved by the operators of their nodes."""
    if gpus:
        yield blocker("reserved", f"{plural(gpus, 'GPU')} {'is' if gpus == 1 else 'are'} reserved", gpus=gpus)


def _share_blockers(tally: _Tally, demand: Demand, state: ClusterState) -> Iterator[Blocker]:
    if tally.nodes["cpus"]:
        most = max(0, tally.most_cpus_free_milli)
        unit = "cpu" if demand.cpus_milli == 1_000 else "cpus"
        detail = f"needs {in_units(demand.cpus_milli)} {unit} on one node; at most {in_units(most)} free"
        yield blocker("cpus", detail, needed_milli=demand.cpus_milli, most_free_milli=most)
    if tally.nodes["ram"]:
        most = max(0, tally.most_ram_free_mb)
        detail = f"needs {demand.ram_mb} MB of ram on one node; at most {most} free"
        yield blocker("ram", detail, needed_mb=demand.ram_mb, most_free_mb=most)
    if tally.nodes["leases"]:
        limit = state.settings.max_leases
        full = tally.nodes["leases"]
        nodes = f"{plural(full, 'node')} already {'runs' if full == 1 else 'run'}"
        yield blocker(
            "node_full", f"{nodes} the most tasks allowed on one ({limit})", nodes=full, limit=limit
        )


_IMPOSSIBLE: Final = {
    "nodes": ("nodes", "needs {requested} nodes with room for one rank each; there are {largest} such nodes"),
    "constraints": (
        "constraints",
        "asks for nodes with {requested}; none of the {largest} nodes matches",
    ),
    "gpus": ("gpus_per_node", "needs {requested} GPUs on one node; the largest has {largest}"),
    "gpu_model": ("gpu_model", "asks for {requested}; the nodes have {largest}"),
    "gpu_memory_mb": ("gpu_memory", "asks for {requested} MB on each GPU; the largest offer is {largest}"),
    "cpus": ("cpus", "needs {requested} cpus on one node; the largest has {largest}"),
    "ram_mb": ("ram", "needs {requested} MB of ram on one node; the largest has {largest}"),
}


def _reserved_suiting(state: ClusterState, demand: Demand) -> Iterator[Blocker]:
    """GPUs that would suit if they were not reserved."""
    suiting = sum(gpu.reserved and not gpu.gone and suits(state, gpu, demand) for gpu in state.gpus.values())
    return _set_apart(suiting if demand.gpus else 0)


def _impossible(lack: NeverFits) -> Blocker:
    """No registered node could hold the task, even empty. It was submitted before any node registered, or the nodes
    changed.
    """
    code, words = _IMPOSSIBLE[lack.lacks]
    detail = words.format(requested=lack.requested, largest=lack.largest)
    return blocker(code, detail, requested=lack.requested, largest=lack.largest)
