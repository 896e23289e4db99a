"""The fields of a submitted task: one table for the decoder and for the API description."""

from __future__ import annotations

from typing import Any, NamedTuple

from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.dependencies import When
from dgpu.core.model.gang import MAX_NODES
from dgpu.core.model.ids import TenantId
from dgpu.core.model.task import PRIORITY_LEVELS, Restart
from dgpu.wire import container_fields, fields, grids, notify_fields, stop_fields, uploads
from dgpu.wire.call_fields import CALL_FIELDS
from dgpu.wire.fields import Check
from dgpu.wire.file_patterns import file_pattern
from dgpu.wire.port_fields import MAX_PORT, MAX_PORTS, ports
from dgpu.wire.secret_fields import SECRETS_SCHEMA, secrets

DEFAULT_TENANT = TenantId("default")


class TaskField(NamedTuple):
    target: str  # the internal field; aliases share one
    check: Check
    about: str
    schema: dict[str, Any]


def _number(low: float, high: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": high}


_TEXT: dict[str, Any] = {"type": "string"}
_FILE = {**_TEXT, "minLength": 1, "maxLength": fields.MAX_PATH_CHARS}
_TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
_DEPENDENCY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task_id": {"type": "string"},
        "entry": {"type": "integer", "minimum": 0},
        "when": {"enum": [when.value for when in When]},
    },
}
_LATER = "Not supported yet: only the neutral value is accepted."

