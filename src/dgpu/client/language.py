"""Texts of the scheduler in the user's language. The scheduler sends English with a code and facts; the templates of a
language (languages/*.json, also used by the dashboard) are filled with these facts. Without a template, the English
text stays.

A template is a text, a list of which the first that can be filled is used, or a choice by the value of a fact.
`{name}` is a fact, `{name:format}` a formatted one. `[...]` is left out if one of its facts is missing, empty or 0.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

Facts: TypeAlias = Mapping[str, Any]
Section: TypeAlias = Literal[
    "problem", "field", "blocker", "change", "alert", "ended", "advice", "short", "text"
]
Template: TypeAlias = str | list[str] | dict[str, Any]
LANGUAGES: Final = ("zh",)  # besides English

_PART: Final = re.compile(r"\[([^\]]*)\]|\{(\w+)(?::(\w+))?\}")
_HOLE: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_MAX_PARTS: Final = 3  # of an error, one in another
_EMPTY: Final[tuple[Any, ...]] = (None, "", 0, False, [])


@functools.cache
def language() -> str:
    """The language of this process, as other programs find it. Empty: English."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if found := os.environ.get(name, ""):
            return next((each for each in LANGUAGES if found.lower().startswith(each)), "")
    return ""


def told(section: Section, code: str, facts: Facts, english: str) -> str:
    """The text of a code in the user's language, or the English text."""
    if not (used := language()):
        return english
    if section == "ended" and facts.get("error"):
        facts = {**facts, "error": error_text(str(facts["error"]))}
    return fill(used, section, code, {"detail": english, **facts}) or english


def waiting(blockers: Iterable[Facts], english: str) -> str:
    """Why a task waits: in the user's language if every reason has a text there."""
    texts = [told("blocker", str(each["code"]), each, "") for each in blockers]
    return "; ".join(texts) if texts and all(texts) else english


def field_text(code: str, facts: Facts, english: str) -> str:
    """What is wrong with a field. The description of an expected value has its own translations."""
    if (used := language()) and isinstance(facts.get("expected"), str):
        facts = {**facts, "expected": expected(used, facts["expected"])}
    return told("field", code, facts, english)


def expected(used: str, english: str) -> str:
    """Descriptions have no codes: patterns of English texts stand for them. `{}` is a part that is taken over."""
    return _by_pattern(used, "expected", english)


def step_text(english: str) -> str:
    """A step of a service, in the user's language. It is kept as a text, so patterns stand for codes here, too."""
    return _by_pattern(used, "step", english) if (used := language()) else english


def error_text(english: str) -> str:
    """Why a task ended, in the user's language. The keeper on the node and the core write it in parts, so the parts of
    a text are looked up, too. Texts of programs stay as they are.
    """
    return _by_pattern(used, "error", english, within=_MAX_PARTS) if (used := language()) else english


def _by_pattern(used: str, section: str, english: str, within: int = 0) -> str:
    """`within`: how deep the parts of a text are translated, too."""
    for pattern, text in _patterns(used, section):
        if found := pattern.fullmatch(english):
            parts = found.groups()
            if within:
                parts = tuple(_by_pattern(used, section, part, within - 1) for part in parts)
            return text.format(*parts)
    return english


