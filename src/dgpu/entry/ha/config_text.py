"""Adds the section ha to scheduler.yaml. Comments and everything else stay as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from dgpu.entry.config import ConfigError, load_scheduler_config
from dgpu.journal.durable import sync_folder

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


def write_managed(path: Path, members: Sequence[str], me: str) -> bool:
    """False: the file was left as it is."""
    changed = with_managed(path.read_text(encoding="utf-8"), members, me)
    if changed is None:
        return False
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(changed, encoding="utf-8")
    fresh.chmod(path.stat().st_mode)
    try:
        load_scheduler_config(fresh)
    except ConfigError:
        fresh.unlink()
        return False
    fresh.replace(path)
    sync_folder(path.parent)
    return True
