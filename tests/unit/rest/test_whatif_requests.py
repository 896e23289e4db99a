"""The body of a what-if: one change, and a clear word about everything else."""

from __future__ import annotations

import json

import pytest

from dgpu.core.model.quota import QuotaMode
from dgpu.wire.json_body import BadRequest
from dgpu.wire.questions import Adding, ChangingQuota, Draining, Losing, NewNodes, Submitting, decode_whatif


def decoded(body: object):
    return decode_whatif(json.dumps(body).encode())


def paths(body: object) -> list[str]:
    with pytest.raises(BadRequest) as refused:
        decoded(body)
    assert 400 <= refused.value.status < 500
    return [error.path for error in refused.value.errors]


def test_every_kind_of_change_is_understood() -> None:
    submit = decoded({"submit": {"command": "true", "gpu_count": 2}})
    assert isinstance(submit, Submitting)
    assert [(count, spec.shape.gpus) for count, spec in submit.entries] == [(1, 2)]
    assert decoded({"submit": {"task": {"command": "true", "gpu_count": 2}}}) == submit
    assert decoded({"submit": {"task": {"command": "true"}, "count": 7}}).entries[0][0] == 7
    assert decoded({"submit": {"command": "true", "array": "0-9%3"}}).entries[0][0] == 10
    assert decoded({"quota": {"online_percent": 0.6}}) == ChangingQuota(online_ppm=600_000)
    assert decoded({"quota": {"mode": "borrow"}}) == ChangingQuota(mode=QuotaMode.BORROW)
    assert decoded({"drain": "n1"}) == Draining(node_id="n1")
    assert decoded({"lose": "n1"}) == Losing(node_id="n1")
    assert decoded({"add_nodes": [{"gpus": 8, "model": "A100"}]}) == Adding(
        kinds=(NewNodes(gpus=8, model="A100"),)
    )


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"submit": {"command": "true", "gpu_count": -1}}, ["submit.gpu_count"]),
        ({"submit": {"task": {"command": "true", "gpus": 1}}}, ["submit.task.gpus"]),
        ({"submit": {"task": {"command": "true"}, "count": 0}}, ["submit.count"]),
        ({"submit": {"task": {"command": "true"}, "number": 1}}, ["submit.number"]),
        ({"submit": {"gpu_count": 1}}, ["submit.command"]),
        ({"submit": 7}, ["submit"]),
        ({"quota": {"online_percent": 1.5}}, ["quota.online_percent"]),
        ({"quota": {"online_percent": True}}, ["quota.online_percent"]),
        ({"quota": {"online_percent": "0.5"}}, ["quota.online_percent"]),
        ({"quota": {}}, ["quota.online_percent"]),
        ({"quota": {"mode": "lend"}}, ["quota.mode"]),
        ({"quota": {"percent": 0.5}}, ["quota.percent"]),
        ({"drain": 7}, ["drain"]),
        ({"drain": ""}, ["drain"]),
        ({"lose": None}, ["lose"]),
        ({"add_nodes": []}, ["add_nodes"]),
        ({"add_nodes": [{"model": "A100"}]}, ["add_nodes[0].gpus"]),
        ({"add_nodes": [{"gpus": 8, "model": "A100"}, {"gpus": 1e9, "model": "T4"}]}, ["add_nodes[1].gpus"]),
        ({"add_nodes": [{"gpus": 8, "model": ["A100"]}]}, ["add_nodes[0].model"]),
        ({"add_nodes": [{"gpus": 8, "model": "A100", "count": 10**6}]}, ["add_nodes[0].count"]),
        (
            {"add_nodes": [{"gpus": 1, "model": "A", "count": 600}, {"gpus": 1, "model": "B", "count": 600}]},
            ["add_nodes"],
        ),
        ({"drian": "n1"}, ["drian"]),
        ({"drain": "n1", "lose": "n1"}, []),
        ({}, []),
        ([], []),
    ],
)
def test_what_is_wrong_is_named(body: object, named: list[str]) -> None:
    assert paths(body) == named
