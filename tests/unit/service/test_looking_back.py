"""Answers about the past name no more than those of today would."""

from __future__ import annotations

import json

import pytest

from dgpu.core import commands
from dgpu.core.model.task import Pool, Shape
from dgpu.journal.segments import live_segments
from dgpu.service.looking_back.__main__ import look_back
from dgpu.service.looking_back.words import LookBack
from unit.journal.samples import SETTINGS, Cluster, register, spec, write_journal


def of(tenant: str):
    return spec(shape=Shape(tenant_id=tenant, pool=Pool.BATCH, priority=50, gpus=1))


@pytest.fixture
def cluster():
    """One GPU: a task of the rival runs, the lab's waits, then another one of the rival, and another one of the lab."""
    cluster = Cluster()
    cluster.do(commands.BeginEpoch(settings=SETTINGS), register("n1", 1))
    for tenant in ("rival", "lab", "rival", "lab"):
        cluster.do(commands.SubmitTasks(entries=((1, of(tenant)),)), commands.RunPass())
    return cluster


def asked(directory, cluster, **facts):
    known = {"task_id": 4, "at": cluster.at, "upto_index": 99}
    return look_back(directory, LookBack(**{**known, **facts}))


def test_other_tenants_are_counts(tmp_path, cluster) -> None:
    write_journal(tmp_path, cluster.groups)
    lab = ("lab",)
    last = asked(tmp_path, cluster, tenants=lab).why
    assert "1 own task and 1 task of other tenants come first" in last.summary
    assert (last.position, last.ahead) == (3, ["task-2"])
    assert asked(tmp_path, cluster).why.ahead == ["task-2", "task-3"]
    first = asked(tmp_path, cluster, task_id=2, tenants=lab).why
    assert "when 1 task of other tenants on node n1 is over" in [each.detail for each in first.sooner]
    every = asked(tmp_path, cluster, task_id=2).why
    assert "when task-1 on node n1 is over" in [each.detail for each in every.sooner]


def test_a_task_that_did_not_exist_has_no_answer(tmp_path, cluster) -> None:
    write_journal(tmp_path, cluster.groups)
    seen = asked(tmp_path, cluster, at=cluster.groups[3][0].at - 1)
    assert (seen.why, seen.earliest_at, seen.error) == (None, None, "")


def test_damage_is_told_and_nothing_else_happens(tmp_path, cluster) -> None:
    write_journal(tmp_path, cluster.live_on(60).groups, segment_bytes=1 << 12)
    damaged = live_segments(tmp_path)[0].path
    damaged.write_bytes(b"damaged")
    seen = asked(tmp_path, cluster)
    assert seen.why is None
    assert str(damaged.name) in json.dumps(seen.error)
