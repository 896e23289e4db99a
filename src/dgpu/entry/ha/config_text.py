"""Adds the section ha to scheduler.yaml, or removes it. Comments and everything else stay as they are."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

import yaml

from dgpu.entry.config import ConfigError, load_scheduler_config
from dgpu.journal.durable import sync_folder

_HA = re.compile(r"^ha:[^\n]*\n(?:[ \t]+[^\n]*\n|[ \t]*\n)*", re.MULTILINE)
_JOURNAL = re.compile(r"^[ \t]+journal:[ \t]*etcd[ \t]*\n|\bjournal:[ \t]*etcd(?:,[ \t]*)?", re.MULTILINE)
_STORAGE = re.compile(r"^storage:[ \t]*(\{)?", re.MULTILINE)


def managed_lines(members: Sequence[str], me: str) -> str:
    listed = ", ".join(f'"{each}"' for each in members)
    return f'ha:\n  mode: managed\n  members: [{listed}]\n  member: "{me}"\n'


def with_managed(text: str, members: Sequence[str], me: str) -> str | None:
    """None: the file has a section ha, or its storage is not where it is expected. A person must edit it."""
    try:
        written = yaml.safe_load(text) or {}
    except yaml.YAMLError:
        return None
    if not isinstance(written, dict) or "ha" in written:
        return None
    storage = written.get("storage") or {}
    if storage.get("journal") != "etcd":
        if "journal" in storage:
            return None
        found = _STORAGE.search(text)
        if found is None:
            text = f"{text.rstrip()}\n\nstorage:\n  journal: etcd\n"
        else:
            text = (
                text[: found.end()]
                + ("journal: etcd, " if found[1] else "\n  journal: etcd")
                + text[found.end() :]
            )
    return f"{text.rstrip()}\n\n{managed_lines(members, me)}"


def without_managed(text: str) -> str | None:
    """The opposite. None: a person must edit the file."""
    try:
        before = yaml.safe_load(text) or {}
        changed = _JOURNAL.sub("", _HA.sub("", text))
        after = yaml.safe_load(changed) or {}
    except yaml.YAMLError:
        return None
    if not isinstance(before, dict) or not isinstance(before.get("storage") or {}, dict):
        return None
    wanted = {name: section for name, section in before.items() if name != "ha"}
    storage = {name: value for name, value in (before.get("storage") or {}).items() if name != "journal"}
    if "storage" in wanted:
        wanted["storage"] = storage or None
    if "storage" in after:
        after["storage"] = after["storage"] or None
    return f"{changed.rstrip()}\n" if after == wanted else None


def is_managed(path: Path, members: Sequence[str], me: str) -> bool:
    """The file names these members already."""
    try:
        config = load_scheduler_config(path)
    except ConfigError:
        return False
    ha = config.ha
    return ha.mode == "managed" and (tuple(ha.members), ha.member) == (tuple(members), me)


def write_managed(path: Path, members: Sequence[str], me: str) -> bool:
    """False: the file was left as it is."""
    return _replace(path, with_managed(path.read_text(encoding="utf-8"), members, me))


def remove_managed(path: Path) -> bool:
    """False: the file was left as it is."""
    return _replace(path, without_managed(path.read_text(encoding="utf-8")))


def _replace(path: Path, changed: str | None) -> bool:
    if changed is None:
        return False
    path = path.resolve()  # a link stays one
    before = path.stat()
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(changed, encoding="utf-8")
    with contextlib.suppress(PermissionError):  # only root can give a file away
        os.chown(fresh, before.st_uid, before.st_gid)
    fresh.chmod(stat.S_IMODE(before.st_mode))
    try:
        load_scheduler_config(fresh)
    except ConfigError:
        fresh.unlink()
        return False
    fresh.replace(path)
    sync_folder(path.parent)
    return True
