"""The waste of a placement: the score behind `placement: pack`. Pure, whole numbers only.

A free GPU that no task can use is a fragment. Four effects make fragments, and the score adds them up:

1. The GPUs left on a node fit few of the known tasks (FGD: Weng et al., "Beware of Fragmentation", ATC 2023).
2. GPUs are left without the cpus and ram that tasks need with them ("stranded").
3. A kind of GPU that some tasks require goes to a task that accepts any kind.
4. An idle node is broken into.

The known tasks (`Typical`) are counted from the state: waiting, running and recently ended tasks. So equal states
choose alike, and no prediction is needed.

FGD also checks for each typical task whether the node has cpus left for it. Here stranding (2) covers that for the mean
task. This places more tasks (see benchmarks/openb.py), and the rest of the score depends on the GPUs alone: nodes with
equal GPUs share it, whatever their cpus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from dgpu.core.model.demand import Demand
from dgpu.core.model.node import Kind
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.model.typical import Typical, TypicalShape
from dgpu.core.rules import fit
from dgpu.core.rules.gpu_models import suits_model

MAX_TYPICAL: Final = 16  # shapes in a table; measured: 4 do nearly as well, 64 no better
IDLE_NODE_MILLI: Final = (
    100  # price of breaking into an idle node: more than a little waste, less than much waste
)
MIN_SUBMITS: Final = 16  # between two tables
_PER_MILLE: Final = 1_000  # weights of a table add up to about this


class Cards(NamedTuple):
    """The free shares of a node's GPUs of one kind, ascending, without fully used ones. Equal nodes share them."""

    kind: Kind
    free_milli: tuple[int, ...]


class Host:
    __slots__ = ("cpus_milli", "idle", "ram_mb")

    def __init__(self, cpus_milli: int, ram_mb: int, idle: bool) -> None:
        self.cpus_milli = cpus_milli
        self.ram_mb = ram_mb
        self.idle = idle  # holds no lease at all


class View(NamedTuple):
    """A table for GPUs of one kind."""

    wants: tuple[tuple[int, int, int], ...]  # (gpus, milli, weight) of shapes that accept the kind
    barred: int  # weight of shapes that do not
    price: int  # per mille of a GPU, per GPU


class Choice:
    __slots__ = ("from_milli", "taken_milli", "waste")

    def __init__(self, from_milli: int, taken_milli: int, waste: int) -> None:
        # Take a GPU with this much free; the lowest such index, so that equal states choose alike.
        self.from_milli = from_milli
        self.taken_milli = taken_milli  # of all GPUs together
        self.waste = waste  # change of fragmentation, and the price; in millionths of a GPU


def score(typical: Typical, cards: Cards, host: Host, demand: Demand, choice: Choice) -> int:
    """The waste of a placement that fits, in millionths of a GPU: the smaller, the better."""
    stranded = stranding(typical, sum(cards.free_milli), host, choice.taken_milli, demand)
    return choice.waste + _PER_MILLE * (stranded + (IDLE_NODE_MILLI if host.idle else 0))


def choose(view: View, cards: Cards, demand: Demand) -> Choice | None:
    """The GPU within the node. Whole GPUs are equal here: topology chooses among them."""
    free = cards.free_milli
    gpus = demand.gpus
    if not gpus:
        return Choice(0, 0, 0)
    if not accepts(demand, cards.kind):
        return None
    need_milli = milli_on(demand, cards.kind)
    first = bisect_left(free, need_milli)
    if len(free) - first < gpus:
        return None
    taken_milli = gpus * need_milli
    before = fragmented(view, free) - view.price * taken_milli
    if need_milli == WHOLE_MILLI:
        waste = fragmented(view, free[: len(free) - gpus]) - before
        return Choice(WHOLE_MILLI, taken_milli, waste)
    # Ties go to the tightest GPU: `free` ascends, and only less waste replaces a choice.
    best: Choice | None = None
    for from_milli in dict.fromkeys(free[first:]):
        waste = fragmented(view, without(free, from_milli, need_milli)) - before
        if best is None or waste < best.waste:
            best = Choice(from_milli, taken_milli, waste)
    return best


def fragmented(view: View, free: tuple[int, ...]) -> int:
    """Expected free milli-GPU that a typical task cannot use, times 1,000."""
    sums = list(accumulate(free, initial=0))
    total, count = sums[-1], len(free)
    amount = view.barred * total
    for gpus, milli, weight in view.wants:
        first = bisect_left(free, milli)
        amount += weight * (sums[first] if count - first >= gpus else total)
    return amount


def stranding(typical: Typical, free_milli: int, host: Host, taken_milli: int, demand: Demand) -> int:
    """Change of the free milli-GPU that the node's cpus and ram could not serve at the mean demand."""
    left_milli = free_milli - taken_milli
    before = after = 0  # comparisons instead of max(): this runs for every candidate
    per_gpu = typical.cpus_milli_per_gpu
    if per_gpu:
        cpus = host.cpus_milli
        before = free_milli - cpus * WHOLE_MILLI // per_gpu
        after = left_milli - (cpus - demand.cpus_milli) * WHOLE_MILLI // per_gpu
    per_gpu = typical.ram_mb_per_gpu
    if per_gpu:
        ram = host.ram_mb
        short = free_milli - ram * WHOLE_MILLI // per_gpu
        if short > before:  # noqa: PLR1730
            before = short
        short = left_milli - (ram - demand.ram_mb) * WHOLE_MILLI // per_gpu
        if short > after:  # noqa: PLR1730
            after = short
    return (after if after > 0 else 0) - (before if before > 0 else 0)  # noqa: FURB136