@functools.cache
def _patterns(used: str, section: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Those with the longest fixed text first: `at most {} bytes in all` before `at most {} bytes`."""
    table = _tables(used).get(section, {})
    known = sorted(table.items(), key=lambda item: -len(item[0].replace("{}", "")))
    return tuple(
        (re.compile("(.+?)".join(re.escape(part.format()) for part in _parts(english))), text)
        for english, text in known
    )


def _parts(pattern: str) -> list[str]:
    """Between its gaps. Doubled braces stand for braces, as in `str.format`."""
    return re.split(r"(?<!\{)\{\}(?!\})", pattern)


def in_units(seconds: float, units: Mapping[str, str]) -> str:
    """At most two units: 3 min 20 s."""
    if seconds < 1:
        return f"{round(seconds * 1_000)} {units['ms']}"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + f" {units['s']}"
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3_600
    if not minutes:
        return f"{whole} {units['s']}"
    if minutes < 60:
        return _two(minutes, units["min"], whole % 60 if minutes < 10 else 0, units["s"])
    if hours < 48:
        return _two(hours, units["h"], minutes % 60 if hours < 24 else 0, units["min"])
    return _two(hours // 24, units["d"], hours % 24, units["h"])


def fill(used: str, section: Section, code: str, facts: Facts) -> str | None:
    """None: there is no template, or a fact of it is missing."""
    table = _tables(used)
    template = table.get(section, {}).get(code)
    return None if template is None else _filled(template, facts, table)


@functools.cache
def _tables(used: str) -> dict[str, dict[str, Any]]:
    from importlib.resources import files

    read: dict[str, dict[str, Any]] = json.loads(
        (files("dgpu.client") / "languages" / f"{used}.json").read_text(encoding="utf-8")
    )
    return read


def _filled(template: Template, facts: Facts, table: Mapping[str, Any]) -> str | None:
    if isinstance(template, list):
        return next((text for each in template if (text := _filled(each, facts, table)) is not None), None)
    if isinstance(template, dict):
        value = facts.get(template["by"])
        case = template["cases"].get(str(value).lower() if isinstance(value, bool) else str(value))
        return None if case is None else _filled(case, facts, table)
    lacking = False

    def part(found: re.Match[str]) -> str:
        nonlocal lacking
        inner, name, form = found.groups()
        if inner is not None:
            names = [hole[0] for hole in _HOLE.findall(inner)]
            if any(facts.get(each) in _EMPTY for each in names):
                return ""
            return _HOLE.sub(lambda hole: _shown(facts[hole[1]], hole[2], table), inner)
        value = facts.get(name)
        lacking = lacking or value is None or value == ""
        return "" if lacking else _shown(value, form, table)

    text = _PART.sub(part, template)
    return None if lacking or not text else text


def _shown(value: Any, form: str | None, table: Mapping[str, Any]) -> str:
    if form is not None and (form == "word" or not isinstance(value, str)):
        return _FORMATS[form](value, table)
    if form == "time":
        return _time(value)
    if isinstance(value, list):
        return "、".join(_printable(str(each)) for each in value)
    return _number(value) if isinstance(value, int | float) else _printable(str(value))


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big} {big_unit} {small} {small_unit}" if small else f"{big} {big_unit}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}".rstrip("0").rstrip(".")


def _megabytes(value: float) -> str:
    if value < 1_024:
        return f"{value:.0f} MB"
    gigabytes = value / 1_024
    return f"{gigabytes:.1f} GB" if gigabytes < 100 else f"{gigabytes:.0f} GB"


def _word(value: Any, table: Mapping[str, Any]) -> str:
    """`tenant vision` is a word and a name."""
    words = table["word"]
    text = str(value)
    first, space, name = text.partition(" ")
    return str(words.get(text) or _printable(f"{words.get(first, first)}{space}{name}"))


def _time(value: str) -> str:
    try:
        return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return _printable(value)


def _printable(text: str) -> str:
    """Names and errors may come from anybody, and the text goes to a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


_FORMATS: Final[dict[str, Callable[[Any, Mapping[str, Any]], str]]] = {
    "duration": lambda value, table: in_units(value / 1_000, table["unit"]),
    "seconds": lambda value, table: in_units(value, table["unit"]),
    "mb": lambda value, _: _megabytes(value),
    "gpus": lambda value, _: _number(value / 1_000),
    "percent": lambda value, _: f"{value * 100:.0f} %",
    "milli_percent": lambda value, _: f"{value / 10:g} %",
    "time": lambda value, _: _time(datetime.fromtimestamp(value / 1_000, UTC).isoformat()),
    "word": _word,
}
