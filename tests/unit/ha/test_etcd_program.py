"""Versions of etcd that are refused, with a program that only prints its version."""

from __future__ import annotations

import pathlib

import pytest

from dgpu.entry.ha.errors import MemberRefused
from dgpu.entry.ha.etcd_program import find_etcd, parse_version


@pytest.fixture
def etcd_that_prints(tmp_path, monkeypatch):
    def make(text: str) -> pathlib.Path:
        program = tmp_path / "etcd"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return program

    return make


@pytest.mark.parametrize("version", ["3.4.22", "3.3.27", "2.3.8", "3.5.0", "3.5.1", "3.5.2"])
def test_a_version_that_loses_data_is_refused_by_name(etcd_that_prints, version: str) -> None:
    etcd_that_prints(f"etcd Version: {version}\nGit SHA: 1234567")
    with pytest.raises(MemberRefused, match=f"runs etcd {version}.* upgrade it .*apt install etcd-server"):
        find_etcd()


@pytest.mark.parametrize("version", ["3.4.23", "3.4.30", "3.5.3", "3.5.16", "3.6.1", "4.0.0"])
def test_later_versions_are_accepted(etcd_that_prints, version: str) -> None:
    program = etcd_that_prints(f"etcd Version: {version}\nGit SHA: 1234567")
    found = find_etcd()
    assert found.path == str(program)
    assert ".".join(map(str, found.version)) == version


def test_a_missing_etcd_names_the_package(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MemberRefused, match=r"no etcd in PATH.*etcd-server"):
        find_etcd()


def test_another_program_of_that_name_is_refused(etcd_that_prints) -> None:
    etcd_that_prints("hello")
    with pytest.raises(MemberRefused, match="names no version of etcd"):
        find_etcd()


def test_a_version_is_read_whatever_follows_it() -> None:
    assert parse_version("etcd Version: 3.5.9-rc.1\nGo Version: go1.19") == (3, 5, 9)
    assert parse_version("Version 3.5.9") is None
