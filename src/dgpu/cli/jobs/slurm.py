"""Turns options of sbatch into options of dgpu. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dgpu.cli.jobs.directives import Fault, Given
from dgpu.cli.jobs.hostlist import BadHostList, expand
from dgpu.cli.jobs.slurm_options import SLURM_OPTIONS, Effect
from dgpu.core.model.array import NoArray, parse_array
from dgpu.wire.file_patterns import unknown_patterns

_MEMORY = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_UNITS_KB = {"k": 1, "m": 1 << 10, "": 1 << 10, "g": 1 << 20, "t": 1 << 30}
_GRES = re.compile(r"gpu(?::(?P<kind>[A-Za-z][\w.-]*))?(?::(?P<count>\d+))?(?:\(.*\))?")
_TYPED_COUNT = re.compile(r"(?:(?P<kind>[A-Za-z][\w.-]*):)?(?P<count>\d+)")
_LATER = re.compile(r"now\+(\d+)(seconds?|minutes?|hours?|days?|weeks?)?")
_MOMENT = re.compile(r"\d{1,2}:\d{2}|\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2})?)?")
_WHENS = {"afterok": "ok", "afterany": "any", "afternotok": "failed"}
NO_FILE_OF_CONTAINER = "the output of a container is in dgpu logs; its output file is not written"
_LEVELS = ("low", "normal", "high", "critical")


class Translated(NamedTuple):
    """`given` has the names and the texts of dgpu's own options, as the command line keeps them."""

    given: dict[str, Any]
    variables: dict[str, str]  # SLURM_*, known at submit
    notes: list[Fault]
    faults: list[Fault]


def translate(options: Iterable[Given]) -> Translated:
    """A later option replaces an earlier one of the same name, as in Slurm."""
    last = {option.name: option for option in options}
    work = _Translation(last)
    work.run()
    return Translated(work.given, work.variables, work.notes, work.faults)


class _BadValueError(Exception):
    """The text says what is expected."""


