"""Texts in other languages: templates match the codes and facts that the scheduler sends."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pathlib
import re
import typing
from collections import defaultdict

import pytest

import dgpu
from dgpu.cli import reasons
from dgpu.client import language
from dgpu.core.foresight import blockers as b
from dgpu.core.refusals import Refusal, ReservedFor
from dgpu.service.alerts.rules import RULE_NAMES
from dgpu.service.rest import files as rest_files
from dgpu.service.views.task_usage import GPU_MEMORY
from dgpu.wire.problem import AnyRejection

SOURCES = pathlib.Path(dgpu.__file__).parent
CASES = json.loads((pathlib.Path(__file__).parent / "language_cases.json").read_text(encoding="utf-8"))
Codes = dict[str, set[str]]

# Facts for programs. The texts do not show them.
NOT_SHOWN = {
    "entry", "index", "begins_ms",
    "created_at", "asked_milli", "eligible_at", "retries", "max_retries", "at", "since", "renews_at",
    "other_quota", "other_used", "number", "online_ppm", "mode", "draining", "health", "limit_seconds", "waits_since",
    "used_gib", "last_seen_seconds", "error", "key", "reason", "tenant", "detail", "why", "path",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["code"])
def test_a_template_is_filled_as_in_the_dashboard(case) -> None:
    """web/tests/told.test.ts reads the same cases."""
    assert language.fill("zh", case["section"], case["code"], case["facts"]) == case["text"]


def test_facts_cannot_control_a_terminal() -> None:
    facts = {"left_ms": 1_000, "error": "\x1b]0;owned\x07\nno"}
    assert (
        language.fill("zh", "blocker", "back_off", facts) == "1 秒后重试\uff08上次\uff1a?]0;owned??no\uff09"
    )
    assert language.fill("zh", "problem", "unknown_task", {"task_id": "\x1b[2J"}) == "没有任务 ?[2J。"


def test_the_language_is_that_of_the_environment(monkeypatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for value, expected in (
        ("", ""),
        ("C.UTF-8", ""),
        ("en_US.UTF-8", ""),
        ("zh_CN.UTF-8", "zh"),
        ("zh_TW", "zh"),
    ):
        monkeypatch.setenv("LANG", value)
        language.language.cache_clear()
        assert language.language() == expected
    monkeypatch.setenv("LC_ALL", "C")
    language.language.cache_clear()
    assert language.told("blocker", "held", {}, "it is held") == "it is held"
    language.language.cache_clear()


@pytest.mark.parametrize("used", language.LANGUAGES)
@pytest.mark.parametrize("section", ["problem", "blocker", "change", "alert", "ended", "advice"])
def test_each_code_of_the_scheduler_has_a_template_and_each_template_a_code(used, section) -> None:
    templates = language._tables(used)[section]
    assert set(templates) == set(codes_of(section)), section


@pytest.mark.parametrize("used", language.LANGUAGES)
@pytest.mark.parametrize("section", ["problem", "blocker", "change", "alert", "advice"])
def test_templates_use_the_facts_that_the_scheduler_sends(used, section) -> None:
    templates, sent = language._tables(used)[section], codes_of(section)
    for code, template in templates.items():
        names = names_in(template)
        unknown = names - sent[code] - {"detail"}
        assert not unknown, f"{section} {code}: the scheduler sends no {unknown}"
        forgotten = sent[code] - names - NOT_SHOWN - ({"node"} if section == "problem" else set())
        assert not forgotten, f"{section} {code}: the text does not show {forgotten}"


@pytest.mark.parametrize("used", language.LANGUAGES)
def test_short_reasons_have_templates_for_the_codes_of_the_english_ones(used) -> None:
    """Their facts are those of the long texts, and the ones that `reasons` derives."""
    templates, sent = language._tables(used)["short"], codes_of("blocker")
    assert set(templates) == set(reasons._SHORT)
    for code, template in templates.items():
        unknown = names_in(template) - sent[code] - {"first", "others", "total"}
        assert not unknown, f"{code}: no fact {unknown}"


def names_in(template) -> set[str]:
    if isinstance(template, list):
        return set().union(*map(names_in, template))
    if isinstance(template, dict):
        return {template["by"]}.union(*map(names_in, template["cases"].values()))
    return {name for name, _ in re.findall(r"\{(\w+)(:\w+)?\}", template)}


@functools.cache
def codes_of(section: str) -> Codes:
    finders = {"problem": problems, "blocker": blockers, "change": changes, "alert": alerts, "ended": ends}
    finders["advice"] = advice
    return finders[section]()


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def calls(*names: str, under: str = "") -> typing.Iterator[tuple[pathlib.Path, str, ast.Call]]:
    """Calls of these functions, with the file and the function around the call."""
    for path in sorted((SOURCES / under).rglob("*.py")):
        if any(f"{name}(" in path.read_text(encoding="utf-8") for name in names):
            yield from ((path, around, call) for around, call in _calls_in(tree_of(path), names, ""))


def _calls_in(node: ast.AST, names: tuple[str, ...], around: str) -> typing.Iterator[tuple[str, ast.Call]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Call) and getattr(each.func, "id", "") in names:
            yield around, each
        inner = each.name if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) else around
        yield from _calls_in(each, names, inner)


def literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def keys_of(path: pathlib.Path, around: str, node: ast.expr | None) -> set[str]:
    """The keys of a dictionary that is written out, there or in the function above."""
    if isinstance(node, ast.Dict):
        return {key for each in node.keys if (key := literal(each)) is not None}
    if not isinstance(node, ast.Name):
        return set()
    keys: set[str] = set()
    for function in ast.walk(tree_of(path)):
        if getattr(function, "name", "") != around:
            continue
        for each in ast.walk(function):
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            value = getattr(each, "value", None)
            for target in targets if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign) else ():
                if isinstance(target, ast.Name) and target.id == node.id:
                    keys |= keys_of(path, around, value)
                elif isinstance(target, ast.Subscript) and getattr(target.value, "id", "") == node.id:
                    keys |= {literal(target.slice) or ""}
    return keys


# Advice about tasks


def advice() -> Codes:
    found: Codes = defaultdict(set)
    for path, around, call in calls("Advice", under="service/views"):
        code = literal(keyword(call, "code")) or GPU_MEMORY
        found[code] |= keys_of(path, around, keyword(call, "facts"))
    found[GPU_MEMORY].add("earlier_seconds")  # `told_earlier`
    return found


# Blockers and changes

_CODES_OF_NAMES = {
    ("_node_blockers", "code"): tuple(b._AWAY),
    ("_impossible", "code"): tuple(code for code, _ in b._IMPOSSIBLE.values()),
    ("_out_of_touch", "code"): ("node_unreachable", "node_unconfirmed"),
    ("room_blockers", "refusal.code"): (ReservedFor.code,),
}


def blockers() -> Codes:
    found: Codes = defaultdict(set)
    for path, around, call in calls("blocker", under="core/foresight"):
        _add_blocker(found, path, around, call)
    for path, around, call in calls("blocker", under="service/rest"):
        _add_blocker(found, path, around, call)
    for code, facts in _barriers().items():
        found[code] |= facts
    found["tasks_ahead"].add("own")  # service.access.anonymous
    return found


def _add_blocker(found: Codes, path: pathlib.Path, around: str, call: ast.Call) -> None:
    code = literal(call.args[0])
    codes = (code,) if code else _CODES_OF_NAMES[around, ast.unparse(call.args[0])]
    facts = {each.arg for each in call.keywords if each.arg}
    if any(each.arg is None for each in call.keywords):
        assert around == "_health_blockers", f"{path.name}: {around} hides its facts from this test"
        facts |= set(b._HEALTH)
    for each in codes:
        found[each] |= facts


def _barriers() -> Codes:
    """Refusals of rules.admission: `blocker_of` has a case for each class, with its numbers."""
    path = SOURCES / "core/foresight/barriers.py"
    tree = tree_of(path)
    codes = {kind.__name__: kind.code for kind in Refusal.__subclasses__()}
    found: Codes = defaultdict(set)
    for case in (node for node in ast.walk(tree) if isinstance(node, ast.match_case)):
        name = getattr(getattr(case.pattern, "cls", None), "id", "")
        if name in codes and name != "PoolQuota":
            wrapped = ast.Module(body=case.body, type_ignores=[])
            found[codes[name]] = _keys_of_numbers(wrapped)
            if "_reserved(" in ast.unparse(wrapped):
                found[codes[name]].add("reserved")
    pool = next(node for node in ast.walk(tree) if getattr(node, "name", "") == "_pool")
    found["pool_quota"] = _keys_of_numbers(pool) | {"reserved"}
    return found


def _keys_of_numbers(tree: ast.AST) -> set[str]:
    dicts = {literal(key) or "" for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys}
    slices = {literal(node.slice) or "" for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    return (dicts | slices) - {""}


def changes() -> Codes:
    found: Codes = defaultdict(set)
    for path, around, call in calls("Change", under="core/foresight"):
        if (code := literal(keyword(call, "change"))) is not None:
            found[code] |= keys_of(path, around, keyword(call, "facts"))
    for _, _, call in calls("_Number", under="core/foresight"):
        code = literal(call.args[0]) or ""
        found[code] |= {code, "instead_of"}
    for _, _, call in calls("_asking", under="core/foresight"):
        if (code := literal(call.args[0])) is not None:
            found[code] |= {code, "instead_of"}
    return found


# Problems


def problems() -> Codes:
    found: Codes = defaultdict(set)
    for kind in typing.get_args(AnyRejection):
        found[kind.code] |= set(kind.__struct_fields__)
    for path, around, call in calls("Problem", "NotMasterProblem", "BadRequest", under="service"):
        _add_problem(found, path, around, call)
    for path, around, call in calls("BadRequest", under="wire"):
        _add_problem(found, path, around, call)
    # Functions that take the code, with the place of the code among their arguments.
    places = {("files", "_refused"): 1, ("claims", "_refused"): 0, ("past", "_unavailable"): 0}
    for path, _, call in calls("problem", "_unavailable", "_refused", under="service"):
        at = 1 if call.func.id == "problem" else places.get((path.stem, call.func.id))
        if at is not None and (code := literal(call.args[at])) is not None:
            found[code] |= {"why"} if path.stem == "claims" else set()
    for _, _, call in calls("last_answer", under="service"):
        found[literal(call.args[1]) or ""]
    for code in rest_files._STATUS:
        found[rest_files._CODES.get(code, code)] |= {"why", "node"}
    found["session_ended"], found["token_expired"], found["token_revoked"]
    found["not_supported_yet"], found["invalid_field"]
    found["wrong_token"].add("why")
    found["not_permitted"] |= {"scopes", "tenants", "allowed"}
    return found


def _add_problem(found: Codes, path: pathlib.Path, around: str, call: ast.Call) -> None:
    code = literal(keyword(call, "code")) or (literal(call.args[0]) if call.args else None)
    if code is not None and "machines" not in path.parts:
        found[code] |= keys_of(path, around, keyword(call, "facts"))


# Alerts and ends


def alerts() -> Codes:
    """The keys of all dictionaries in the finder of a rule."""
    found: Codes = {name: set() for name in RULE_NAMES}
    finders: dict[str, str] = {}
    for name in ("rules", "shared_rules", "worker_rules"):
        path = SOURCES / f"service/alerts/{name}.py"
        tree = tree_of(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "_FINDERS":
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    finders[literal(key) or ""] = ast.unparse(value)
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for rule, finder in finders.items():
                if re.search(rf"\b{function.name}\b", finder) and function.name not in {"_told", "_told_to"}:
                    found[rule] |= _keys_of_numbers(function)
    return found


def ends() -> Codes:
    """Reasons why a task ended, from the module that writes them."""
    source = "".join(path.read_text(encoding="utf-8") for path in (SOURCES / "core/decide").glob("*.py"))
    written = set(re.findall(r'reason="([a-z_]+)"', source))
    outcomes = {"exit_code", "signal", "timeout", "stopped", "cannot_start", "node_fault", "out_of_memory"}
    of_calls = {"raised", "cannot_encode", "worker_lost", "no_worker", "gave_way", "idle", "not_needed"}
    return {code: set() for code in written | outcomes | of_calls | {"infrastructure"}}


# Descriptions of expected values


def phrases() -> set[str]:
    """The texts of `Unacceptable(...)` that are written out there or in a constant. `{}`: a value."""
    found: set[str] = set()
    for path, _, call in calls("Unacceptable"):
        name = ".".join(("dgpu", *path.relative_to(SOURCES).with_suffix("").parts))
        text = phrase_of(call.args[0], importlib.import_module(name))
        found |= {text} if text else set()
    return found


def phrase_of(node: ast.expr, module: object) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            each.value.replace("{", "{{").replace("}", "}}")
            if isinstance(each, ast.Constant)
            else braced(getattr(module, ast.unparse(each.value), None))
            for each in node.values
        )
    value = node.value if isinstance(node, ast.Constant) else getattr(module, ast.unparse(node), None)
    return braced(value) if isinstance(value, str) else ""


def braced(value: object) -> str:
    return value.replace("{", "{{").replace("}", "}}") if isinstance(value, str) else "{}"


@pytest.mark.parametrize("used", language.LANGUAGES)
def test_descriptions_of_expected_values_are_translated(used) -> None:
    assert len(phrases()) > 90
    for phrase in sorted(phrases()):
        english = phrase.replace("{}", "7").format()
        assert language.expected(used, english) != english, f"no translation of {phrase!r}"


def test_parts_of_a_description_are_taken_over() -> None:
    assert language.expected("zh", "at most 8 bytes in all") == "总共最多 8 字节"
    assert language.expected("zh", "a whole number from -2 to 5") == "-2 到 5 的整数"
    assert language.expected("zh", 'values like {"lr": [0.1, 0.01], "seed": "0-4"}').startswith('{"lr"')
    assert language.expected("zh", "something new") == "something new"
