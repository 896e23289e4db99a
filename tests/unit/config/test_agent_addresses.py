"""The addresses of the schedulers in agent.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.entry.agent import agent_options
from unit.config.test_config import agent, refusal


@pytest.mark.parametrize(
    ("yaml_text", "addresses"),
    [
        ("scheduler: {master_address: 'a:1, b:2,a:1'}", ("a:1", "b:2")),
        ("scheduler: {master_address: 'a:1', standby_address: 'b:2'}", ("a:1", "b:2")),
        ("scheduler: {master_address: 'a:1', standby_address: 'b:2,a:1,c:3'}", ("a:1", "b:2", "c:3")),
    ],
)
def test_an_agent_takes_the_addresses_of_all_schedulers(
    tmp_path: Path, yaml_text: str, addresses: tuple[str, ...]
) -> None:
    assert agent_options(agent(tmp_path, yaml_text)).addresses == addresses


@pytest.mark.parametrize(
    ("yaml_text", "words"),
    [
        ("scheduler: {master_address: 'a:1,b'}", "scheduler.master_address: expected host:port, got 'b'"),
        ("scheduler: {standby_address: 'b:0'}", "scheduler.standby_address: expected"),
        ("scheduler: {master_address: ','}", "scheduler.master_address: expected host:port, got ','"),
    ],
)
def test_a_bad_address_of_several_is_named(tmp_path: Path, yaml_text: str, words: str) -> None:
    assert words in refusal(agent, tmp_path, yaml_text)