class _Translation:
    def __init__(self, options: dict[str, Given]) -> None:
        self._options = options
        self.given: dict[str, Any] = {}
        self.variables: dict[str, str] = {}
        self.notes: list[Fault] = []
        self.faults: list[Fault] = []

    def run(self) -> None:
        for name, option in self._options.items():
            effect, about = SLURM_OPTIONS[name].effect, SLURM_OPTIONS[name].about
            if effect is Effect.NOTED:
                self.notes.append(option.fault(about))
            elif effect is Effect.STOPS:
                self.faults.append(option.fault(f"not supported: {about}"))
        for name, read in _SIMPLE.items():
            if name in self._options:
                self._try(self._options[name], read)
        self._size()

    def _try(self, option: Given, read: Callable[[_Translation, Given, str], None]) -> None:
        try:
            read(self, option, option.value or "")
        except _BadValueError as error:
            self.faults.append(option.value_fault(f"{error}, got {option.value!r}"))

    def number(self, name: str, default: int | None = None) -> int | None:
        option = self._options.get(name)
        if option is None:
            return default
        if not (option.value or "").isdecimal() or not int(option.value or ""):
            self.faults.append(option.value_fault(f"expected a whole number above 0, got {option.value!r}"))
            return default
        return int(option.value or "")

    def _size(self) -> None:
        """Nodes, processes, GPUs, CPUs and memory depend on each other."""
        nodes, tasks = self._nodes_and_tasks()
        per_node = -(-tasks // nodes)
        gpus = self._gpus(nodes, per_node)
        self.given["gpu_count"] = gpus  # without a request, Slurm gives no GPU
        if nodes > 1:
            self.given["nodes"] = nodes
        cpus = self._cpus(per_node, gpus)
        self._ram(cpus or per_node, gpus)
        self.variables |= {
            "SLURM_NTASKS": str(tasks),
            "SLURM_NPROCS": str(tasks),
            "SLURM_TASKS_PER_NODE": f"{per_node}(x{nodes})" if nodes > 1 else str(per_node),
        }
        if "ntasks-per-node" in self._options:
            self.variables["SLURM_NTASKS_PER_NODE"] = str(per_node)
        if "cpus-per-task" in self._options:
            self.variables["SLURM_CPUS_PER_TASK"] = self._options["cpus-per-task"].value or ""
        if gpus:
            self.variables["SLURM_GPUS"] = str(gpus * nodes)

    def _nodes_and_tasks(self) -> tuple[int, int]:
        per_node = self.number("ntasks-per-node")
        tasks = self.number("ntasks")
        nodes = self._nodes()
        if nodes is None:
            nodes = -(-tasks // per_node) if tasks and per_node else 1
        if tasks is None:
            tasks = nodes * (per_node or 1)
        option = self._options.get("ntasks")
        if option is not None and tasks % nodes:
            self.faults.append(option.value_fault(f"{tasks} processes cannot be divided by {nodes} nodes"))
        return nodes, tasks

    def _nodes(self) -> int | None:
        option = self._options.get("nodes")
        if option is None:
            return None
        low, dash, high = (option.value or "").partition("-")
        if dash and low == high:
            option = option._replace(value=low)
        if not (option.value or "").isdecimal() or not int(option.value or ""):
            self.faults.append(
                option.value_fault(f"expected one number of nodes, without a range, got {option.value!r}")
            )
            return 1
        return int(option.value or "")

    def _gpus(self, nodes: int, per_node: int) -> int:
        for name, factor in (("gres", 1), ("gpus-per-node", 1), ("gpus-per-task", per_node), ("gpus", 0)):
            option = self._options.get(name)
            if option is None:
                continue
            count = self._gpu_count(option)
            if factor:
                return count * factor
            if count % nodes:
                self.faults.append(option.value_fault(f"{count} GPUs cannot be divided by {nodes} nodes"))
            return count // nodes
        return 0

    def _gpu_count(self, option: Given) -> int:
        value = option.value or ""
        if option.name == "gres" and value.lower() in {"none", ""}:
            return 0
        pattern, expected = (
            (_GRES, "gpu:2 or gpu:a100:2") if option.name == "gres" else (_TYPED_COUNT, "2 or a100:2")
        )
        match = pattern.fullmatch(value.removeprefix("gres/") if option.name == "gres" else value)
        if match is None:
            self.faults.append(option.value_fault(f"expected {expected}, got {value!r}"))
            return 0
        if match["kind"]:
            self.given["gpu_model"] = [match["kind"]]
        return int(match["count"] or 1)

    def _cpus(self, per_node: int, gpus: int) -> int | None:
        """None: not asked for, and not counted unless there are several processes."""
        if (cpus := self.number("cpus-per-task")) is not None:
            cpus *= per_node
        elif (cpus := self.number("cpus-per-gpu")) is not None:
            cpus *= max(gpus, 1)
        elif per_node > 1:
            cpus = per_node
        if cpus is not None:
            self.given["cpus"] = float(cpus)
        return cpus

    def _ram(self, cpus: int, gpus: int) -> None:
        for name, factor in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", max(gpus, 1))):
            option = self._options.get(name)
            if option is None:
                continue
            try:
                megabytes = _megabytes(option.value or "") * factor
            except _BadValueError as error:
                self.faults.append(option.value_fault(f"{error}, got {option.value!r}"))
                continue
            if megabytes:
                self.given["ram_mb"] = f"{megabytes}M"
            else:
                self.notes.append(option.fault("0 means all memory of a node; here it is not counted"))


def slurm_seconds(text: str) -> int | None:
    """`90` minutes, `90:30`, `1:30:00`, `2-12`, `2-12:30`, `2-12:30:00`. None: no limit."""
    if text.lower() in {"0", "infinite", "unlimited", "-1"}:
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise _BadValueError("expected a time like 90 (minutes), 1:30:00 or 2-12:00:00")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds


def _megabytes(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise _BadValueError("expected an amount of memory like 16G or 16000 (MB)")
    return -(-int(match[1]) * _UNITS_KB[match[2].lower()] // (1 << 10))


def _time(work: _Translation, option: Given, value: str) -> None:
    seconds = slurm_seconds(value)
    if seconds is None:
        work.notes.append(option.fault("no limit was asked for; the scheduler's default applies"))
    else:
        work.given["timeout_seconds"] = f"{seconds}s"


def _partition(work: _Translation, option: Given, value: str) -> None:
    work.variables["SLURM_JOB_PARTITION"] = value
    if value in {"online", "batch"}:
        work.given["pool"] = value
    else:
        work.notes.append(
            option.fault(f"dgpu has no partitions; any node may run the task, not only those of {value}")
        )


def _qos(work: _Translation, option: Given, value: str) -> None:
    work.variables["SLURM_JOB_QOS"] = value
    if value.lower() in _LEVELS:
        work.given["priority"] = value.lower()
    else:
        work.notes.append(option.fault(f"dgpu has no QOS {value}; use #DGPU --priority"))


def _gpu_bind(work: _Translation, option: Given, value: str) -> None:
    if value not in {"none", "closest"}:
        raise _BadValueError(
            "dgpu does not divide the GPUs of a task among its processes; expected none or closest"
        )
    work.notes.append(option.fault("every process of a task sees all of its GPUs"))


def _begin(work: _Translation, _: Given, value: str) -> None:
    """`22:00`, `2026-07-30T22:00`, `now+2hours`; a number without a unit is seconds."""
    later = _LATER.fullmatch(value)
    if later is not None:
        work.given["begin_at"] = f"+{later[1]}{(later[2] or 's')[0]}"
    elif _MOMENT.fullmatch(value):
        work.given["begin_at"] = value
    elif value != "now":
        raise _BadValueError("expected a time like 22:00, 2026-07-30T22:00 or now+2hours")


def _signal(work: _Translation, _: Given, value: str) -> None:
    """Dgpu sends it to each process that handles it, so to a script (B:) and to its programs."""
    if value.upper().startswith(("R:", "RB:", "BR:")):
        raise _BadValueError("reservations have no signals here; expected USR1@300 or B:USR1@300")
    work.given["signal"] = re.sub(r"^[Bb]:", "", value).upper().removeprefix("SIG")


def _account(work: _Translation, _: Given, value: str) -> None:
    work.given["tenant_id"] = value
    work.variables["SLURM_JOB_ACCOUNT"] = value


def _dependency(work: _Translation, _: Given, value: str) -> None:
    if "?" in value:
        raise _BadValueError("dgpu waits for all dependencies; '?' (any of them) is not supported")
    after: list[str] = []
    for part in value.split(","):
        kind, *ids = part.split(":")
        when = _WHENS.get(kind)
        if when is None or not ids:
            raise _BadValueError("expected afterok:ID, afterany:ID or afternotok:ID")
        after += [f"{task_id}:{when}" for task_id in ids]
    work.given["after"] = after


def _export(work: _Translation, _: Given, value: str) -> None:
    names = [name for name in value.split(",") if name]
    if "NONE" in names or "NIL" in names:
        work.given["clean_env"] = True
    elif "ALL" in names:
        work.given["env_all"] = True
    wanted = [name for name in names if name not in {"ALL", "NONE", "NIL"}]
    if wanted:
        work.given["env"] = wanted


def _array(work: _Translation, _: Given, value: str) -> None:
    try:
        parse_array(value)
    except NoArray as error:
        raise _BadValueError(f"expected {error}") from None
    work.given["array"] = value


def _hosts(work: _Translation, value: str, sign: str) -> None:
    try:
        names = expand(value)
    except BadHostList as error:
        raise _BadValueError(str(error)) from None
    work.given.setdefault("constraints", []).append(f"node{sign}{'|'.join(names)}")


def _nodelist(work: _Translation, _: Given, value: str) -> None:
    _hosts(work, value, "=")


def _exclude(work: _Translation, _: Given, value: str) -> None:
    _hosts(work, value, "!=")


def _image(work: _Translation, _: Given, value: str) -> None:
    """Pyxis writes the registry before #."""
    work.given["image"] = value.removeprefix("docker://").replace("#", "/", 1)


def _file(name: str) -> Callable[[_Translation, Given, str], None]:
    def keep(work: _Translation, option: Given, value: str) -> None:
        if unknown := unknown_patterns(value):
            work.notes.append(
                option.fault(
                    f"dgpu has no {unknown[0]}; the output is in dgpu logs, this file is not written"
                )
            )
        elif "image" in work.given:
            work.notes.append(option.fault(NO_FILE_OF_CONTAINER))
        else:
            work.given[name] = value

    return keep


def _kept(name: str) -> Callable[[_Translation, Given, str], None]:
    def keep(work: _Translation, _: Given, value: str) -> None:
        work.given[name] = value

    return keep


def _fixed(name: str, fixed: Any) -> Callable[[_Translation, Given, str], None]:
    def keep(work: _Translation, _: Given, __: str) -> None:
        work.given[name] = fixed

    return keep


def _mounts(work: _Translation, _: Given, value: str) -> None:
    work.given["mounts"] = [mount if ":" in mount else f"{mount}:{mount}" for mount in value.split(",")]


_SIMPLE: dict[str, Callable[[_Translation, Given, str], None]] = {
    "account": _account,
    "array": _array,
    "begin": _begin,
    "chdir": _kept("workdir"),
    "container-image": _image,
    "container-mounts": _mounts,
    "dependency": _dependency,
    "error": _file("error_file"),
    "exclude": _exclude,
    "export": _export,
    "gpu-bind": _gpu_bind,
    "hold": _fixed("held", fixed=True),
    "job-name": _kept("name"),
    "no-requeue": _fixed("max_retries", fixed=0),
    "nodelist": _nodelist,
    "output": _file("output_file"),
    "partition": _partition,
    "priority": _kept("priority"),
    "qos": _qos,
    "signal": _signal,
    "time": _time,
}
