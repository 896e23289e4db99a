"""How a task names the secrets that it uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dgpu.wire.fields import Unacceptable

MAX_SECRETS_OF_TASK: Final = 16

SECRET_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_OWN: Final = re.compile(r"DGPU_.*|CUDA_VISIBLE_DEVICES")  # set by the agent

A_NAME: Final = "1 to 64 letters, digits, '_', '.' or '-', starting with a letter or '_'"
_A_VARIABLE: Final = "the name of a variable: letters, digits and '_', which dgpu does not set itself"
_A_FILE: Final = "the name of a file, without a directory: letters, digits, '_', '.' and '-'"
_A_USE: Final = '{"env": "VARIABLE"} or {"file": "name"}'


def secrets(value: Any) -> dict[str, dict[str, str]]:
    """A list of names, each delivered as a variable of this name; or `{"NAME": {"env": "VAR"}}`, `{"file": "name"}`."""
    if type(value) is list:
        return _listed(value)
    if type(value) is not dict:
        raise Unacceptable('a list of names, or an object like {"HF_TOKEN": {"env": "HF_TOKEN"}}')
    _check_number(len(value))
    targets: set[tuple[str, str]] = set()
    for name, use in value.items():
        at = f".{name[:64]}"
        if not SECRET_NAME.fullmatch(name):
            raise Unacceptable(f"the name of a secret: {A_NAME}", at=at, value=name)
        if type(use) is not dict or len(use) != 1 or next(iter(use)) not in {"env", "file"}:
            raise Unacceptable(_A_USE, at=at, value=use)
        ((kind, target),) = use.items()
        _check_target(kind, target, f"{at}.{kind}")
        if (kind, target) in targets:
            raise Unacceptable("each variable and each file for one secret only", at=at, value=target)
        targets.add((kind, target))
    return value


def _listed(names: list[Any]) -> dict[str, dict[str, str]]:
    _check_number(len(names))
    for number, name in enumerate(names):
        if type(name) is not str or not SECRET_NAME.fullmatch(name):
            raise Unacceptable(f"the name of a secret: {A_NAME}", at=f"[{number}]", value=name)
        if not _is_variable(name):
            expected = (
                f'a name that a variable can have; for another one: {{"{name}": {{"env": "VARIABLE"}}}}'
            )
            raise Unacceptable(expected, at=f"[{number}]", value=name)
    return {name: {"env": name} for name in names}


def _check_number(number: int) -> None:
    if number > MAX_SECRETS_OF_TASK:
        raise Unacceptable(f"at most {MAX_SECRETS_OF_TASK} secrets", value=f"{number} secrets")


def _check_target(kind: str, target: Any, at: str) -> None:
    if kind == "env" and (type(target) is not str or not _is_variable(target)):
        raise Unacceptable(_A_VARIABLE, at=at, value=target)
    if kind == "file" and (type(target) is not str or not _FILE.fullmatch(target)):
        raise Unacceptable(_A_FILE, at=at, value=target)


def _is_variable(name: str) -> bool:
    return bool(_VARIABLE.fullmatch(name)) and not _OWN.fullmatch(name)


SECRETS_SCHEMA: Final[dict[str, Any]] = {
    "oneOf": [
        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_SECRETS_OF_TASK},
        {
            "type": "object",
            "maxProperties": MAX_SECRETS_OF_TASK,
            "additionalProperties": {
                "type": "object",
                "properties": {"env": {"type": "string"}, "file": {"type": "string"}},
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
            },
        },
    ]
}


def misfit(detail: Mapping[str, Any]) -> tuple[str, str] | None:
    """A variable that is both a secret and in `env`: the field, and why it does not fit."""
    for name, use in detail.get("secrets", {}).items():
        if use.get("env") in detail.get("env", {}):
            return f"secrets.{name}.env", f"Expected a variable that is not in env, too, got {use['env']}."
    return None
