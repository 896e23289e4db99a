"""Parses arguments: durations, memory, ids, environment. Each error shows a correct example."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from dgpu.cli.flags import OUTPUTS
from dgpu.wire.task_names import name_of, parse_named

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2}):(\d{1,2})")
_MEGABYTES = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_MIN_BARE_MB = 512
_LONGEST_SECONDS = 10 * 365 * 86_400
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_OWN_VARIABLE = re.compile(r"\$(?:DGPU_\w+|\{DGPU_\w+\})", re.ASCII)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

WHENS = ("ok", "any", "failed")


def parse_duration(text: str) -> float:
    """Seconds. `90`, `90s`, `15m`, `1h30m`, `2d`, `2:00:00`, `1-12:00:00`."""
    wanted = text.strip().lower()
    clock = _CLOCK.fullmatch(wanted)
    seconds = _clock_seconds(clock, text) if clock else _unit_seconds(wanted, text)
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise typer.BadParameter(f"{text!r} is out of range: more than 0, at most ten years")
    return int(seconds) if seconds == int(seconds) else seconds


def _unit_seconds(wanted: str, text: str) -> float:
    parts = _DURATION_PART.findall(wanted)
    if not parts or "".join(number + unit for number, unit in parts) != wanted:
        raise typer.BadParameter(f"{text!r} is not a duration; write for example 90s, 15m, 2h, 1d or 2:00:00")
    if len(parts) > 1 and not all(unit for _, unit in parts):
        raise typer.BadParameter(f"{text!r} lacks a unit; write for example 1h30m")
    return sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)


def _clock_seconds(clock: re.Match[str], text: str) -> float:
    days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
    if minutes > 59 or seconds > 59:
        raise typer.BadParameter(f"{text!r}: minutes and seconds go up to 59; write for example 2:30:00")
    return days * 86_400 + hours * 3_600 + minutes * 60 + seconds


def parse_memory_mb(text: str) -> int:
    """`8000` and `8000M` are megabytes, `8G` is 8192."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not an amount of memory; write for example 8000 (MB) or 8G")
    megabytes = float(match[1]) * _MEGABYTES[match[2].lower()]
    if megabytes > 1 << 40:
        raise typer.BadParameter(f"{text!r} is too much memory")
    if megabytes and megabytes < 1:
        raise typer.BadParameter(f"{text!r} is less than 1 MB")
    return round(megabytes)


def parse_plain_memory_mb(text: str) -> int:
    """Refuses a small number without a unit, like `16`: nearly always, gigabytes are meant."""
    megabytes = parse_memory_mb(text)
    number = text.strip()
    if number.isdecimal() and 0 < megabytes < _MIN_BARE_MB:
        raise typer.BadParameter(f"{number} means {number} MB; write {number}G, or {number}M if you mean it")
    return megabytes


def parse_begin(text: str) -> str:
    """`22:00`, `+2h`, `2026-07-30T22:00`, as an exact time for the server."""
    from dgpu.client.begin_times import BadTime, begin_instant

    try:
        return begin_instant(text)
    except BadTime as error:
        raise typer.BadParameter(str(error), param_hint="--begin") from None


def parse_ids(texts: Sequence[str]) -> list[str]:
    """`7` or `task-7`, in an array `7_3`; in the order given, each once."""
    names: dict[str, None] = {}
    for text in texts:
        named = parse_named(text)
        if named is None:
            raise typer.BadParameter(
                f"{text!r} is not a task id; write for example 7 or task-7, or 7_3 for index 3 of array 7"
            )
        names[name_of(named)] = None
    return list(names)


def parse_after(texts: Sequence[str]) -> list[str | dict[str, str]]:
    """`7` or `task-7:any`; may be repeated."""
    found: list[str | dict[str, str]] = []
    for text in texts:
        name, colon, when = text.partition(":")
        if colon and when not in WHENS:
            raise typer.BadParameter(
                f"{text!r}: write ok, any or failed after the colon", param_hint="--after"
            )
        (task_id,) = parse_ids([name])
        found.append({"task_id": task_id, "when": when} if colon else task_id)
    return found


