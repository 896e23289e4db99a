"""The address of the scheduler in the environment of tasks."""

from __future__ import annotations

import pytest

from dgpu.agent.session_words import servers_of


@pytest.mark.parametrize(
    ("told", "dialed", "server"),
    [
        ("http://:8080", "gpu1:9090", "http://gpu1:8080"),
        ("https://:8443", "[fd00::1]:9090", "https://[fd00::1]:8443"),
        ("http://127.0.0.1:8123", "127.0.0.1:9090", "http://127.0.0.1:8123"),
        ("http://127.0.0.1:8123", "gpu1:9090", ""),
        ("https://gpu.example.org:8080", "10.0.0.1:9090", "https://gpu.example.org:8080"),
        ("https://gpu.example.org", "10.0.0.1:9090", "https://gpu.example.org"),
        ("", "gpu1:9090", ""),
    ],
)
def test_the_address_is_one_that_the_node_can_reach(told, dialed, server) -> None:
    assert servers_of([told], dialed) == server


def test_several_schedulers_are_named_once_each_the_leading_one_first() -> None:
    urls = ["http://:8080", "http://gpu2:8080", "http://127.0.0.1:8081", "http://gpu1:8080"]
    assert servers_of(urls, "gpu1:9090") == "http://gpu1:8080,http://gpu2:8080"
    assert servers_of([], "gpu1:9090") == ""