TASK_FIELDS: dict[str, TaskField] = {
    "command": TaskField(
        "command",
        fields.command,
        "A string runs in the shell, a list is a program and its arguments. Required unless `allocation` is true "
        "or `entrypoint` is given.",
        {
            "oneOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": fields.MAX_ARGUMENTS},
            ]
        },
    ),
    "script": TaskField(
        "script",
        fields.script,
        "The text of a script that begins with #!. It runs as a file on the node, and `command` is its name and its "
        "arguments. A later change of the original file has no effect.",
        {**_TEXT, "maxLength": fields.MAX_SCRIPT_BYTES},
    ),
    "slurm_env": TaskField(
        "slurm_env",
        fields.flag,
        "true: the task also gets the variables that Slurm sets, like SLURM_JOB_ID.",
        {"type": "boolean", "default": False},
    ),
    "name": TaskField("name", fields.name, "For people.", {**_TEXT, "maxLength": fields.MAX_NAME_CHARS}),
    "tenant_id": TaskField(
        "tenant_id", fields.tenant, "The tenant of the task.", {**_TEXT, "default": DEFAULT_TENANT}
    ),
    "pool": TaskField(
        "pool",
        fields.pool,
        "If absent: online for priority 80 and above, else batch.",
        {"enum": ["online", "batch"]},
    ),
    "priority": TaskField(
        "priority",
        fields.priority,
        "0 to 100, or low (10), normal (50), high (80), critical (100). Higher numbers go first; "
        "equal numbers in order of submission.",
        {"oneOf": [_number(0, 100), {"enum": list(PRIORITY_LEVELS)}], "default": 50},
    ),
    "gpu_count": TaskField(
        "gpus",
        fields.whole(0, fields.MAX_GPUS),
        "GPUs per node. 0: no GPU.",
        {**_number(0, fields.MAX_GPUS), "default": 1},
    ),
    "gpu_request": TaskField(
        "gpus",
        fields.whole(0, fields.MAX_GPUS),
        "The same as gpu_count.",
        _number(0, fields.MAX_GPUS),
    ),
    "gpu_model": TaskField(
        "gpu_models",
        fields.models,
        "A model, or alternatives: a list, or a text like A100|H100. Any model if absent. By words, in any case: "
        "a100 means an NVIDIA A100-SXM4-80GB, but no A10; rtx3090 means an RTX 3090.",
        {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    ),
    "gpu_memory_mb": TaskField(
        "gpu_memory_mb",
        fields.megabytes,
        "Memory needed on each GPU; rounded up to 256 MB. If absent: estimated, if a model, task type or number of "
        "atoms is given; else an idle GPU is enough.",
        _number(0, fields.MAX_MB),
    ),
    "memory_mb": TaskField(
        "gpu_memory_mb",
        fields.megabytes,
        "The same as gpu_memory_mb.",
        _number(0, fields.MAX_MB),
    ),
    "cpus": TaskField(
        "cpus_milli",
        fields.milli_cpus,
        "CPUs on each node, up to 3 decimals. If absent: 1 for a command without GPUs (gpu_count 0), else not counted. "
        "0: not counted.",
        _number(0, fields.MAX_CPUS, "number"),
    ),
    "ram_mb": TaskField(
        "ram_mb",
        fields.megabytes,
        "Main memory; rounded up to 256 MB. Not counted if absent.",
        _number(0, fields.MAX_MB),
    ),
    "env": TaskField(
        "env",
        fields.env,
        "Environment. Values are stored encrypted and never shown again.",
        _TEXTS,
    ),
    "secrets": TaskField(
        "secrets",
        secrets,
        "Secrets of the tenant: a list of names, each as a variable of this name; or an object with the name of the "
        'variable or file: {"HF_TOKEN": {"env": "TOKEN"}, "ssh-key": {"file": "id_ed25519"}}. Files are in '
        "$DGPU_SECRETS_DIR. The task gets the value that is current when it starts.",
        SECRETS_SCHEMA,
    ),
    "workdir": TaskField("workdir", fields.workdir, "Absolute path.", _TEXT),
    "timeout_seconds": TaskField(
        "timeout_ms",
        fields.timeout_ms,
        "After this time the task fails with reason `timeout`.",
        {"type": "number", "exclusiveMinimum": 0, "maximum": fields.MAX_TIMEOUT_SECONDS},
    ),
    "signal": TaskField(
        "signal",
        stop_fields.signal_before,
        "A signal before the time limit, and at the start of a pre-emption: USR1@300 is 300 seconds before. Processes "
        f"that do not handle it do not get it. Without seconds: {stop_fields.DEFAULT_SIGNAL_SECONDS}.",
        {**_TEXT, "examples": ["USR1@300"]},
    ),
    "grace_seconds": TaskField(
        "grace_ms",
        stop_fields.grace_ms,
        "Time between TERM and KILL at the time limit, at a cancel and at a pre-emption. If absent: the node's setting."
        " The operator sets a maximum.",
        _number(1, stop_fields.MAX_GRACE_SECONDS, "number"),
    ),
    "notify": TaskField(
        "notify",
        notify_fields.notify,
        "Messages about the task: NAME (at its end), or start,fail=NAME; a list for several. NAME is a target of the "
        "cluster, or a secret of the tenant that holds a URL of a webhook, Slack or another service of apprise. An "
        "array sends one message for all of its tasks.",
        notify_fields.NOTIFY_SCHEMA,
    ),
    "begin_at": TaskField(
        "begins_ms",
        stop_fields.begins_ms,
        "The task waits until this time of the scheduler's wall clock. A time in the past: it does not wait.",
        {**_TEXT, "format": "date-time"},
    ),
    "max_retries": TaskField(
        "max_retries",
        fields.whole(0, fields.MAX_RETRIES),
        "Retries after failures of the infrastructure.",
        {**_number(0, fields.MAX_RETRIES), "default": 3},
    ),
    "restart": TaskField(
        "restart",
        fields.restart,
        "on-failure retries the task's own failures too; always is for services.",
        {"enum": [r.value for r in Restart], "default": "never"},
    ),
    "allocation": TaskField(
        "allocation",
        fields.flag,
        "true: hold the GPUs and run nothing, until cancelled or until the time limit.",
        {"type": "boolean", "default": False},
    ),
    "labels": TaskField("labels", fields.labels, "Names and texts for your own use.", _TEXTS),
    "model_name": TaskField(
        "model_name",
        fields.short_line,
        "A GPU with this model loaded is preferred; memory estimates are learned per model.",
        _TEXT,
    ),
    "task_type": TaskField("task_type", fields.short_line, "Scales the memory estimate.", _TEXT),
    "structure_n_atoms": TaskField(
        "structure_n_atoms",
        fields.whole(0, 1_000_000_000),
        "Adds to the memory estimate.",
        _number(0, 1_000_000_000),
    ),
    "shared": TaskField(
        "shared",
        fields.flag,
        "true: shares a GPU with other tasks, within its gpu_memory_mb (or the estimate), or its gpu_share.",
        {"type": "boolean", "default": False},
    ),
    "gpu_share": TaskField(
        "share_milli",
        fields.share_milli,
        "A part of one GPU and of its memory; below 1 the GPU is shared.",
        {"type": "number", "minimum": 0.001, "maximum": 1, "default": 1},
    ),
    "nodes": TaskField(
        "nodes",
        fields.whole(1, MAX_NODES),
        "More than 1: the task runs on this many nodes at once, with gpu_count GPUs on each, and ends as a whole.",
        {**_number(1, MAX_NODES), "default": 1},
    ),
    "image": TaskField(
        "image",
        container_fields.image,
        "Runs the task in a container of this image, on a node that runs containers.",
        {**_TEXT, "maxLength": container_fields.MAX_IMAGE_CHARS},
    ),
    "image_secret": TaskField(
        "image_secret",
        container_fields.secret_name,
        "The secret of the tenant that holds USER:PASSWORD for the registry of the image. The task itself does not get "
        "it. Needs `image`.",
        _TEXT,
    ),
    "mounts": TaskField(
        "mounts",
        container_fields.mounts,
        "Directories of the node in the container: SOURCE:TARGET or SOURCE:TARGET:ro. The node allows some. Needs "
        "`image`.",
        {"type": "array", "items": _TEXT, "maxItems": container_fields.MAX_MOUNTS},
    ),
    "read_only_root": TaskField(
        "read_only_root",
        fields.flag,
        "true: the image's files cannot be changed; /tmp is in memory. Needs `image`.",
        {"type": "boolean", "default": False},
    ),
    "shm_mb": TaskField(
        "shm_mb",
        fields.whole(0, container_fields.MAX_SHM_MB),
        "Shared memory (/dev/shm) of the container; 0: the node's default. Needs `image`.",
        _number(0, container_fields.MAX_SHM_MB),
    ),
    "upload": TaskField(
        "upload",
        uploads.digest,
        "SHA-256 of an archive that was sent with PUT /api/v1/uploads/{sha256}. The task runs in a new directory with "
        "its content. Not together with `workdir`.",
        {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    ),
    "terminal": TaskField(
        "terminal",
        fields.flag,
        "true: the program gets a terminal, to which people attach. Its output is the task's output. Not with an "
        "image, and only on one node.",
        {"type": "boolean", "default": False},
    ),
    "ports": TaskField(
        "ports",
        ports,
        "TCP ports of the program. Each is free on the node, or replaced by a free one: the program listens on "
        "$DGPU_PORT_8888, of the first also $DGPU_PORT. People reach it through a channel to `port`.",
        {"type": "array", "items": _number(1, MAX_PORT), "maxItems": MAX_PORTS},
    ),
    "output_file": TaskField(
        "output_file",
        file_pattern,
        "A file on the node that gets a copy of the output: a path, relative to the working directory, with %j (number "
        "of the task), %A and %a (number and index of the array), %x (name), %N (node) and %%. Without error_file, "
        "also of stderr. The first attempt empties it. Not with a terminal; with an image, in its own directory.",
        _FILE,
    ),
    "error_file": TaskField("error_file", file_pattern, "The same, for stderr.", _FILE),
    "after": TaskField(
        "after",
        fields.after,
        "Tasks to wait for: an id, or a list of ids and of {task_id, when}. when: ok (default), any or failed. The id "
        "of an array means all of its tasks. In a batch, {entry: 0} means the first task of this batch; only earlier "
        "tasks can be named.",
        {
            "oneOf": [
                _TEXT,
                {"type": "array", "items": {"oneOf": [_TEXT, _DEPENDENCY]}, "maxItems": fields.MAX_AFTER},
            ]
        },
    ),
    "array": TaskField(
        "array",
        fields.array,
        "Many tasks at once, each with its DGPU_ARRAY_INDEX: 0-9, 1,3,7-20:2; 0-9%3 runs at most 3 at a time. At most "
        f"{MAX_TASKS:,} tasks. With a grid: some of its indexes, or only a limit (%3).",
        _TEXT,
    ),
    "grid": TaskField(
        "grid",
        grids.grid,
        "An array of all combinations of values; the last name varies fastest. A text has values with commas between "
        'them, and ranges: {"lr": [0.1, 0.01], "seed": "0-4"}. A task gets its values as variables (lr and '
        "DGPU_GRID_LR), in its name, and in its command in the place of {lr}.",
        {
            "type": "object",
            "additionalProperties": {
                "oneOf": [_TEXT, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]
            },
        },
    ),
    "held": TaskField(
        "held",
        fields.flag,
        "true: the task waits until it is released.",
        {"type": "boolean", "default": False},
    ),
    "constraints": TaskField(
        "constraints",
        fields.constraints,
        'Required labels of nodes: {"zone": "a"} or ["zone=a", "disk=ssd|nvme", "rack!=7"]. `node` is the node id.',
        {"oneOf": [{"type": "object"}, {"type": "array", "items": _TEXT}]},
    ),
    **{name: TaskField(target, check, about, schema) for name, target, check, about, schema in CALL_FIELDS},
}
