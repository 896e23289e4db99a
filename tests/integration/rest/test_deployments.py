"""The shipped files for Prometheus and Grafana use only metrics that /metrics really has."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from dgpu.journal.memory_engine import SharedState
from integration.service.members import DEADLINE_S, Member
from rest_world import RestWorld

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"
RULES = DEPLOYMENTS / "prometheus" / "alerts.yml"
BOARD = DEPLOYMENTS / "grafana" / "dgpu.json"
GIVEN_BY_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance"}
WORDS = {"and", "or", "unless", "by", "on", "without", "ignoring"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)"
)


def rule_expressions() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def board_expressions() -> list[str]:
    panels = json.loads(BOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def names_in(expression: str) -> set[str]:
    """The metrics of an expression: the names left without selectors, ranges, groupings, functions and numbers."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", expression)
    bare = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", " ", bare)
    found = re.findall(r"(?<![\w.])([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare)
    return set(found) - WORDS


def labels_in(expression: str) -> set[str]:
    grouped = re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression)
    selected = re.findall(r"\{([^}]*)\}", expression)
    labels = {name.strip() for part in grouped for name in part.split(",") if name.strip()}
    return labels | {name for part in selected for name in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", part)}


async def of_several(directory: Path) -> str:
    """The metrics that only schedulers with an engine have."""
    member = Member(directory, SharedState(), "a")
    try:
        await member.start()
        await member.until_role("master")
        async with asyncio.timeout(DEADLINE_S):
            # The engine's health is asked now and then; nothing tells of its first answer.
            while "engine_has_quorum" not in (text := await asyncio.to_thread(scraped, member)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return text
    finally:
        await member.end()


def scraped(member: Member) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{member.http}/metrics", timeout=DEADLINE_S) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    with RestWorld(tmp_path_factory.mktemp("world")) as world:
        world.add_node("n1", gpus=1)
        world.submit()
        text = world.ask("GET", "/metrics").raw.decode()
    text += asyncio.run(of_several(tmp_path_factory.mktemp("several")))
    names: set[str] = set(GIVEN_BY_PROMETHEUS)
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    labels = set(re.findall(r"[{,](\w+)=\"", text)) | LABELS_OF_PROMETHEUS
    return names, labels | {"reason", "code", "node", "member"}  # these have no sample in so small a world


@pytest.mark.parametrize("expression", rule_expressions() + board_expressions())
def test_an_expression_names_only_what_is_there(told: tuple[set[str], set[str]], expression: str) -> None:
    names, labels = told
    assert names_in(expression), expression
    assert names_in(expression) <= names
    assert labels_in(expression) <= labels


def test_a_wrong_name_would_be_found(told: tuple[set[str], set[str]]) -> None:
    wrong = 'histogram_quantile(0.9, sum by (le) (rate(scheduler_que_wait_seconds_bucket{job="x"}[5m])))'
    assert names_in(wrong) == {"scheduler_que_wait_seconds_bucket"}
    assert not names_in(wrong) <= told[0]


def test_every_rule_says_what_to_do() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}, rule["alert"]
            assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]


def test_the_board_has_panels_that_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels: list[dict[str, Any]] = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
)
def test_promtool_finds_nothing_wrong(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    folder = shutil.copytree(RULES.parent, tmp_path / "prometheus")
    (folder / "dgpu-token").write_text("a token\n")  # the configuration names it
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_own_check_takes_our_text(tmp_path: Path) -> None:
    """The tool also criticizes names; those fixed by the contract are exempt."""
    with RestWorld(tmp_path) as world:
        world.add_node("n1", gpus=2)
        world.submit()
        text = world.ask("GET", "/metrics").raw
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    said = done.stdout.decode() + done.stderr.decode()
    assert "error while linting" not in said
    fixed_names = 'non-counter metrics should not have "_total" suffix'
    other = [
        line
        for line in said.splitlines()
        if fixed_names not in line
        and "scheduler_schedule_failures counter metrics should have" not in line
        and "agent_count" not in line
    ]
    assert other == []
