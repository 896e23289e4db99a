"""Answers to hypothetical questions, from any state: the follower's, or the service's own if that is small.

Pure: the same question on the same state has the same answer in both processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dgpu.core.commands import Command, DrainNode, RegisterNode, SetQuota, SubmitTasks
from dgpu.core.foresight.sooner import sooner
from dgpu.core.foresight.whatif import lose, whatif
from dgpu.core.model.ids import GpuId, NodeId, task_name
from dgpu.core.model.node import Gpu
from dgpu.core.state import ClusterState
from dgpu.service.access.foresight import EffectTold, changes_told_to, effect_told_to
from dgpu.service.views.explained import blocker_answers, change_answers
from dgpu.wire.answers import FieldError, Problem, instant
from dgpu.wire.foresight_answers import WhatifAnswer, WhatifDelay, WhatifStart, WhatifStop, WhatifWait
from dgpu.wire.problem import problem_of
from dgpu.wire.questions import (
    Adding,
    ChangingQuota,
    Draining,
    Hastening,
    Losing,
    NewNodes,
    Question,
    Submitting,
    Whatif,
)

# Limits for answers in the service's own loop. Measured: 2.5 ms for a what-if with 20 waiting tasks on 2 nodes, 180 ms
# with 100,000 on 200; 1.2 and 20 ms for the changes that would start a task.
_SMALL_WHATIF = 64  # waiting tasks
_SMALL = 1_000  # tasks, where each node counts as twenty


def is_small(state: ClusterState, question: Question) -> bool:
    if not isinstance(question, Hastening):
        asked = sum(count for count, _ in question.entries) if isinstance(question, Submitting) else 0
        asked += sum(kind.count for kind in question.kinds) if isinstance(question, Adding) else 0
        if state.waiting_count + asked > _SMALL_WHATIF:
            return False
    return len(state.tasks) + 20 * len(state.nodes) <= _SMALL


def answer(state: ClusterState, question: Question, at: int, index: int) -> msgspec.Raw:
    """JSON: a WhatifAnswer, or a list of Change."""
    at = max(at, state.last_at)
    if isinstance(question, Hastening):
        found = changes_told_to(question.tenants, state, sooner(state, question.task_id, at))
        return msgspec.Raw(msgspec.json.encode(change_answers(found)))
    change = commands_of(state, question)
    if isinstance(change, Problem):
        told = WhatifAnswer(rejected=change, journal_index=index, at=instant(at))
    else:
        tenants = question.tenants if isinstance(question, Submitting) else None
        told = _told(effect_told_to(tenants, state, whatif(state, change, at)), index, at)
    return msgspec.Raw(msgspec.json.encode(told))


def commands_of(state: ClusterState, question: Whatif) -> tuple[Command, ...] | Problem:
    match question:
        case Submitting():
            return (SubmitTasks(entries=question.entries),)
        case ChangingQuota():
            return (SetQuota(online_ppm=question.online_ppm, mode=question.mode, reclaim=question.reclaim),)
        case Draining():
            return (DrainNode(node_id=question.node_id, reason="what if"),)
        case Losing():
            return lose(question.node_id)
        case Adding():
            return _registrations(state, question)


def _registrations(state: ClusterState, question: Adding) -> tuple[Command, ...] | Problem:
    commands: list[Command] = []
    names = _new_names(state)
    for number, kind in enumerate(question.kinds):
        memory_mb = kind.memory_mb if kind.memory_mb is not None else _memory_of(state, kind.model)
        if memory_mb is None:
            return _no_memory(number, kind)
        commands += [_registration(state, next(names), kind, memory_mb) for _ in range(kind.count)]
    return tuple(commands)


def _registration(state: ClusterState, node_id: NodeId, kind: NewNodes, memory_mb: int) -> RegisterNode:
    largest_cpus = max((node.cpus_milli for node in state.nodes.values()), default=0)
    largest_ram = max((node.ram_mb for node in state.nodes.values()), default=0)
    gpus = tuple(
        Gpu(
            id=GpuId(f"{node_id}-{index}"),
            node_id=node_id,
            index=index,
            model=kind.model,
            memory_mb=memory_mb,
        )
        for index in range(kind.gpus)
    )
    return RegisterNode(
        node_id=node_id,
        boot_id="what-if",
        cpus_milli=largest_cpus if kind.cpus_milli is None else kind.cpus_milli,
        ram_mb=largest_ram if kind.ram_mb is None else kind.ram_mb,
        gpus=gpus,
    )


def _new_names(state: ClusterState) -> Iterator[NodeId]:
    number = 0
    while True:
        number += 1
        if (name := NodeId(f"new-{number}")) not in state.nodes:
            yield name


def _memory_of(state: ClusterState, model: str) -> int | None:
    return max((gpu.memory_mb for gpu in state.gpus.values() if gpu.model == model), default=None)


def _no_memory(number: int, kind: NewNodes) -> Problem:
    detail = f"No node has a GPU of model {kind.model!r}, so its memory is not known: give memory_mb."
    return Problem(
        status=422,
        code="unknown_gpu_model",
        title="The memory of this GPU is not known",
        detail=detail,
        errors=[FieldError(path=f"add_nodes[{number}].memory_mb", detail=detail)],
        facts={"model": kind.model},
    )


def _told(told: EffectTold, index: int, at: int) -> WhatifAnswer:
    effect = told.effect
    return WhatifAnswer(
        others=told.others,
        starts=[
            WhatifStart(task_id=task_name(each.task_id), nodes=list(each.node_ids), new=each.is_new)
            for each in effect.starts
        ],
        delays=[
            WhatifDelay(
                task_id=task_name(each.task_id),
                before=instant(each.before_at),
                after=None if each.after_at is None else instant(each.after_at),
                seconds=None if each.after_at is None else (each.after_at - each.before_at) / 1_000,
            )
            for each in effect.delays
        ],
        stops=[
            WhatifStop(task_id=task_name(each.task_id), node=each.node_id, reason=each.reason)
            for each in effect.stops
        ],
        waits=[
            WhatifWait(
                task_id=task_name(each.task_id),
                expected_start=None if each.starts_at is None else instant(each.starts_at),
                position=None if each.explanation is None else each.explanation.position,
                blockers=[] if each.explanation is None else blocker_answers(each.explanation),
            )
            for each in effect.waits
        ],
        rejected=None if effect.rejected is None else problem_of(effect.rejected),
        journal_index=index,
        at=instant(at),
    )
