"""sinfo: nodes and their states."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dgpu.cli.slurm.reading import FLAG, VALUE, read, scheduler, words_of
from dgpu.cli.slurm.tables import lines, parse_format

if TYPE_CHECKING:
    from dgpu.wire.cluster_answers import NodeAnswer

FORMAT = "%9P %.5a %.10l %.6D %.6t %N"
NODES_FORMAT = "%N %.6D %.9P %.6t"
LONG_FORMAT = "%N %.6D %.9P %.11T %.4c %.8m %G"
PARTITION = "dgpu*"  # dgpu has pools instead; each node serves all of them
TAKES = {
    "Node": FLAG, "exact": FLAG, "format": VALUE, "long": FLAG, "noheader": FLAG, "nodes": VALUE, "partition": VALUE,
    "states": VALUE, "summarize": FLAG,
}  # fmt: skip
SHORT = {
    "N": "Node", "e": "exact", "o": "format", "l": "long", "h": "noheader", "n": "nodes", "p": "partition",
    "t": "states", "s": "summarize",
}  # fmt: skip


class Group(NamedTuple):
    """Nodes of one line."""

    state: str
    nodes: tuple[NodeAnswer, ...]


def run(arguments: Sequence[str]) -> int:
    given, _ = read(arguments, TAKES, SHORT)
    default = (LONG_FORMAT if "long" in given else NODES_FORMAT) if "Node" in given else FORMAT
    cells = parse_format(given.get("format") or default, FIELDS, "sinfo")
    wanted, states = set(words_of(given.get("nodes", ""))), set(words_of(given.get("states", "").lower()))
    found = [
        (state_of(node), node)
        for node in scheduler().nodes().nodes
        if (not wanted or node.id in wanted) and (not states or state_of(node) in states)
    ]
    groups: dict[tuple[str, ...], list[NodeAnswer]] = {}
    for state, node in found:
        key = (
            (state, node.id)
            if "Node" in given
            else (state, gres_of(node), f"{node.cpus:g}", str(node.ram_mb))
        )
        groups.setdefault(key[: 2 if "Node" in given or "format" in given else 1], []).append(node)
    rows = [Group(key[0], tuple(nodes)) for key, nodes in sorted(groups.items())]
    for line in lines(cells, FIELDS, rows, header="noheader" not in given):
        sys.stdout.write(line + "\n")
    return 0


def state_of(node: NodeAnswer) -> str:
    if node.offline_since:
        return "down"
    if node.draining:
        return "drng" if node.tasks else "drain"
    if not node.gpus:
        return "alloc" if node.tasks else "idle"
    if node.gpus_free == node.gpus:
        return "idle"
    return "mix" if node.gpus_free else "alloc"


_LONG = {"drng": "draining", "drain": "drained", "alloc": "allocated", "mix": "mixed"}


def gres_of(node: NodeAnswer) -> str:
    if not node.gpus:
        return "(null)"
    model = node.gpu_models[0].replace(" ", "_") if len(node.gpu_models) == 1 else ""
    return f"gpu:{model}:{node.gpus}" if model else f"gpu:{node.gpus}"


def used_of(node: NodeAnswer) -> str:
    return f"gpu:{node.gpus - node.gpus_free}" if node.gpus else "gpu:0"


FIELDS: dict[str, tuple[str, Callable[[Group], str]]] = {
    "P": ("PARTITION", lambda _: PARTITION),
    "R": ("PARTITION", lambda _: PARTITION.removesuffix("*")),
    "a": ("AVAIL", lambda _: "up"),
    "l": ("TIMELIMIT", lambda _: "infinite"),
    "D": ("NODES", lambda group: str(len(group.nodes))),
    "t": ("STATE", lambda group: group.state),
    "T": ("STATE", lambda group: _LONG.get(group.state, group.state)),
    "N": ("NODELIST", lambda group: ",".join(node.id for node in group.nodes)),
    "n": ("HOSTNAMES", lambda group: ",".join(node.id for node in group.nodes)),
    "G": ("GRES", lambda group: ",".join(dict.fromkeys(map(gres_of, group.nodes)))),
    "g": ("GRES_USED", lambda group: ",".join(dict.fromkeys(map(used_of, group.nodes)))),
    "c": ("CPUS", lambda group: f"{min(node.cpus for node in group.nodes):g}"),
    "m": ("MEMORY", lambda group: str(min(node.ram_mb for node in group.nodes))),
    "E": ("REASON", lambda group: group.nodes[0].drain_reason or "none"),
}
