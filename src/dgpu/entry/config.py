"""Reads scheduler.yaml and agent.yaml. Whatever is wrong stops the start, and all of it is told at once:

    configs/scheduler.yaml:
      scheduler.schedule_intervall: unknown key; did you mean schedule_interval?
      server.http_address: expected a text, got 8080 (int)

Every key can be overridden by the environment: DGPU__SECTION__KEY, numbers and booleans as they are, lists as JSON.
"""

from __future__ import annotations

import difflib
import enum
import math
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from dgpu.entry.config_checks import check_agent, check_scheduler
from dgpu.entry.config_problem import Problem
from dgpu.entry.config_types import AgentConfig, SchedulerConfig, Section

PREFIX = "DGPU__"
_MOST_BYTES = 1024 * 1024
_SECRET = re.compile(r"token|password|secret|webhooks|notify", re.IGNORECASE)  # an address may hold a key
_CONVERT_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?P<where>.*)`)?", re.DOTALL)
_TYPE_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a mapping",
}
_TYPE_NAME = re.compile(rf"`({'|'.join(_TYPE_WORDS)})`")

_Config = TypeVar("_Config", bound=Section)


class ConfigError(Exception):
    """Its text names the file, every key's path and what was expected there."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        lines = (
            f"  {problem.path}: {problem.text}" if problem.path else f"  {problem.text}"
            for problem in problems
        )
        super().__init__("\n".join((f"{source}:", *lines)))
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
        raise ConfigError(source, [Problem("", f"expected a mapping of sections, got {_shown('', written)}")])
    problems: list[Problem] = []
    origins = _override(kind, written, environ, problems)
    config: _Config = _convert_section(kind, written, (), problems, origins)
    if not problems:
        problems.extend(check(config))
    if problems:
        raise ConfigError(source, problems)
    return config


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice: the first would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(path: Path, source: str) -> Any:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(source, [Problem("", f"cannot be read: {error.strerror}")]) from error
    if len(text) > _MOST_BYTES:
        raise ConfigError(source, [Problem("", f"is larger than {_MOST_BYTES} bytes")])
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
    """Puts the environment's values into the tree. Both services may share one environment, so a key of the other is passed over."""
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
            problems.append(Problem(name, f"unknown key {path}{_nearest(path, all_keys)}"))
    return origins


def _typed(text: str, *, of: Any) -> Any:
    if of is str:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text  # an enumeration's word; anything else is told when it is converted


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


def _convert_section(
    kind: type[Any], written: Any, parts: tuple[str, ...], problems: list[Problem], origins: Mapping[str, str]
) -> Any:
    path = ".".join(parts)
    if written is None:  # a section whose keys are all commented out
        return kind()
    if not isinstance(written, dict):
        problems.append(Problem(path, f"expected a mapping of keys, got {_shown(path, written)}"))
        return kind()
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for key, value in written.items():
        key_path = ".".join((*parts, str(key)))
        hint = hints.get(key)
        if hint is None:
            problems.append(Problem(key_path, f"unknown key{_nearest(str(key), hints)}"))
        elif _is_section(hint):
            values[key] = _convert_section(hint, value, (*parts, key), problems, origins)
        else:
            problem, values[key] = _convert_value(hint, value, key_path)
            if problem is not None:
                came_from = f" (from {origins[key_path]})" if key_path in origins else ""
                problems.append(Problem(problem.path, problem.text + came_from))
    return kind(**values) if not problems else kind()


def _convert_value(hint: Any, value: Any, path: str) -> tuple[Problem | None, Any]:
    if isinstance(value, float) and not math.isfinite(value):
        return Problem(path, f"expected a finite number, got {value}"), None
    try:
        return None, msgspec.convert(value, hint)
    except (msgspec.ValidationError, RecursionError) as error:
        match = _CONVERT_ERROR.fullmatch(str(error))
        what, where = (match["what"], match["where"]) if match else (str(error), None)
        at = path + (where or "").removeprefix("$")
        return Problem(at, f"{_expected(hint, what)}, got {_shown(path, value)}"), None


def _expected(hint: Any, what: str) -> str:
    words = [str(word) for word in (hint if isinstance(hint, enum.EnumType) else get_args(hint))]
    if isinstance(hint, enum.EnumType) or get_origin(hint) is Literal:
        return f"expected one of {', '.join(words)}"
    text = what.split(", got ", maxsplit=1)[0].rstrip(".")
    return _TYPE_NAME.sub(lambda match: _TYPE_WORDS[match[1]], f"{text[:1].lower()}{text[1:]}")


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


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return (
        f"; did you mean {close[0]}?"
        if close
        else f"; known are {', '.join(known)}"
        if len(known) <= 20
        else ""
    )


def _shown(path: str, value: Any) -> str:
    if _SECRET.search(path):
        return f"a value of type {type(value).__name__}"
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
