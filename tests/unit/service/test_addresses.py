"""One reading of addresses, for the configuration, the services and the peers that gRPC names."""

from __future__ import annotations

import pytest

from dgpu.service.grpc.peers import end_of
from dgpu.wire.address import is_loopback, parse_address
from unit.service.cluster import Bench, heartbeat, register, told


@pytest.mark.parametrize("text", ["127.0.0.1:80", ":0", "[::1]:65535", "gpu.example.org:9090"])
def test_an_address_is_written_as_it_was_read(text) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "80", "::1:80", "a:65536", "a:-1", "a:\u0661", "a b:80", "u@a:80", "http://a:80"]
)
def test_a_text_that_is_no_address_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"^expected "):
        parse_address(text)


@pytest.mark.parametrize(
    ("peer", "end"),
    [
        ("ipv4:127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("ipv6:[::1]:4711", ("::1", 4711)),
        ("unix:/run/x.sock", None),
        ("", None),
    ],
)
def test_a_peer_that_is_no_address_is_nobody(peer, end) -> None:
    assert end_of(peer) == end


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("127.example.org", False),  # a name that begins like a number
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_loopback_is_told_by_the_address_and_not_by_its_first_letters(host, expected) -> None:
    assert is_loopback(host) is expected


def test_nodes_get_the_addresses_of_all_schedulers_at_present() -> None:
    others = []
    bench = Bench(rest_url="http://a:8080", other_rest_urls=lambda: others)
    [welcome] = [m.welcome for m in told(bench.say(1, register())) if m.HasField("welcome")]
    assert (welcome.rest_url, list(welcome.other_rest_urls)) == ("http://a:8080", [])
    others.append("http://b:8080")
    [answer] = told(bench.say(1, heartbeat()))
    assert list(answer.heartbeat_ack.other_rest_urls) == ["http://b:8080"]
