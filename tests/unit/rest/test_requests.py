"""Decoding of submitted tasks: what is taken, and for everything else the field, the value and what was expected."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpu.core.model.task import Pool, Restart, TaskDetail, TaskSpec
from dgpu.wire.change_requests import decode_cancel, decode_priority, decode_target
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.requests import decode_task, entry_of
from dgpu.wire.task_fields import TASK_FIELDS
from unit.rest.test_batch_steps import decode_batch


def task(**fields: object) -> TaskSpec:
    return decode_task(json.dumps({"command": "true", **fields}).encode())


def refusal(**fields: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        task(**fields)
    return caught.value


def detail_of(spec: TaskSpec) -> TaskDetail:
    return msgspec.json.decode(spec.detail, type=TaskDetail)


def test_a_bare_command_gets_all_defaults() -> None:
    spec = task()
    assert (spec.shape.tenant_id, spec.shape.pool, spec.shape.priority, spec.shape.gpus) == (
        "default",
        Pool.BATCH,
        50,
        1,
    )
    assert spec.timeout_ms is None
    assert spec.max_retries == 3
    assert spec.restart is Restart.NEVER
    assert detail_of(spec).command == "true"


@pytest.mark.parametrize(
    ("fields", "cpus_milli"),
    [
        ({}, 0),
        ({"gpu_count": 0}, 1_000),
        ({"gpu_request": 0}, 1_000),
        ({"gpu_count": 0, "cpus": None}, 1_000),
        ({"gpu_count": 0, "cpus": 0}, 0),
        ({"gpu_count": 0, "cpus": 2}, 2_000),
        ({"gpu_count": 0, "array": "0-9"}, 1_000),
    ],
)
def test_a_task_without_gpus_counts_as_one_cpu(fields: dict[str, object], cpus_milli: int) -> None:
    """512 tasks that asked for nothing started at once on two cores."""
    assert task(**fields).shape.cpus_milli == cpus_milli


@pytest.mark.parametrize("body", [b'{"gpu_request": 0}', b'{"gpu_request": 0, "allocation": true}'])
def test_an_allocation_without_gpus_runs_nothing_and_holds_no_cpu(body: bytes) -> None:
    spec = decode_task(body, bare_means_allocation=True)
    assert (spec.allocation, spec.shape.cpus_milli) == (True, 0)


def test_every_field_reaches_its_place() -> None:
    spec = task(
        name="train",
        tenant_id="lab",
        priority=70,
        gpu_count=2,
        gpu_model=["V100", "A100"],
        gpu_memory_mb=16_000,
        cpus=1.5,
        ram_mb=1000,
        env={"A": "1"},
        workdir="/srv/x",
        timeout_seconds=1.5,
        max_retries=0,
        restart="on-failure",
        labels={"team": "x"},
        model_name="m",
        task_type="t",
        structure_n_atoms=7,
    )
    assert spec.shape.gpu_models == ("V100", "A100")
    assert spec.shape.gpu_memory_mb == 16_128  # rounded up to 256
    assert (spec.shape.cpus_milli, spec.shape.ram_mb) == (1500, 1024)
    assert (spec.timeout_ms, spec.max_retries, spec.restart) == (1500, 0, Restart.ON_FAILURE)
    detail = detail_of(spec)
    assert (detail.name, detail.env, detail.workdir, detail.labels) == (
        "train",
        {"A": "1"},
        "/srv/x",
        {"team": "x"},
    )
    assert (detail.model_name, detail.task_type, detail.structure_n_atoms) == ("m", "t", 7)


@pytest.mark.parametrize(
    ("priority", "pool", "expected"),
    [
        ("high", None, Pool.ONLINE),
        ("CRITICAL", None, Pool.ONLINE),
        (79, None, Pool.BATCH),
        (80, None, Pool.ONLINE),
        (100, "batch", Pool.BATCH),
        (0, "online", Pool.ONLINE),
    ],
)
def test_the_pool_follows_the_priority_unless_it_is_given(priority, pool, expected) -> None:
    assert task(priority=priority, pool=pool).shape.pool is expected


def test_aliases_mean_the_same() -> None:
    assert task(gpu_request=2, memory_mb=512).shape == task(gpu_count=2, gpu_memory_mb=512).shape


def test_an_alias_beside_its_field_is_refused() -> None:
    assert [error.path for error in refusal(gpu_count=1, gpu_request=2).errors] == ["gpu_request"]


def test_null_is_as_good_as_absent() -> None:
    assert task(**{name: None for name in TASK_FIELDS if name != "command"}) == task()


NAN_TEXT = "x" * 5000
BAD_FIELDS = [
    ("gpu_count", -1),
    ("gpu_count", 1025),
    ("gpu_count", 10**30),
    ("gpu_count", 1.5),
    ("gpu_count", 1.0),
    ("gpu_count", "1"),
    ("gpu_count", True),
    ("gpu_count", [1]),
    ("gpu_request", -1),
    ("gpu_memory_mb", -1),
    ("gpu_memory_mb", 1.5),
    ("memory_mb", "8GB"),
    ("ram_mb", -1),
    ("cpus", -0.1),
    ("cpus", 0.1234),
    ("cpus", "2"),
    ("cpus", True),
    ("timeout_seconds", 0),
    ("timeout_seconds", -1),
    ("timeout_seconds", "1h"),
    ("timeout_seconds", 1e300),
    ("priority", 101),
    ("priority", -1),
    ("priority", "urgent"),
    ("priority", 1.5),
    ("priority", True),
    ("pool", "fast"),
    ("pool", 1),
    ("pool", ["online"]),
    ("tenant_id", ""),
    ("tenant_id", "a/b"),
    ("tenant_id", "../x"),
    ("tenant_id", "x" * 65),
    ("name", "two\nlines"),
    ("name", "bell\x07"),
    ("name", "nul\0"),
    ("name", "x" * 257),
    ("name", "sep\u2028"),
    ("name", 5),
    ("command", ""),
    ("command", "   "),
    ("command", "a\0b"),
    ("command", []),
    ("command", [""]),
    ("command", ["a", "b\0"]),
    ("command", ["a", 1]),
    ("command", {"a": 1}),
    ("command", ["x"] * 4097),
    ("command", "x" * 131_072),
    ("workdir", "relative"),
    ("workdir", "/a/../b"),
    ("workdir", "/.."),
    ("workdir", "/a\0b"),
    ("workdir", "/a\nb"),
    ("workdir", "/" + "x" * 4096),
    ("workdir", 5),
    ("env", ["A=1"]),
    ("env", {"A=B": "1"}),
    ("env", {"": "1"}),
    ("env", {"A\0": "1"}),
    ("env", {"A": "1\0"}),
    ("env", {"A": 1}),
    ("env", {"A": "x" * 262_144}),
    ("env", {f"N{i}": "" for i in range(4097)}),
    ("labels", {"a": 1}),
    ("labels", {"": "x"}),
    ("labels", {"a": "x\n"}),
    ("labels", {f"l{i}": "" for i in range(65)}),
    ("labels", "a"),
    ("max_retries", -1),
    ("max_retries", 101),
    ("restart", "sometimes"),
    ("restart", 1),
    ("allocation", "yes"),
    ("gpu_model", ""),
    ("gpu_model", []),
    ("gpu_model", [1]),
    ("model_name", "a\nb"),
    ("structure_n_atoms", -5),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
def test_a_bad_value_is_refused_with_its_path_and_what_was_expected(field, value) -> None:
    refused = refusal(**{field: value})
    assert refused.status == 400
    assert len(refused.errors) == 1
    assert refused.errors[0].path.startswith(field)
    assert refused.errors[0].detail.startswith("Expected ")
    assert len(refused.detail) < 600


def test_all_bad_fields_are_told_at_once() -> None:
    refused = refusal(gpu_count=-1, name=5, colour="red")
    assert {error.path for error in refused.errors} == {"gpu_count", "name", "colour"}


def test_an_unknown_field_is_named_and_the_near_one_offered() -> None:
    refused = refusal(gpu_cuont=1)
    assert refused.errors[0].path == "gpu_cuont"
    assert "gpu_count" in refused.errors[0].detail


def test_values_of_the_environment_are_never_in_an_answer() -> None:
    for env in (
        {"KEY": "s3cret\0"},
        {"KEY": ["s3cret"]},
        {"KEY=": "s3cret"},
        {"KEY": "s3cret" * 50_000},
        ["s3cret"],
    ):
        refused = refusal(env=env)
        assert "s3cret" not in refused.detail
        assert all("s3cret" not in error.detail + error.path for error in refused.errors)


def test_a_value_of_an_unknown_field_is_not_repeated() -> None:
    """It may be an environment under a wrong name."""
    assert "s3cret" not in str(refusal(environment={"A": "s3cret"}).errors)


def test_neutral_values_of_later_features_are_taken() -> None:
    assert task(shared=False, gpu_share=1, nodes=1, after=[], image="", constraints={}) == task()


def test_a_command_or_an_allocation_is_needed_and_not_both() -> None:
    with pytest.raises(BadRequest) as neither:
        decode_task(b"{}")
    assert neither.value.errors[0].path == "command"
    assert refusal(allocation=True).errors[0].path == "command"
    assert decode_task(b'{"allocation": true}').allocation
    assert decode_task(b'{"gpu_request": 1}', bare_means_allocation=True).allocation
    assert not decode_task(b'{"command": "x"}', bare_means_allocation=True).allocation


MALFORMED = [
    b"",
    b" ",
    b"{",
    b"nonsense",
    b'{"command": "x"} x',
    b'{"command": "x", "gpu_count": NaN}',
    b'{"command": "x", "gpu_count": Infinity}',
    b'{"command": "x", "timeout_seconds": 1e400}',
    b'{"command": "x", "gpu_count": ' + b"9" * 5000 + b"}",
    b'{"command": "\xff"}',
    b'{"command": "\\ud800"}',
    b'{"command": "x", "command": "y"}',
    b'{"command": "x", "command" :"y"}',
    b'{"command": "x", "comm\\u0061nd": "y"}',
    b'{"command": "x", "env": {"A": "1", "A": "2"}}',
    b"[" * 100_000,
    b'{"labels":' * 100_000,
    b'{"command": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'\xef\xbb\xbf{"command": "x"}',
    b"'command'",
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_not_json_is_said_to_be_so(body) -> None:
    for decode in (decode_task, decode_batch, decode_cancel):
        with pytest.raises(BadRequest) as caught:
            decode(body)
        assert caught.value.status == 400
        assert caught.value.code == "malformed_json"


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_a_task_must_be_an_object(body) -> None:
    for decode in (decode_task, decode_batch, decode_cancel):
        with pytest.raises(BadRequest):
            decode(body)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=20,
    )
)
def test_valid_json_without_duplicates_is_never_taken_for_one_with(value) -> None:
    assert parse_json(json.dumps(value).encode()) is not NotImplemented


@given(
    st.dictionaries(st.sampled_from([*TASK_FIELDS, "junk"]), st.text() | st.integers() | st.lists(st.text()))
)
def test_any_object_is_a_task_or_a_refusal(fields) -> None:
    try:
        assert isinstance(decode_task(json.dumps(fields).encode()), TaskSpec)
    except BadRequest as refused:
        assert refused.errors
        assert refused.status in {400, 422}


def test_a_batch_is_a_list_or_a_task_and_a_count() -> None:
    listed = decode_batch(b'{"tasks": [{"command": "a"}, {"command": "b", "env": {"X": "1"}}]}')
    assert [count for count, _ in listed] == [1, 1]
    assert [detail_of(spec).command for _, spec in listed] == ["a", "b"]
    ((count, spec),) = decode_batch(b'{"task": {"command": "a"}, "count": 10000}')
    assert count == 10_000
    assert detail_of(spec).command == "a"


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"tasks": []}, 400, "tasks"),
        ({"tasks": {}}, 400, "tasks"),
        ({"tasks": [{"command": "x"}] * 10_001}, 413, "tasks"),
        ({"tasks": [{"command": "x"}, {"command": "x", "gpu_count": -1}]}, 400, "tasks[1].gpu_count"),
        ({"tasks": [{"command": "x"}, 5]}, 400, "tasks[1]"),
        ({"tasks": [{"command": "x"}, {"entrypoint": "x", "command": "x"}]}, 400, "tasks[1].entrypoint"),
        ({"tasks": [{"command": "x"}, {"after": ["x"], "command": "x"}]}, 400, "tasks[1].after[0]"),
        ({"task": {"command": "x", "array": "0-9"}, "count": 2}, 400, "task.array"),
        ({"tasks": [{"command": "x", "array": "0-9999"}, {"command": "x"}]}, 413, None),
        ({"task": {"command": "x", "name": 1}, "count": 2}, 400, "task.name"),
        ({"task": {"command": "x"}, "count": 0}, 400, "count"),
        ({"task": {"command": "x"}, "count": 10_001}, 400, "count"),
        ({"task": {"command": "x"}, "count": 1.5}, 400, "count"),
        ({"task": {"command": "x"}, "count": True}, 400, "count"),
        ({"jobs": []}, 400, "jobs"),
        ({"tasks": [{"command": "x"}], "count": 2}, 400, None),
    ],
)
def test_a_bad_batch_names_the_entry(body, status, path) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_batch(json.dumps(body).encode())
    assert caught.value.status == status
    if path:
        assert caught.value.errors[0].path == path


def test_equal_shapes_of_a_batch_are_one_value() -> None:
    entries = decode_batch(json.dumps({"tasks": [{"command": str(i)} for i in range(100)]}).encode())
    assert len({id(spec.shape) for _, spec in entries}) == 1


def test_cancel_takes_ids_or_filters_but_never_nothing() -> None:
    assert decode_cancel(b'{"task_ids": ["task-1", "2", 3, "task-1"]}').named == (1, 2, 3)
    _, command, _ = decode_cancel(b'{"status": "pending", "tenant": "lab", "priority": 80, "pool": "batch"}')
    assert (command.status, command.tenant_id, command.priority, command.pool) == (
        "pending",
        "lab",
        80,
        "batch",
    )
    for body in (
        b"{}",
        b'{"task_ids": []}',
        b'{"task_ids": ["x"]}',
        b'{"status": "success"}',
        b'{"stat": "pending"}',
    ):
        with pytest.raises(BadRequest):
            decode_cancel(body)


def test_dependencies_are_read_in_all_their_forms() -> None:
    def after(value: object) -> list[tuple[int, str]]:
        return [(each.task_id, each.when.value) for each in task(after=value).after]

    assert after("task-3") == [(3, "ok")]
    assert after(["task-4", "3", {"task_id": "task-9", "when": "any"}]) == [(3, "ok"), (4, "ok"), (9, "any")]
    assert after([{"task_id": "task-2", "when": "failed"}, {"task_id": 5}]) == [(2, "failed"), (5, "ok")]
    assert after([]) == []
    assert after(["task-3", "3"]) == [(3, "ok")]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("job-3", "after"),
        (["task-1", "task-0"], "after[1]"),
        ([{"task_id": "task-1", "when": "maybe"}], "after[0].when"),
        ([{"when": "ok"}], "after[0]"),
        ([{"task_id": "task-1", "then": "ok"}], "after[0]"),
        (["task-1", {"task_id": "task-1", "when": "any"}], "after[1]"),
        ([["task-1"]], "after[0]"),
        ([1.5], "after[0]"),
        ([str(each) for each in range(1, 1_002)], "after"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_where_it_stands(value, path) -> None:
    refused = refusal(after=value)
    assert refused.status == 400
    assert [error.path for error in refused.errors] == [path]


def test_an_array_is_as_many_tasks_as_it_has_indexes() -> None:
    spec = task(array="1,3,7-20:2%5")
    assert entry_of(spec)[0] == 9
    assert spec.array_limit == 5
    assert entry_of(task(array=""))[0] == 1
    assert decode_batch(b'{"tasks":[{"command":"x","array":"0-4"},{"command":"x"}]}')[0][0] == 5


@pytest.mark.parametrize("text", ["0-9999999", "9-0", "x", "0-9%0", 5, ["0-9"], "0-9%-1"])
def test_what_is_no_array_is_refused_in_words(text) -> None:
    refused = refusal(array=text)
    assert (refused.status, refused.errors[0].path) == (400, "array")
    assert "Expected" in refused.errors[0].detail


@pytest.mark.parametrize("nodes", [0, -1, 1_025, 1.5, "2", True])
def test_a_number_of_nodes_that_makes_no_sense_is_refused(nodes) -> None:
    assert refusal(nodes=nodes).errors[0].path == "nodes"


def test_a_gang_asks_for_the_same_of_each_node() -> None:
    assert task(nodes=4, gpu_count=2).shape.nodes == 4
    assert task(held=True).held


def test_hold_release_and_priority_take_what_they_need_and_nothing_else() -> None:
    assert decode_target(b"") is False
    assert decode_target(b"{}") is False
    assert decode_target(b'{"array": true}') is True
    assert decode_priority(b'{"priority": "high"}') == (80, False)
    assert decode_priority(b'{"priority": 3, "array": true}') == (3, True)
    for body in (b"[]", b'{"arrays": true}', b'{"array": 1}'):
        with pytest.raises(BadRequest):
            decode_target(body)
    for body in (b"{}", b'{"priority": 101}', b'{"priority": 5, "task": 1}', b"5"):
        with pytest.raises(BadRequest):
            decode_priority(body)


def test_a_whole_array_is_cancelled_by_its_id() -> None:
    assert decode_cancel(b'{"array": "task-12"}').filters.array_id == 12
    with pytest.raises(BadRequest):
        decode_cancel(b'{"array": "x"}')
