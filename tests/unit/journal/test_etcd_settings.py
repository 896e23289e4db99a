"""Settings and versions of etcd that are refused, each with its value and the action to take."""

from __future__ import annotations

import pytest

from dgpu.journal.engine import EngineRefused
from dgpu.journal.etcd.keys import Keys, index_and_fence, part_name
from dgpu.journal.etcd.settings import EtcdSettings, parse_endpoints
from dgpu.journal.etcd.versions import check_version


def test_endpoints() -> None:
    settings = EtcdSettings(endpoints=("https://a:2379/", "https://[::1]:2379"))
    assert [(one.target, one.is_tls) for one in parse_endpoints(settings)] == [
        ("a:2379", True),
        ("[::1]:2379", True),
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"endpoints": ()}, "no endpoint"),
        ({"endpoints": ("a:2379",)}, "'a:2379': expected https://host:port"),
        ({"endpoints": ("https://a",)}, "expected https://host:port"),
        ({"endpoints": ("https://a:99999",)}, "expected https://host:port"),
        ({"endpoints": ("https://a:1/path",)}, "expected https://host:port"),
        ({"endpoints": ("https://a:1", "https://a:1")}, "a:1 is listed twice"),
        ({"endpoints": ("https://a:1", "http://b:1")}, "use https for all"),
        ({"endpoints": ("http://a:1",), "user": "u", "password": "p"}, "http://a:1 in plain text"),
        ({"endpoints": ("https://a:1",), "user": "u"}, "a user and a password"),
        ({"endpoints": ("https://a:1",), "cert_file": "c"}, "needs its key"),
    ],
)
def test_bad_settings_are_refused(fields, why) -> None:
    with pytest.raises(EngineRefused, match=why):
        parse_endpoints(EtcdSettings(**fields))


def test_a_password_may_be_sent_over_loopback() -> None:
    assert parse_endpoints(EtcdSettings(endpoints=("http://127.0.0.1:1",), user="u", password="p"))


@pytest.mark.parametrize("version", ["3.4.23", "3.4.99", "3.5.3", "3.6.0", "4.0.0", "3.5.17-rc.1"])
def test_versions_that_are_accepted(version) -> None:
    assert check_version(version, "url") is None


@pytest.mark.parametrize("version", ["3.3.99", "3.4.22", "3.5.0", "3.5.1", "3.5.2", "", "latest"])
def test_versions_that_are_refused(version) -> None:
    with pytest.raises(EngineRefused, match=r"^url (runs|has) etcd"):
        check_version(version, "url")


def test_names_of_keys() -> None:
    keys = Keys("p/")
    assert keys.group(7) == b"p/group/00000000000000000007"
    assert keys.index_of_group(keys.group(7)) == 7
    name = part_name(7, 12, b"\xab" * 32)
    key = keys.part(name, 3)
    assert key.startswith(keys.parts_of(7))
    assert keys.parts_of(0) < key < keys.after_parts
    assert keys.name_of_part(key) == name
    assert index_and_fence(name) == (7, 12)
