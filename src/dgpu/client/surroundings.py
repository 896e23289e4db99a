"""What a task gets from the shell or program that submits it: the working directory and some variables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dgpu.client.credentials import config_dir
from dgpu.wire.submitters import USER_LABEL

# The variables that decide which program `python train.py` runs, and how.
DEFAULT_NAMES = (
    "PATH", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "PYTHON*", "CUDA_*", "NCCL_*", "OMP_*", "TORCH*", "HF_*",
    "WANDB_*", "LANG", "LC_*", "TZ",
)  # fmt: skip
# Set on the node, or of this process alone. The token must not reach a task.
_NEVER = frozenset(
    {"CUDA_VISIBLE_DEVICES", "DGPU_TOKEN", "PWD", "OLDPWD", "SHLVL", "_", "PYTHONBREAKPOINT", "PYTHONSTARTUP"}
)
_FILE = "client.yaml"
_EXPECTED = {"env": "a list of names like [default, MY_*]", "notify": "a list like [end=slack]"}


class BadSettings(ValueError):  # noqa: N818  named for what they are
    """The user's client.yaml cannot be used."""


def surrounded(task: Mapping[str, Any]) -> dict[str, Any]:
    """The task with the directory, the variables and the user of this process, and the messages that the user wants of
    each task; values of the task win.

    A container has its own directories and variables. A task with an upload has its own directory.
    """
    filled = dict(task)
    if (user := login_name()) and isinstance(labels := task.get("labels") or {}, Mapping):
        filled["labels"] = {USER_LABEL: user, **labels}
    if "notify" not in task and (wanted := _settings().get("notify")):
        filled["notify"] = wanted
    if task.get("image"):
        return filled
    if variables := sent_variables(os.environ) | dict(task.get("env") or {}):
        filled["env"] = variables
    if task.get("workdir") is None and not task.get("upload") and (here := current_directory()):
        filled["workdir"] = here
    return filled


def login_name() -> str:
    """Empty: this process has no name of a user. A scheduler that knows its clients puts the name that it knows."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def sent_variables(environ: Mapping[str, str]) -> dict[str, str]:
    names = chosen_names()
    return {
        name: value
        for name, value in environ.items()
        if name not in _NEVER and any(fnmatchcase(name, pattern) for pattern in names)
    }


def all_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """For --env-all."""
    return {name: value for name, value in environ.items() if name not in _NEVER}


def current_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  a string is sent
    except FileNotFoundError:
        return None


def chosen_names() -> tuple[str, ...]:
    """`client.env` of the user's client.yaml. The word `default` in it stands for the default names."""
    chosen = _settings().get("env")
    return DEFAULT_NAMES if chosen is None else tuple(_expanded(chosen))


def _settings() -> dict[str, list[str] | None]:
    try:
        return _read(config_dir() / _FILE)
    except RuntimeError:  # no home directory
        return {}


def _expanded(chosen: Iterable[str]) -> Iterable[str]:
    for name in chosen:
        if name == "default":
            yield from DEFAULT_NAMES
        else:
            yield name


def _read(path: Path) -> dict[str, list[str] | None]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path} cannot be read: {error}") from None
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadSettings(f"{path} is not YAML: {error}") from None
    section = document.get("client") if isinstance(document, dict) else document
    if section is None:
        return {}
    if not isinstance(section, dict) or set(section) - _EXPECTED.keys():
        raise BadSettings(f"{path}: expected only the keys client.env and client.notify, got {section!r}")
    for key, value in section.items():
        if value is not None and not (
            isinstance(value, list) and all(isinstance(each, str) and each for each in value)
        ):
            raise BadSettings(f"{path}: client.{key} is {value!r}, expected {_EXPECTED[key]}")
    return section
