"""Function calls in requests: the call, and the app of its workers."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from dgpu.core.model.task import TaskDetail, WorkerSetup
from dgpu.wire.call_specs import Apps
from dgpu.wire.json_body import BadRequest
from dgpu.wire.requests import decode_batch, decode_task


def decoded(**fields: Any):
    apps = Apps(WorkerSetup(app_id="", max_models=3))
    spec = decode_task(msgspec.json.encode({"entrypoint": "job:run", **fields}), apps=apps)
    (app,) = apps.all()
    return spec, app


def detail_of(spec) -> TaskDetail:
    return msgspec.json.decode(spec.detail, type=TaskDetail)


def refusal(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        decode_task(msgspec.json.encode(fields), apps=Apps())
    return refused.value


def packed(*args: Any, **kwargs: Any) -> str:
    return base64.b64encode(msgspec.msgpack.encode((args, kwargs))).decode()


def test_the_worker_has_the_gpu_and_the_environment_and_the_call_its_arguments() -> None:
    spec, app = decoded(
        args=[1, "a"], kwargs={"n": 2}, gpu_count=2, env={"A": "1"}, python="/opt/py", model_name="m"
    )
    assert (spec.shape.gpus, spec.shape.app, spec.shape.model) == (0, app.id, "m")
    call = detail_of(spec)
    assert msgspec.msgpack.decode(call.args) == [[1, "a"], {"n": 2}]
    assert (call.entrypoint, call.env) == ("job:run", {})
    assert (app.spec.shape.gpus, app.spec.shape.model, app.spec.worker_of) == (2, "", app.id)
    worker = detail_of(app.spec)
    assert worker.command == ("/opt/py", "-m", "dgpu.worker")
    assert worker.env == {"A": "1"}
    assert worker.worker == WorkerSetup(app_id=app.id, python="/opt/py", max_models=3)
    assert spec.timeout_ms == 3_600_000


def test_a_worker_has_the_name_of_the_module_that_started_it() -> None:
    """People look for it in lists. Another module may use the same worker."""
    _, app = decoded(entrypoint="package.job:run")
    assert detail_of(app.spec).name == "worker package.job"
    _, same = decoded(entrypoint="other:run")
    assert (same.id, detail_of(same.spec).name) == (app.id, "worker other")


def test_calls_share_workers_if_their_apps_are_equal() -> None:
    _, app = decoded(args=[1])
    assert decoded(args=[2], name="other", labels={"a": "b"})[1].id == app.id
    for other in (
        {"env": {"A": "1"}},
        {"tenant_id": "lab"},
        {"gpu_count": 2},
        {"priority": 10},
        {"python_path": ["/src"]},
        {"max_workers": 2},
    ):
        assert decoded(**other)[1].id != app.id, other


def test_many_calls_of_one_template() -> None:
    apps = Apps()
    body = {"task": {"entrypoint": "job:run"}, "calls": [packed(1), packed(n=2)]}
    steps = decode_batch(msgspec.json.encode(body), apps=apps)
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
    (_, one), (_, other) = done.value.value
    assert one.shape is other.shape
    assert msgspec.msgpack.decode(detail_of(other).args) == [[], {"n": 2}]
    assert len(apps.all()) == 1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"args": [1], "command": "x"}, "args"),
        ({"entrypoint": "job"}, "entrypoint"),
        ({"entrypoint": "job:run", "command": "x"}, "command"),
        ({"entrypoint": "job:run", "array": "0-3"}, "array"),
        ({"entrypoint": "job:run", "nodes": 2}, "nodes"),
        ({"entrypoint": "job:run", "args": 5}, "args"),
        ({"entrypoint": "job:run", "args": ["x" * 300_000]}, "args"),
        ({"entrypoint": "job:run", "args_msgpack": "%%"}, "args_msgpack"),
        ({"entrypoint": "job:run", "args": [1], "args_ref": "0" * 64}, "args_ref"),
        ({"entrypoint": "job:run", "python": "bin/python"}, "python"),
        ({"entrypoint": "job:run", "max_workers": 257}, "max_workers"),
        ({"entrypoint": "job:run", "shared": True, "model_name": "m"}, "gpu_memory_mb"),
    ],
)
def test_fields_that_do_not_fit_are_named(fields, path) -> None:
    assert refusal(**fields).errors[0].path == path


def test_arguments_are_never_repeated_in_an_error() -> None:
    refused = refusal(entrypoint="job:run", args={"password": "s3cret"})
    assert "s3cret" not in refused.detail + str(refused.errors)
