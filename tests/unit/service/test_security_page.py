"""docs/security.md shows the table of rights that the code reads."""

from __future__ import annotations

import pathlib

from dgpu.service.access.table import RULES, Rule, Subject
from dgpu.wire.roles import Role

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "security.md"


def row(name: str, rule: Rule) -> str:
    def roles(allowed: frozenset[Role]) -> str:
        return "all" if allowed == frozenset(Role) else ", ".join(role for role in Role if role in allowed)

    other = roles(rule.other)
    if rule.subject is Subject.CLUSTER:
        other += " (covers all tenants)"
    return f"| `{name}` | {rule.about} | {roles(rule.own)} | {other} |"


def test_the_page_shows_the_table_of_rights() -> None:
    shown = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and "." in line[:20]]
    assert shown == [row(action.value, rule) for action, rule in RULES.items()]
