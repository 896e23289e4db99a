"""The fields of scripts, and of tasks of a batch that wait for each other."""

from __future__ import annotations

import json

import msgspec
import pytest

from dgpu.core.model.task import TaskDetail
from dgpu.wire.fields import MAX_SCRIPT_BYTES
from dgpu.wire.json_body import BadRequest
from dgpu.wire.requests import decode_batch, decode_task

SCRIPT = "#!/bin/sh\necho\n"


def task(**fields):
    return decode_task(json.dumps(fields).encode())


def test_a_script_is_kept_with_its_name_and_arguments() -> None:
    spec = task(command=["a.sh", "1"], script=SCRIPT, slurm_env=True)
    detail = msgspec.json.decode(spec.detail, type=TaskDetail)
    assert (detail.command, detail.script, detail.slurm_env) == (("a.sh", "1"), SCRIPT, True)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"command": ["a"], "script": "echo"}, "script"),
        ({"command": ["a"], "script": "#!sh\n"}, "script"),
        ({"command": ["a"], "script": "#!/bin/sh\r\necho\r\n"}, "script"),
        ({"command": ["a"], "script": "#!/bin/sh\n\0"}, "script"),
        ({"command": ["a"], "script": "#!/bin/sh\n" + "é" * (MAX_SCRIPT_BYTES // 2)}, "script"),
        ({"command": ["a"], "script": 5}, "script"),
        ({"command": "a b", "script": SCRIPT}, "command"),
        ({"command": ["a"], "slurm_env": "yes"}, "slurm_env"),
    ],
)
def test_a_wrong_script_is_refused_by_its_field(fields, path) -> None:
    with pytest.raises(BadRequest) as refused:
        task(**fields)
    assert [error.path for error in refused.value.errors] == [path]


def test_half_a_character_is_refused() -> None:
    with pytest.raises(BadRequest):
        decode_task(b'{"command": ["a"], "script": "#!/bin/sh\\n\\ud800"}')


@pytest.mark.parametrize(
    ("after", "path"),
    [
        ({"entry": 1}, "tasks[1].after"),
        ([{"entry": 0}, {"entry": 2}], "tasks[1].after"),
        ([{"entry": -1}], "tasks[1].after[0]"),
        ([{"entry": True}], "tasks[1].after[0]"),
        ([{"entry": 0, "when": "x"}], "tasks[1].after[0].when"),
    ],
)
def test_only_earlier_tasks_of_a_batch_can_be_named(after, path) -> None:
    body = {"tasks": [{"command": "x"}, {"command": "x", "after": after}]}
    with pytest.raises(BadRequest) as refused:
        list(decode_batch(json.dumps(body).encode()))
    assert [error.path for error in refused.value.errors] == [path]


@pytest.mark.parametrize("body", [{"task": {"command": "x", "after": {"entry": 0}}, "count": 2}])
def test_equal_tasks_cannot_wait_for_each_other(body) -> None:
    with pytest.raises(BadRequest) as refused:
        list(decode_batch(json.dumps(body).encode()))
    assert [error.path for error in refused.value.errors] == ["task.after"]
