"""Function calls of a request: the call itself, and the app whose workers run it."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final

import msgspec

from dgpu.core.model.app import DEFAULT_MAX_WORKERS, App
from dgpu.core.model.task import Restart, Shape, TaskSpec, WorkerSetup
from dgpu.wire import call_fields

_OF_CALLS: Final = (
    "call_args",
    "call_kwargs",
    "call_msgpack",
    "python",
    "python_path",
    "preload",
    "max_workers",
)
_ARGUMENTS: Final = {"call_args": "args", "call_kwargs": "kwargs", "call_msgpack": "args_msgpack"}
# Fields that a call cannot have, besides those that exclude each other for other reasons.
_NOT_OF_CALLS: Final = (
    ("allocation", "An allocation runs nothing"),
    ("array", "Submit a batch of calls in place of an array"),
    ("restart", "Give max_retries: a call is no service"),
)
_NOT_IN_DETAIL: Final = (
    "command", "script", "image", "mounts", "terminal", "ports", "grid", "slurm_env", "signal", "output_file",
    "error_file",
)  # fmt: skip
_OF_WORKER: Final = ("env", "sealed_env", "secrets", "workdir", "upload", "grace_ms")  # details of the app

_MAX_NAME_CHARS: Final = 100

_encode = msgspec.json.Encoder(order="deterministic").encode


class Apps:
    """Collects the apps of a request. `setup`: the operator's settings for workers."""

    def __init__(self, setup: WorkerSetup | None = None) -> None:
        self.setup = setup or WorkerSetup(app_id="")
        self.by_id: dict[str, App] = {}

    def all(self) -> tuple[App, ...]:
        return tuple(self.by_id.values())


class Call:
    """The fields of a request that only function calls have, taken out of the others."""

    __slots__ = ("_fields", "_packed")

    def __init__(self, fields: dict[str, Any], packed: bytes) -> None:
        self._fields = fields
        self._packed = packed

    def shape(self, shape: Shape, detail: dict[str, Any], apps: Apps | None) -> Shape:
        """The shape of the call. `detail` becomes that of the call, and its app is added to `apps`."""
        fields = self._fields
        worker = {name: detail.pop(name) for name in _OF_WORKER if name in detail}
        setup = {name: fields[name] for name in ("python", "python_path", "preload") if fields.get(name)}
        limit = fields.get("max_workers", DEFAULT_MAX_WORKERS)
        template = apps.setup if apps is not None else WorkerSetup(app_id="")
        name = f"worker {detail['entrypoint'].partition(':')[0]}"[:_MAX_NAME_CHARS]
        app = _app(shape, _encode(worker), _encode(setup), limit, template, name)
        if apps is not None:
            apps.by_id[app.id] = app
        if self._packed:
            detail["args"] = self._packed
        return Shape(
            tenant_id=shape.tenant_id,
            pool=shape.pool,
            priority=shape.priority,
            gpus=0,
            model=shape.model,
            app=app.id,
        )


def take_call(values: dict[str, Any], detail: dict[str, Any]) -> Call | tuple[str, str] | None:
    """None: the task is no call. A field and its fault, if the fields do not fit to each other. Raises Unacceptable."""
    fields: dict[str, Any] = {name: values.pop(name) for name in _OF_CALLS if name in values}
    if "entrypoint" not in detail:
        extra = next(iter(fields), "args_ref" if "args_ref" in detail else "")
        return (_ARGUMENTS.get(extra, extra), "Needs an entrypoint.") if extra else None
    if fault := _misfit(values, detail):
        return fault
    given: list[str] = [name for name in ("call_msgpack", "args_ref") if name in fields or name in detail]
    if fields.keys() & {"call_args", "call_kwargs"}:
        given.append("call_args")
    if len(given) > 1:
        return _ARGUMENTS.get(given[0], given[0]), "Give args and kwargs, args_msgpack or args_ref."
    packed: bytes = fields.get("call_msgpack", b"")
    if not packed:
        packed = call_fields.packed(fields.get("call_args", []), fields.get("call_kwargs", {}))
    values.setdefault("timeout_ms", call_fields.DEFAULT_TIMEOUT_MS)
    return Call(fields, packed)


def _misfit(values: dict[str, Any], detail: dict[str, Any]) -> tuple[str, str] | None:
    for name in _NOT_OF_CALLS:
        if values.get(name[0]):
            return name[0], f"{name[1]}; leave out {name[0]} or entrypoint."
    for field in _NOT_IN_DETAIL:
        if detail.get(field):
            return field, f"A function call has no {field}; leave out {field} or entrypoint."
    if values.get("nodes", 1) != 1:
        return "nodes", "A function call runs on one node."
    if values.get("shared") and "share_milli" not in values and not values.get("gpu_memory_mb"):
        return "gpu_memory_mb", "Required with shared: gpu_memory_mb or gpu_share."
    return None


@functools.lru_cache(maxsize=1024)
def _app(
    shape: Shape, worker: bytes, setup: bytes, max_workers: int, template: WorkerSetup, name: str
) -> App:
    """Its id is a hash of all that its workers depend on. Variables are sealed: equal values give equal texts.

    The name is that of the module of its first call. It is no part of the id: calls of other modules share the workers.
    """
    held = msgspec.structs.replace(shape, model="")
    app_id = hashlib.sha256(_encode((held, worker, setup, max_workers))).hexdigest()[:32]
    known = msgspec.json.decode(setup)
    mine = msgspec.structs.replace(
        template,
        app_id=app_id,
        python=known.get("python", call_fields.DEFAULT_PYTHON),
        python_path=tuple(known.get("python_path", ())),
        preload=tuple(known.get("preload", ())),
    )
    detail = msgspec.json.decode(worker)
    detail["name"] = name
    detail["command"] = (mine.python, "-m", "dgpu.worker")
    detail["worker"] = mine
    spec = TaskSpec(
        shape=held,
        detail=_encode(detail),
        timeout_ms=0,
        max_retries=0,
        restart=Restart.NEVER,
        worker_of=app_id,
    )
    return App(id=app_id, spec=spec, max_workers=max_workers)