def is_heavy(typical: Typical, demand: Demand, taken_milli: int) -> bool:
    """Whether the task needs more cpus or ram than the mean for its GPUs. Such a task strands GPUs where cpus or ram
    are short.
    """
    return (
        demand.cpus_milli * WHOLE_MILLI > typical.cpus_milli_per_gpu * taken_milli
        or demand.ram_mb * WHOLE_MILLI > typical.ram_mb_per_gpu * taken_milli
    )


def accepts(demand: Demand | TypicalShape, kind: Kind) -> bool:
    if demand.gpu_memory_mb > kind.memory_mb or (kind.parole and not demand.parole):
        return False
    return not demand.gpu_models or suits_model(demand.gpu_models, kind.model)


def milli_on(demand: Demand | TypicalShape, kind: Kind) -> int:
    return fit.milli_on(demand, kind.memory_mb)


def without(free: tuple[int, ...], from_milli: int, milli: int) -> tuple[int, ...]:
    """`free` after `milli` was taken from a GPU with `from_milli`; ascending, without fully used GPUs."""
    place = bisect_left(free, from_milli)
    rest = free[:place] + free[place + 1 :]
    left = from_milli - milli
    if not left:
        return rest
    place = bisect_left(rest, left)
    return (*rest[:place], left, *rest[place:])


# the table


def typical_of(tasks: Iterable[tuple[Demand, int]], gpus_of: Mapping[Kind, int], next_id: int = 0) -> Typical:
    """`tasks`: each demand with its number of tasks in the state. `gpus_of`: GPUs in the cluster."""
    counts: dict[tuple[int, int, tuple[str, ...], int, bool], int] = {}
    milli = cpus = ram = counted = 0
    claimed: dict[Kind, int] = dict.fromkeys(gpus_of, 0)
    for demand, count in tasks:
        if not demand.gpus or count <= 0:
            continue
        key = (demand.gpus, demand.share_milli, demand.gpu_models, demand.gpu_memory_mb, demand.parole)
        counts[key] = counts.get(key, 0) + count
        asked_milli = count * demand.gpus * demand.share_milli
        milli += asked_milli
        cpus += count * demand.cpus_milli
        ram += count * demand.ram_mb
        counted += count
        _claim(claimed, demand, asked_milli, gpus_of)
    # Rare shapes are left out, not merged: a table must stay short, and rare shapes waste little.
    heaviest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_TYPICAL]
    listed = sum(count for _, count in heaviest)
    return Typical(
        shapes=tuple(
            TypicalShape(
                gpus=g,
                share_milli=s,
                gpu_models=m,
                gpu_memory_mb=mb,
                weight=max(1, _PER_MILLE * n // listed),
                parole=low,
            )
            for (g, s, m, mb, low), n in heaviest
        ),
        cpus_milli_per_gpu=cpus * WHOLE_MILLI // milli if milli else 0,
        ram_mb_per_gpu=ram * WHOLE_MILLI // milli if milli else 0,
        prices=_prices(claimed, milli, gpus_of),
        counted=counted,
        next_id=next_id,
    )


def is_due(typical: Typical, submitted: int) -> bool:
    """Whether a new table is due, `submitted` tasks after the last one. The interval is a quarter of the counted tasks:
    the workload settles with time, and each new table invalidates all scores.
    """
    return submitted >= max(MIN_SUBMITS, typical.counted // 4)


def view_of(typical: Typical, kind: Kind) -> View:
    wants: dict[tuple[int, int], int] = {}
    barred = 0
    for shape in typical.shapes:
        if accepts(shape, kind):
            key = (shape.gpus, milli_on(shape, kind))
            wants[key] = wants.get(key, 0) + shape.weight
        else:
            barred += shape.weight
    price = next((price for priced, price in typical.prices if priced == kind), 0)
    return View(
        tuple((gpus, milli, weight) for (gpus, milli), weight in sorted(wants.items())), barred, price
    )


def _claim(claimed: dict[Kind, int], demand: Demand, asked_milli: int, gpus_of: Mapping[Kind, int]) -> None:
    """A demand that accepts every kind claims none: it can run elsewhere."""
    accepted = [kind for kind in gpus_of if accepts(demand, kind)]
    gpus = sum(gpus_of[kind] for kind in accepted)
    if not gpus or len(accepted) == len(gpus_of):
        return
    for kind in accepted:
        claimed[kind] += asked_milli * gpus_of[kind] // gpus


def _prices(
    claimed: dict[Kind, int], milli: int, gpus_of: Mapping[Kind, int]
) -> tuple[tuple[Kind, int], ...]:
    """The price of a kind is its claimed part when the cluster is full: its share of demand by its share of GPUs."""
    gpus = sum(gpus_of.values())
    prices = (
        (kind, min(_PER_MILLE, _PER_MILLE * claimed[kind] * gpus // (milli * gpus_of[kind])))
        for kind in sorted(claimed)
        if claimed[kind] and gpus_of[kind]
    )
    return tuple((kind, price) for kind, price in prices if price)