def parse_priority(text: str) -> int | str:
    """A level or 0 to 100; the server checks the bounds."""
    word = text.strip().lower()
    if re.fullmatch(r"-?\d{1,9}", word):
        return int(word)
    if word.isalpha():
        return word
    raise typer.BadParameter(f"{text!r} is not a priority; write low, normal, high, critical or 0 to 100")


def parse_env(entries: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """`K=V`, or `K` alone for its current value."""
    here = os.environ if environ is None else environ
    env: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not _ENV_NAME.fullmatch(name):
            raise typer.BadParameter(f"{name!r} is not the name of a variable; write K=V", param_hint="--env")
        if not equals and name not in here:
            raise typer.BadParameter(f"{name} has no value here; write {name}=VALUE", param_hint="--env")
        env[name] = value if equals else here[name]
    return env


def read_env_file(path: str) -> dict[str, str]:
    """Lines `K=V`. Empty lines and lines that begin with `#` are skipped; quotes around a value are removed."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint="--env-file") from None
    env: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        entry = line.strip().removeprefix("export ").strip()
        if not entry or entry.startswith("#"):
            continue
        name, equals, value = entry.partition("=")
        if not equals or not _ENV_NAME.fullmatch(name):
            raise typer.BadParameter(
                f"{path}, line {number}: {line.split('=')[0][:40]!r} is not K=V", param_hint="--env-file"
            )
        env[name] = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    return env


def parse_ports(texts: Sequence[str]) -> list[int]:
    for text in texts:
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535):
            raise typer.BadParameter(f"--port {text}: expected a port number from 1 to 65535")
    return [int(text) for text in texts]


def parse_output_file(text: str) -> str:
    if text in OUTPUTS:
        raise typer.BadParameter(
            f"{text!r} is a format: write -o {text}. For a file of this name: --output ./{text}",
            param_hint="--output",
        )
    return text


def parse_secrets(entries: Sequence[str]) -> dict[str, dict[str, str]]:
    """`NAME` or `NAME=VARIABLE`; `NAME:file` or `NAME:file=FILE`."""
    secrets: dict[str, dict[str, str]] = {}
    for entry in entries:
        left, equals, target = entry.partition("=")
        name, colon, kind = left.partition(":")
        if not name or (colon and kind != "file") or (equals and not target):
            raise typer.BadParameter(
                f"{entry!r} is not a use of a secret; write NAME, NAME=VARIABLE, NAME:file or NAME:file=FILE",
                param_hint="--secret",
            )
        if name in secrets:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--secret")
        secrets[name] = {"file" if colon else "env": target or name}
    return secrets


def parse_grid(entries: Sequence[str]) -> dict[str, str]:
    """`lr=0.1,0.01`, `seed=0-4`; the server checks the values."""
    grid: dict[str, str] = {}
    for entry in entries:
        name, equals, values = entry.partition("=")
        if not name or not equals or not values:
            raise typer.BadParameter(
                f"{entry!r} is not a list of values; write lr=0.1,0.01", param_hint="--grid"
            )
        if name in grid:
            raise typer.BadParameter(f"{name} is given twice; write {name}=A,B", param_hint="--grid")
        grid[name] = values
    return grid


def parse_labels(entries: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{entry!r} is not a label; write K=V", param_hint="--label")
        labels[name] = value
    return labels


def unfilled_variable(words: Sequence[str]) -> str | None:
    """A variable of dgpu, like $DGPU_PORT, that no shell fills in: a word of a command without a shell."""
    if len(words) < 2 or words[0].rpartition("/")[2] in _SHELLS:
        return None
    found = (_OWN_VARIABLE.search(word) for word in words if not any(map(str.isspace, word)))
    return next((match[0] for match in found if match), None)


def parse_command(words: Sequence[str]) -> str | list[str]:
    """Several words run without a shell; a single word with spaces or special characters runs in the shell."""
    if len(words) == 1 and not _PLAIN_WORD.fullmatch(words[0]):
        return words[0]
    return list(words)


def command_text(command: str | Sequence[str] | None) -> str:
    if command is None:
        return ""
    return command if isinstance(command, str) else shlex.join(command)
