"""Converts YAML to the types of `config_types`. It continues after an error, to report all errors at once."""

from __future__ import annotations

import difflib
import enum
import math
import re
import reprlib
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from dgpu.entry.config_problem import Problem

_SECRET = re.compile(r"token|password|secret|webhooks|notify", re.IGNORECASE)  # an address may hold a key
_CONVERT_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?P<where>.*)`)?", re.DOTALL)
_TYPE_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_QUOTES = '; YAML reads off, on, yes and no as true or false: write it with quotes, such as "off"'
_TYPE_NAMES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")


class Conversion:
    """Leaves out wrong values; their defaults, or nothing, replace them."""

    def __init__(self, origins: Mapping[str, str]) -> None:
        self._origins = origins  # key's path → variable of the environment
        self.problems: list[Problem] = []

    def struct(self, kind: type[Any], written: Any, path: str) -> Any:
        """None: a required field is missing or wrong."""
        needed = {field.name for field in msgspec.structs.fields(kind) if field.required}
        if written is None and not needed:  # all keys of the section are commented out
            return kind()
        if not isinstance(written, dict):
            self._refuse(path, f"expected a mapping of keys, got {shown(path, written)}")
            return None if needed else kind()
        hints = get_type_hints(kind, include_extras=True)
        values: dict[str, Any] = {}
        for key, value in written.items():
            key_path = f"{path}.{key}" if path else str(key)
            if key not in hints:
                self._refuse(key_path, f"unknown key{nearest(str(key), hints)}")
                continue
            before = len(self.problems)
            converted = self._value(hints[key], value, key_path)
            if converted is not None or len(self.problems) == before:
                values[key] = converted
        for name in sorted(needed - written.keys()):
            self._refuse(f"{path}.{name}", "is missing")
        return kind(**values) if needed <= values.keys() else None

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        if _is_struct(hint):
            return self.struct(hint, value, path)
        if isinstance(value, list) and (listed := _arm(hint, tuple)) is not None:
            element = get_args(listed)[0]
            places = enumerate(value)
            found = [self._value(element, each, f"{path}[{place}]") for place, each in places]
            kept = (_standing_in(element) if each is None else each for each in found)
            return tuple(each for each in kept if each is not None)
        if isinstance(value, dict) and (mapped := _arm(hint, dict)) is not None:
            return self._mapping(get_args(mapped)[1], value, path)
        return self._plain(hint, value, path)

    def _mapping(self, element: Any, value: dict[Any, Any], path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, each in value.items():
            if not isinstance(key, str):
                self._refuse(path, f"expected texts as keys, got {shown(path, key)}")
            elif element is object:
                found[key] = each
            elif (converted := self._value(element, each, f"{path}.{key}")) is not None:
                found[key] = converted
        return found

    def _plain(self, hint: Any, value: Any, path: str) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(path, f"expected a finite number, got {value}")
        try:
            return msgspec.convert(value, hint)
        except (msgspec.ValidationError, RecursionError) as error:
            match = _CONVERT_ERROR.fullmatch(str(error))
            what, where = (match["what"], match["where"]) if match else (str(error), None)
            at = path + (where or "").removeprefix("$")
            remedy = _QUOTES if isinstance(value, bool) and _takes_off(hint) else ""
            return self._refuse(at, f"{_expected(hint, what)}, got {shown(path, value)}{remedy}")

    def _refuse(self, path: str, text: str) -> None:
        came_from = next((name for key, name in self._origins.items() if _is_within(path, key)), None)
        self.problems.append(Problem(path, f"{text} (from {came_from})" if came_from else text))


def unaffected(found: list[Problem], broken: list[Problem]) -> list[Problem]:
    """The findings of later checks that do not concern replaced values."""
    around = {_surroundings(problem.path) for problem in broken}
    return [
        problem
        for problem in found
        if not any(
            _is_within(problem.path, place) or _is_within(place, problem.path) or f"{place}." in problem.text
            for place in around
        )
    ]


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _surroundings(path: str) -> str:
    """An error in a list concerns one entry; an error in a section concerns the whole section."""
    return path if path.endswith("]") else path.rpartition(".")[0] or path


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _arm(hint: Any, kind: type[Any]) -> Any:
    """The type itself, or the list (or mapping) among the types of a union."""
    arms = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return next((arm for arm in arms if get_origin(arm) is kind), None)


def _standing_in(element: Any) -> Any:
    """Keeps the positions of the other entries in a list, if possible."""
    if _is_struct(element):
        return None if any(field.required for field in msgspec.structs.fields(element)) else element()
    return {} if get_origin(element) is dict else None


def _expected(hint: Any, what: str) -> str:
    words = [str(word) for word in (hint if isinstance(hint, enum.EnumType) else get_args(hint))]
    if isinstance(hint, enum.EnumType) or get_origin(hint) is Literal:
        return f"expected one of {', '.join(words)}"
    text = what.split(", got ", maxsplit=1)[0].rstrip(".")
    return _TYPE_NAMES.sub(_in_words, f"{text[:1].lower()}{text[1:]}")


def _takes_off(hint: Any) -> bool:
    try:
        return bool(msgspec.convert("off", hint))
    except msgspec.ValidationError:
        return False


def _in_words(match: re.Match[str]) -> str:
    names = match[1].split(" | ")
    return " or ".join(_TYPE_WORDS[name] for name in names) if set(names) <= _TYPE_WORDS.keys() else match[0]


def nearest(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return (
        f"; did you mean {close[0]}?"
        if close
        else f"; known keys are {', '.join(known)}"
        if len(known) <= 20
        else ""
    )


def shown(path: str, value: Any) -> str:
    if _SECRET.search(path):
        return f"a value of type {type(value).__name__}"
    return f"{reprlib.repr(value)} ({type(value).__name__})"
