"""A script with directives, read from a file."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.jobs.directives import (
    OWN,
    SLURM,
    DirectiveLine,
    Fault,
    Given,
    JobFileError,
    directive_lines,
    late_lines,
)
from dgpu.cli.jobs.own import read_own
from dgpu.cli.jobs.slurm import NO_FILE_OF_CONTAINER, Translated, translate
from dgpu.cli.jobs.slurm_options import SBATCH
from dgpu.client.surroundings import current_directory
from dgpu.core.model.array import NoArray, parse_array
from dgpu.wire.fields import MAX_SCRIPT_BYTES

_STARTS_PROCESSES = re.compile(r"^[^#\n]*\bsrun\b", re.MULTILINE)
_JOINED = frozenset({"env", "labels", "secrets", "env_file"})  # the command line adds to these
_FILES = frozenset({"output_file", "error_file"})
_NO_SLURM = Translated({}, {}, [], [])


class JobScript(NamedTuple):
    path: str
    text: str
    given: dict[str, Any]  # options of dgpu, as the command line keeps them
    variables: dict[str, str]  # SLURM_*, known at submit
    is_slurm: bool
    notes: list[Fault]

    def with_flags(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """A flag of the command line replaces a directive, as in Slurm."""
        merged = {**self.given, **flags}
        for name in _JOINED & self.given.keys() & flags.keys():
            merged[name] = [*self.given[name], *flags[name]]
        if flags.keys() & {"clean_env", "env_all"}:
            merged = {name: value for name, value in merged.items() if name not in {"clean_env", "env_all"}}
            merged |= {name: flags[name] for name in ("clean_env", "env_all") if name in flags}
        if "image" in merged and (files := _FILES & (merged.keys() - flags.keys())):
            note(f"{self.path}: {NO_FILE_OF_CONTAINER}")
            merged = {name: value for name, value in merged.items() if name not in files}
        return merged

    def in_task(self, task: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
        """The task with the text of the script and the variables that Slurm would set. `words`: path and arguments."""
        name = os.path.basename(self.path)  # noqa: PTH119  a word of the command line
        own = {"name": name, **task, "script": self.text}
        own["command"] = list(words)
        if not self.is_slurm:
            return own
        variables = {**self.variables, **slurm_variables(own)}
        return {**own, "slurm_env": True, "env": {**task.get("env", {}), **variables}}

    def tell(self) -> None:
        for fault in sorted(self.notes):
            note(f"{self.path}:{fault.line}: {fault.message}" if fault.line else fault.message)


def script_in(command: Sequence[str]) -> JobScript | None:
    """The script that the first word names, if it is a file here with directives. Otherwise, it is a command."""
    if not command or not _is_file(command[0]):
        return None
    text = _read(command[0])
    if text is None:
        return None
    try:
        lines = directive_lines(text)
        return parse_script(command[0], text, lines) if lines else None
    except JobFileError as error:
        raise refusal(command[0], error) from None


def parse_script(
    path: str,
    text: str,
    lines: Sequence[DirectiveLine],
    more: Sequence[Given] = (),
    *,
    is_slurm: bool = False,
) -> JobScript:
    """`more`: options of sbatch, which win. `is_slurm`: also without a directive of Slurm. Raises JobFileError."""
    faults = _text_faults(text)
    slurm_lines = [line for line in lines if line.kind == SLURM]
    slurm = _NO_SLURM
    if slurm_lines or is_slurm:
        options, wrong = SBATCH.read(slurm_lines)
        slurm = translate([*options, *more])
        faults += wrong + slurm.faults
    own, wrong = read_own(line for line in lines if line.kind == OWN)
    faults += wrong
    if "nodes" in slurm.given and "nodes" not in own and not _STARTS_PROCESSES.search(text):
        faults.append(_many_nodes(slurm_lines, slurm.given["nodes"]))
    if faults:
        raise JobFileError(faults)
    late = [Fault(line, 1, "a directive after the first command has no effect") for line in late_lines(text)]
    return JobScript(
        path, text, {**slurm.given, **own}, slurm.variables, is_slurm or bool(slurm_lines), slurm.notes + late
    )


def slurm_variables(task: Mapping[str, Any]) -> dict[str, str]:
    """Variables that follow from the task as it is sent."""
    found = {
        "SLURM_JOB_NAME": task["name"],
        "SLURM_SUBMIT_DIR": current_directory() or "/",
        "SLURM_SUBMIT_HOST": platform.node(),
    }
    if user := task.get("labels", {}).get("user"):
        found["SLURM_JOB_USER"] = user
    with contextlib.suppress(KeyError, NoArray):  # the scheduler refuses a wrong one
        lows, highs, steps = zip(*parse_array(task["array"]).ranges, strict=True)
        found["SLURM_ARRAY_TASK_MIN"] = str(min(lows))
        found["SLURM_ARRAY_TASK_MAX"] = str(max(highs))
        found["SLURM_ARRAY_TASK_STEP"] = str(max(steps))
    return found


def refusal(path: str, error: JobFileError) -> CliFailure:
    return CliFailure("\n".join([*error.lines(path), "Nothing was submitted."]), ExitCode.USAGE)


def _many_nodes(lines: Sequence[DirectiveLine], nodes: int) -> Fault:
    """Slurm starts a script on the first node only."""
    found = (line for line in lines for word in line.words if word.text.startswith(("-N", "--nodes")))
    place = next(found, DirectiveLine(SLURM, 0, ()))
    message = (
        f"dgpu starts the script on each of the {nodes} nodes, Slurm only on the first, and this script does not call "
        f"srun. If it is made to run on each node, add: #DGPU --nodes {nodes}"
    )
    return Fault(place.line, place.words[0].column if place.words else 1, message)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116  a word of the command line, often no path
    except (OSError, ValueError):
        return False


def _read(path: str) -> str | None:
    """None: not a script, or not readable here; the node may know it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  the same
            start = file.read(2)
            content = start + file.read(MAX_SCRIPT_BYTES) if start == b"#!" else b""
    except OSError:
        return None
    return content.decode("utf-8", "surrogateescape") if content else None


def read_script(path: str) -> str:
    """The text of a file that must be a script."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  the same
            return file.read(MAX_SCRIPT_BYTES + 1).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise CliFailure(f"{path} cannot be read: {error.strerror}") from None


def _text_faults(text: str) -> list[Fault]:
    faults: list[Fault] = []
    if len(text.encode("utf-8", "surrogateescape")) > MAX_SCRIPT_BYTES:
        faults.append(Fault(1, 1, f"a script may have at most {MAX_SCRIPT_BYTES:,} bytes"))
    for number, line in enumerate(text.split("\n"), start=1):
        bad = re.search(r"[\0\udc80-\udcff]|\r$", line)
        if bad is not None:
            what = (
                "DOS line breaks; convert the file with dos2unix"
                if bad[0] == "\r"
                else "bytes that are not UTF-8"
            )
            faults.append(Fault(number, bad.start() + 1, f"the script has {what}"))
            break
    if not text.split("\n", 1)[0][2:].strip().startswith("/"):
        faults.append(Fault(1, 3, "expected an absolute path after #!, like #!/bin/bash"))
    return faults
