"""The section ha in a scheduler.yaml that people wrote."""

from __future__ import annotations

import os

import pytest

from dgpu.entry.config import load_scheduler_config
from dgpu.entry.ha.config_text import is_managed, remove_managed, with_managed, write_managed

MEMBERS = ("a:9379", "b:9379", "c:9379")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# mine\nserver: {grpc_tls: true}\n",
        "storage:\n  # where\n  snapshot_dir: /var/lib/x  # here\nquota: {mode: borrow}\n",
        "storage: {snapshot_dir: /var/lib/x}\n",
        "storage: {journal: etcd}\n",
    ],
)
def test_the_section_is_added_and_everything_else_stays(tmp_path, text: str) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    before = load_scheduler_config(path, {}) if "etcd" not in text else None
    assert write_managed(path, MEMBERS, "b:9379")
    config = load_scheduler_config(path, {})
    assert (config.ha.mode, config.ha.members, config.ha.member) == ("managed", MEMBERS, "b:9379")
    assert config.storage.journal == "etcd"
    if before is not None:
        assert (config.storage.snapshot_dir, config.quota) == (before.storage.snapshot_dir, before.quota)
    assert all(line.split("{")[0] in path.read_text() for line in text.splitlines())


@pytest.mark.parametrize(
    "text", ["ha: {mode: 'off'}\n", "storage: {journal: file}\n", "- a list\n", "a: [\n"]
)
def test_a_file_that_says_otherwise_is_left_to_its_owner(tmp_path, text: str) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    assert with_managed(text, MEMBERS, "a:9379") is None
    assert not write_managed(path, MEMBERS, "a:9379")
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "# mine\nserver: {grpc_tls: true}\n",
        "storage:\n  # where\n  snapshot_dir: /var/lib/x  # here\nquota: {mode: borrow}\n",
        "storage: {snapshot_dir: /var/lib/x}\n",
    ],
)
def test_leaving_removes_what_joining_added(tmp_path, text: str) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    before = load_scheduler_config(path, {})
    assert write_managed(path, MEMBERS, "b:9379")
    assert remove_managed(path)
    assert load_scheduler_config(path, {}) == before
    assert "etcd" not in path.read_text()
    assert all(line in path.read_text() for line in text.splitlines())


def test_a_section_in_another_form_is_left_to_its_owner(tmp_path) -> None:
    path = tmp_path / "scheduler.yaml"
    text = '{ha: {mode: managed, members: ["a:1", "b:1", "c:1"], member: "a:1"}, storage: {journal: etcd}}\n'
    path.write_text(text)
    assert not remove_managed(path)
    assert path.read_text() == text


def test_a_file_that_names_these_members_needs_no_change(tmp_path) -> None:
    """`dgpu ha init` may be repeated, and then asks for nothing."""
    path = tmp_path / "scheduler.yaml"
    path.write_text("")
    assert not is_managed(path, MEMBERS, "b:9379")
    write_managed(path, MEMBERS, "b:9379")
    assert is_managed(path, MEMBERS, "b:9379")
    assert not is_managed(path, MEMBERS, "a:9379")


def test_owner_mode_and_link_of_the_file_stay(tmp_path) -> None:
    """Root runs the command, and the service reads the file as another user."""
    file, link = tmp_path / "site.yaml", tmp_path / "scheduler.yaml"
    file.write_text("")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1234, 1235)
    link.symlink_to(file)
    before = file.stat()
    assert write_managed(link, MEMBERS, "b:9379")
    after = file.stat()
    assert link.is_symlink()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert load_scheduler_config(link, {}).ha.mode == "managed"
