"""Addresses of members: forms that people write, and lists that cannot work."""

from __future__ import annotations

import pytest

from dgpu.entry.ha.members import MemberAddress, listening_host, why_not_members


@pytest.mark.parametrize(
    ("written", "client", "peer"),
    [
        ("a.example", "https://a.example:9379", "https://a.example:9380"),
        ("a.example:7000", "https://a.example:7000", "https://a.example:7001"),
        ("10.0.0.1", "https://10.0.0.1:9379", "https://10.0.0.1:9380"),
        ("::1", "https://[::1]:9379", "https://[::1]:9380"),
        ("[::1]", "https://[::1]:9379", "https://[::1]:9380"),
        ("[::1]:7000", "https://[::1]:7000", "https://[::1]:7001"),
    ],
)
def test_a_member_has_two_ports(written: str, client: str, peer: str) -> None:
    address = MemberAddress.parse(written)
    assert (address.client_url, address.peer_url) == (client, peer)
    assert MemberAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("members", "why"),
    [
        (["a", "b", "a:9379"], "a:9379 is listed twice"),
        (["a", "b"], "expected three members, got two"),
        (["a"], "got 1"),
        (["a", "b", "c", "d"], "got 4"),
        (["a:7000", "a:7001", "b"], "at least 2 apart"),
        (["a:2379", "b", "c"], "port 2379 belongs to the etcd of the operating system"),
        (["a:2378", "b", "c"], "port 2379 belongs"),
        (["a", "b", ":9379"], "expected a host"),
        (["a", "b", "c:0"], "expected a port"),
        (["a", "b", "c:65535"], "expected a port"),
        (["a", "b", "https://c"], "expected host:port"),
    ],
)
def test_a_list_that_cannot_work_is_refused_by_name(members: list[str], why: str) -> None:
    assert why in why_not_members(members)


def test_three_members_may_share_a_machine() -> None:
    assert why_not_members(["127.0.0.1:7000", "127.0.0.1:7002", "127.0.0.1:7004"]) == ""


@pytest.mark.parametrize(
    ("host", "listens"),
    [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("10.1.2.3", "10.1.2.3")],
)
def test_a_member_listens_on_its_own_number(host: str, listens: str) -> None:
    assert listening_host(host) == listens
