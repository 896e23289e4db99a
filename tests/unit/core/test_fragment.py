"""`placement: pack`: what wastes least, and an index that finds it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpu.core.index.packing import Found, Packing
from dgpu.core.model.demand import Demand
from dgpu.core.model.typical import Typical, TypicalShape
from dgpu.core.rules.fragment import (
    MAX_TYPICAL,
    Cards,
    Host,
    Kind,
    choose,
    fragmented,
    is_due,
    score,
    typical_of,
    view_of,
    without,
)

A100 = Kind("A100", 80_000)
T4 = Kind("T4", 16_000)
WHOLE = 1_000


def shape(
    gpus: int = 1, share: int = WHOLE, weight: int = 1_000, models: tuple[str, ...] = ()
) -> TypicalShape:
    return TypicalShape(gpus=gpus, share_milli=share, gpu_models=models, gpu_memory_mb=0, weight=weight)


def typical(*shapes: TypicalShape, cpus: int = 0, ram: int = 0) -> Typical:
    return Typical(shapes=shapes, cpus_milli_per_gpu=cpus, ram_mb_per_gpu=ram)


def host(cpus: int = 64, ram: int = 512, *, idle: bool = False) -> Host:
    return Host(cpus * 1_000, ram * 1_024, idle)


def waste(cards: Cards, has: Host, demand: Demand, table: Typical) -> int | None:
    """None: it does not fit."""
    view = view_of(table, cards.kind)
    choice = choose(view, cards, demand)
    if choice is None or demand.cpus_milli > has.cpus_milli or demand.ram_mb > has.ram_mb:
        return None
    return score(table, cards, has, demand, choice)


# the score


def test_a_gpu_too_small_for_the_typical_task_is_a_fragment() -> None:
    view = view_of(typical(shape(share=500)), A100)
    assert fragmented(view, (300, 600)) == 300 * 1_000  # 600 can be used, 300 cannot
    assert fragmented(view, (300, 400)) == 700 * 1_000  # the task fits nowhere: all is wasted
    assert fragmented(view, ()) == 0


def test_whole_gpus_are_fragments_where_they_are_too_few() -> None:
    view = view_of(typical(shape(gpus=4)), A100)
    assert fragmented(view, (WHOLE,) * 3) == 3_000 * 1_000
    assert fragmented(view, (500, *(WHOLE,) * 4)) == 500 * 1_000


def test_weights_count() -> None:
    view = view_of(typical(shape(share=500, weight=250), shape(weight=750)), A100)
    assert fragmented(view, (500,)) == 750 * 500


def test_gpus_of_a_kind_that_nobody_accepts_are_fragments() -> None:
    view = view_of(typical(shape(models=("T4",))), A100)
    assert fragmented(view, (WHOLE,)) == 1_000 * 1_000


def test_a_share_takes_the_gpu_that_it_fills() -> None:
    view = view_of(typical(shape(share=500)), A100)
    chosen = choose(view, Cards(A100, (400, 600, WHOLE)), Demand(gpus=1, share_milli=400))
    assert chosen is not None
    assert chosen.from_milli == 400


def test_equal_waste_goes_to_the_tightest_gpu() -> None:
    chosen = choose(view_of(Typical(), A100), Cards(A100, (400, 600, WHOLE)), Demand(gpus=1, share_milli=300))
    assert chosen is not None
    assert chosen.from_milli == 400


def test_a_shared_task_holds_its_part_of_the_memory() -> None:
    demand = Demand(gpus=1, share_milli=100, gpu_memory_mb=40_000)
    assert choose(view_of(Typical(), A100), Cards(A100, (499,)), demand) is None
    assert choose(view_of(Typical(), A100), Cards(A100, (500,)), demand) is not None
    assert choose(view_of(Typical(), T4), Cards(T4, (WHOLE,)), demand) is None


def test_what_lacks_cpus_or_ram_does_not_fit() -> None:
    cards = Cards(A100, (WHOLE,))
    assert waste(cards, host(cpus=1), Demand(gpus=1, cpus_milli=1_001), Typical()) is None
    assert waste(cards, host(ram=1), Demand(gpus=1, ram_mb=1_025), Typical()) is None


def test_cpus_taken_from_free_gpus_are_waste() -> None:
    """Eight free GPUs without cpus are worth nothing, though no GPU of theirs was given away."""
    table = typical(shape(), cpus=8_000)
    cards = Cards(A100, (WHOLE,) * 8)
    demand = Demand(gpus=0, cpus_milli=16_000)
    assert waste(cards, host(cpus=64), demand, table) == 2_000 * 1_000
    assert waste(cards, host(cpus=80), demand, table) == 0
    assert waste(Cards(A100, ()), host(cpus=64), demand, table) == 0
    # Two GPUs lacked cpus before: only what the task adds counts.
    assert waste(cards, host(cpus=48), demand, table) == 2_000 * 1_000


# the table


def test_a_table_counts_tasks_with_gpus_and_what_they_bring() -> None:
    table = typical_of(
        [
            (Demand(gpus=1, cpus_milli=4_000, ram_mb=8_000), 6),
            (Demand(gpus=2, cpus_milli=20_000, ram_mb=8_000), 2),
            (Demand(gpus=0, cpus_milli=64_000), 100),
        ],
        {A100: 8},
    )
    assert [(each.gpus, each.weight) for each in table.shapes] == [(1, 750), (2, 250)]
    assert (table.cpus_milli_per_gpu, table.ram_mb_per_gpu, table.counted) == (6_400, 6_400, 8)
    assert table.prices == ()


def test_a_table_is_short_and_does_not_depend_on_order() -> None:
    tasks = [(Demand(gpus=1, share_milli=milli), 1 + milli % 7) for milli in range(10, 900, 10)]
    table = typical_of(tasks, {A100: 8})
    random.Random(1).shuffle(tasks)
    assert typical_of(tasks, {A100: 8}) == table
    assert len(table.shapes) == MAX_TYPICAL


def test_a_kind_costs_the_part_of_it_that_is_claimed() -> None:
    """30 of 100 GPUs asked for must be T4, of which the cluster has half: three in five will be claimed."""
    tasks = [(Demand(gpus=1, gpu_models=("T4",)), 30), (Demand(gpus=1), 70)]
    assert typical_of(tasks, {A100: 50, T4: 50}).prices == ((T4, 600),)


def test_memory_that_few_kinds_have_is_a_claim_too() -> None:
    tasks = [(Demand(gpus=1, gpu_memory_mb=40_000), 50), (Demand(gpus=1), 50)]
    assert typical_of(tasks, {A100: 50, T4: 50}).prices == ((A100, 1_000),)


def test_an_empty_cluster_or_queue_makes_an_empty_table() -> None:
    assert typical_of([], {}) == Typical()
    assert typical_of([(Demand(gpus=1), 0)], {A100: 1}) == Typical()


def test_tables_become_rarer_as_more_is_known() -> None:
    assert is_due(Typical(), 16)
    assert not is_due(Typical(counted=1_000), 249)
    assert is_due(Typical(counted=1_000), 250)


# stories


def packing(table: Typical, **nodes: tuple[Host, Cards]) -> Packing:
    index = Packing(table)
    for name, (has, cards) in nodes.items():
        index.put(name, has, (cards,))
    return index


def place(index: Packing, demand: Demand) -> str | None:
    found = index.best(demand)
    return None if found is None else found.node_id


def test_an_idle_node_is_kept_whole() -> None:
    index = packing(
        typical(shape()),
        idle=(host(idle=True), Cards(A100, (WHOLE,) * 8)),
        used=(host(), Cards(A100, (WHOLE,) * 7)),
    )
    assert place(index, Demand(gpus=1)) == "used"
    assert place(index, Demand(gpus=8)) == "idle"


def test_a_task_that_brings_many_cpus_goes_where_cpus_are_spare() -> None:
    index = packing(
        typical(shape(), cpus=8_000),
        lean=(host(cpus=16), Cards(A100, (WHOLE,) * 2)),
        rich=(host(cpus=64), Cards(A100, (WHOLE,) * 2)),
    )
    assert place(index, Demand(gpus=1, cpus_milli=16_000)) == "rich"
    assert place(index, Demand(gpus=1, cpus_milli=2_000)) == "lean"


def test_a_task_that_takes_any_gpu_leaves_those_that_others_insist_on() -> None:
    table = typical_of([(Demand(gpus=1, gpu_models=("T4",)), 30), (Demand(gpus=1), 70)], {A100: 8, T4: 8})
    index = packing(table, a=(host(), Cards(T4, (WHOLE,) * 4)), b=(host(), Cards(A100, (WHOLE,) * 4)))
    assert place(index, Demand(gpus=1)) == "b"
    assert place(index, Demand(gpus=1, gpu_models=("T4",))) == "a"


def test_a_node_that_was_dropped_is_not_chosen() -> None:
    index = packing(Typical(), a=(host(), Cards(A100, (WHOLE,))))
    index.drop("a")
    assert place(index, Demand(gpus=1)) is None
    index.drop("a")  # once more changes nothing


def test_a_node_whose_cpus_were_taken_is_looked_at_again() -> None:
    cards = Cards(A100, (WHOLE,) * 2)
    index = packing(Typical(), a=(host(cpus=16), cards), b=(host(cpus=32), cards))
    demand = Demand(gpus=1, cpus_milli=8_000)
    assert place(index, demand) == "a"
    index.put("a", host(cpus=4), (cards,))
    assert place(index, demand) == "b"
    index.put("c", host(cpus=8), (cards,))
    assert place(index, demand) == "c"
    index.drop("c")
    assert place(index, demand) == "b"


def test_equal_nodes_go_by_id() -> None:
    nodes = {name: (host(), Cards(A100, (WHOLE,) * 4)) for name in ("c", "a", "b")}
    assert place(packing(Typical(), **nodes), Demand(gpus=1)) == "a"


def test_scarce_ram_is_found_among_many_nodes_that_lack_it() -> None:
    nodes = {f"n{number:04}": (host(cpus=8, ram=1), Cards(A100, (WHOLE,))) for number in range(2_000)}
    nodes["n1234"] = (host(cpus=64, ram=256), Cards(A100, (WHOLE,)))
    assert place(packing(Typical(), **nodes), Demand(gpus=1, ram_mb=100_000)) == "n1234"


def test_among_nodes_of_about_equal_parts_the_smallest_that_is_enough_is_taken() -> None:
    """The node with the fewest cpus lacks a large enough part. Of the others, larger parts stay for larger shares."""
    parts = {"a": 609, "b": 624, "c": 616}
    nodes = {name: (host(cpus=8), Cards(A100, (milli,))) for name, milli in parts.items()}
    nodes["few"] = (host(cpus=4), Cards(A100, (602,)))
    assert place(packing(Typical(), **nodes), Demand(gpus=1, share_milli=610)) == "c"


def test_a_new_table_voids_old_scores() -> None:
    index = packing(
        typical(shape(share=100)), a=(host(), Cards(A100, (400,))), b=(host(), Cards(A100, (700,)))
    )
    demand = Demand(gpus=1, share_milli=300)
    assert place(index, demand) == "a"  # nothing is wasted on either: the fuller one
    index.learn(typical(shape(share=400)))
    assert place(index, demand) == "b"  # leaves 400 to the next; on the other 100 would be left to nobody
    index.learn(typical(shape(share=100)))
    assert place(index, demand) == "a"


# properties

kinds = st.sampled_from([A100, T4, Kind("A100", 40_000)])
shares = st.sampled_from([100, 250, 300, 470, 500, 650, 810])


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    gpus = draw(st.sampled_from([0, 1, 1, 1, 2, 4]))
    return Demand(
        gpus=gpus,
        share_milli=draw(st.one_of(st.just(WHOLE), shares)) if gpus == 1 else WHOLE,
        gpu_models=draw(st.sampled_from([(), (), ("T4",), ("A100", "T4")])) if gpus else (),
        gpu_memory_mb=draw(st.sampled_from([0, 0, 4_000, 30_000])) if gpus else 0,
        cpus_milli=draw(st.sampled_from([0, 1_000, 4_000, 12_000])),
        ram_mb=draw(st.sampled_from([0, 1_000, 8_000, 30_000])),
    )


@st.composite
def places(draw: st.DrawFn) -> tuple[Host, Cards]:
    free = draw(st.lists(st.one_of(st.just(WHOLE), st.integers(1, 999)), max_size=4))
    cpus, ram = (
        draw(st.sampled_from([0, 1_000, 5_000, 16_000, 64_000])),
        draw(st.sampled_from([0, 4_000, 9_000, 64_000])),
    )
    return Host(cpus, ram, draw(st.booleans())), Cards(draw(kinds), tuple(sorted(free)))


tables = st.lists(st.tuples(demands(), st.integers(1, 9)), max_size=6).map(
    lambda tasks: typical_of(tasks, {A100: 8, T4: 4, Kind("A100", 40_000): 2})
)
names = st.sampled_from([f"n{number}" for number in range(12)])
changes = st.lists(st.one_of(st.tuples(names, places()), st.tuples(names, st.none()), tables), max_size=40)


@settings(max_examples=300, deadline=None)
@given(changes, st.lists(demands(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_index_finds_a_place_just_when_there_is_one(changes, asked, shuffle) -> None:
    index, now, table = Packing(Typical()), {}, Typical()
    for change in changes:
        if isinstance(change, Typical):
            table = change
            index.learn(table)
        elif change[1] is None:
            now.pop(change[0], None)
            index.drop(change[0])
        else:
            now[change[0]] = change[1]
            index.put(change[0], change[1][0], (change[1][1],))
        for demand in asked[:1]:
            index.best(demand)  # caches are filled on the way
    order = list(now.items())
    shuffle.shuffle(order)
    fresh = packing(table, **dict(order))
    for demand in asked:
        found = index.best(demand)
        assert order_of(found) == order_of(fresh.best(demand))  # history leaves no trace
        fitting = {name: waste(cards, has, demand, table) for name, (has, cards) in now.items()}
        fitting = {name: value for name, value in fitting.items() if value is not None}
        if found is None:
            assert not fitting
            continue
        assert fitting[found.node_id] == found.score
        check_takes(found, now[found.node_id][1], demand)


def order_of(found: Found | None) -> tuple[object, ...]:
    return () if found is None else (*found.order, found.from_milli)


def check_takes(found: Found, cards: Cards, demand: Demand) -> None:
    if demand.gpus:
        assert cards.free_milli.count(found.from_milli) >= demand.gpus
        assert found.from_milli >= demand.share_milli


@settings(max_examples=200, deadline=None)
@given(st.lists(places(), min_size=1, max_size=1), demands(), tables)
def test_a_lone_candidate_has_the_score_of_the_pure_function(nodes, demand, table) -> None:
    has, cards = nodes[0]
    found = packing(table, only=(has, cards)).best(demand)
    assert (None if found is None else found.score) == waste(cards, has, demand, table)


@pytest.mark.parametrize(
    ("free", "take", "milli", "left"),
    [
        ((300, 600), 600, 400, (200, 300)),
        ((300, 600), 600, 600, (300,)),
        ((WHOLE,), WHOLE, WHOLE, ()),
        ((500, 500), 500, 100, (400, 500)),
    ],
)
def test_without(free, take, milli, left) -> None:
    assert without(free, take, milli) == left
