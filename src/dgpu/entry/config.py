"""Reads scheduler.yaml and agent.yaml. An error stops the start, and all errors are reported at once:

    configs/scheduler.yaml:
      scheduler.schedule_intervall: unknown key; did you mean schedule_interval?
      server.http_address: expected a text, got 8080 (int)

The environment variable DGPU__SECTION__KEY overrides a key; numbers and booleans as in YAML, lists as JSON.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
import yaml

from dgpu.entry.config_checks import check_agent, check_scheduler
from dgpu.entry.config_convert import Conversion, nearest, shown, unaffected
from dgpu.entry.config_problem import Problem
from dgpu.entry.config_section import Section
from dgpu.entry.config_types import AgentConfig, SchedulerConfig

PREFIX = "DGPU__"
_MAX_BYTES = 1024 * 1024
_MAX_TOLD = 50
_SHARES = {"online_percent": "batch_percent", "batch_percent": "online_percent"}

_Config = TypeVar("_Config", bound=Section)


class ConfigError(Exception):
    """Its text names the file, the path of each key and the expected value."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        lines = (
            f"  {problem.path}: {problem.text}" if problem.path else f"  {problem.text}"
            for problem in problems
        )
        told = list(itertools.islice(lines, _MAX_TOLD))
        if len(problems) > _MAX_TOLD:
            told.append(f"  and {len(problems) - _MAX_TOLD} more")
        super().__init__("\n".join((f"{source}:", *told)))
        self.problems = tuple(problems)


def load_scheduler_config(path: Path | None, environ: Mapping[str, str] | None = None) -> SchedulerConfig:
    """Without a file: the defaults and the environment."""
    return _load(SchedulerConfig, check_scheduler, path, os.environ if environ is None else environ)


def load_agent_config(path: Path | None, environ: Mapping[str, str] | None = None) -> AgentConfig:
    return _load(AgentConfig, check_agent, path, os.environ if environ is None else environ)


def known_keys(section: type[Section]) -> dict[str, Any]:
    """Every key's path with its default."""
    return dict(_keys(section(), ()))


def _load(
    kind: type[_Config],
    check: Callable[[_Config], Iterable[Problem]],
    path: Path | None,
    environ: Mapping[str, str],
) -> _Config:
    source = "environment" if path is None else str(path)
    written = {} if path is None else _read(path, source)
    if not isinstance(written, dict):
        raise ConfigError(source, [Problem("", f"expected a mapping of sections, got {shown('', written)}")])
    problems: list[Problem] = []
    origins = _override(kind, written, environ, problems)
    _complete_quota(written.get("quota"), origins)
    conversion = Conversion(origins)
    config: _Config = conversion.struct(kind, written, "")
    problems += conversion.problems
    problems += unaffected(list(check(config)), problems)
    if problems:
        raise ConfigError(source, problems)
    return config


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key, because the first value would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    raise yaml.constructor.ConstructorError(
                        None, None, f"duplicate key {key.value!r}", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(path: Path, source: str) -> Any:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(source, [Problem("", f"cannot be read: {error.strerror}")]) from error
    if len(text) > _MAX_BYTES:
        raise ConfigError(source, [Problem("", f"is larger than {_MAX_BYTES} bytes")])
    try:
        loaded = yaml.load(text, _Loader)  # noqa: S506  a safe loader, made stricter
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(source, [Problem("", f"{place}{error.problem or 'is not YAML'}")]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            source, [Problem("", f"is not YAML that can be read: {_first_line(error)}")]
        ) from error
    return {} if loaded is None else loaded


def _override(
    kind: type[Section], written: dict[str, Any], environ: Mapping[str, str], problems: list[Problem]
) -> dict[str, str]:
    """Puts values of the environment into the tree. Skips keys of the other service: both may share an environment."""
    mine, all_keys = known_keys(kind), known_keys(SchedulerConfig) | known_keys(AgentConfig)
    origins: dict[str, str] = {}
    for name in sorted(name for name in environ if name.upper().startswith(PREFIX)):
        parts = tuple(part.lower() for part in name[len(PREFIX) :].split("__"))
        path = ".".join(parts)
        if path in mine:
            if _put(written, parts, _typed(environ[name], of=_type_at(kind, parts))):
                origins[path] = name
            else:
                problems.append(Problem(name, f"cannot be set: {parts[0]} in the file is not a mapping"))
        elif path not in all_keys:
            problems.append(Problem(name, f"unknown key {path}{nearest(path, all_keys)}"))
    return origins


def _complete_quota(quota: Any, origins: Mapping[str, str]) -> None:
    """One share of the quota is enough: the other share is the rest. A share of the environment counts before those of
    the file.
    """
    if not isinstance(quota, dict):
        return
    set_outside = [name for name in _SHARES if f"quota.{name}" in origins]
    given = set_outside or [name for name in _SHARES if name in quota]
    if len(given) == 1 and type(share := quota[given[0]]) in {int, float} and 0 <= share <= 1:
        quota[_SHARES[given[0]]] = round(1 - share, 9)


def _typed(text: str, *, of: Any) -> Any:
    if of is str:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text  # a word of an enumeration; the conversion reports any other text


def _put(tree: dict[str, Any], parts: tuple[str, ...], value: Any) -> bool:
    for part in parts[:-1]:
        below = tree.get(part)
        if below is None:
            below = tree[part] = {}
        if not isinstance(below, dict):
            return False
        tree = below
    tree[parts[-1]] = value
    return True


def _keys(section: Section, parts: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _keys(value, (*parts, name))
        else:
            yield ".".join((*parts, name)), value


def _type_at(kind: type[Any], parts: tuple[str, ...]) -> Any:
    hint: Any = kind
    for part in parts:
        hint = get_type_hints(hint)[part]
    return hint


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
