"""How long directories of ended tasks are kept: by age and by size, the oldest deleted first. Runs in a thread.

Age is counted on the clock since boot and stored with each sweep. A wall clock that jumps deletes nothing; the
time while the machine is off does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

from dgpu.agent.deletion import empty_trash, throw_away

MAX_MEASURED = 1_000_000  # entries of one directory
_OURS = re.compile(r"task-\d+\.\d+(\.r\d+)?(\.tmp)?(~\d+)?")
_TMP = re.compile(r"\.tmp(~\d+)?$")
_OF_OLDER_VERSIONS = re.compile(r"\d+(\.old)?")


class Limits(NamedTuple):
    max_age_ms: int  # 0: no limit
    max_bytes: int  # of all kept directories; 0: no limit


DEFAULT_LIMITS = Limits(max_age_ms=7 * 86_400_000, max_bytes=50 * 1024**3)


class Deleted(NamedTuple):
    name: str
    size_bytes: int
    reason: str  # age, size or temporary


class _Kept:
    __slots__ = ("age_ms", "size_bytes")

    def __init__(self, age_ms: int = 0, size_bytes: int = -1) -> None:
        self.age_ms = age_ms
        self.size_bytes = size_bytes  # -1: not measured yet


class Retention:
    def __init__(self, *, directory: Path, ledger: Path, limits: Limits, boot_id: str) -> None:
        self._directory = directory
        self._ledger = ledger
        self._limits = limits
        self._boot_id = boot_id
        self._swept_ms = 0
        self._kept: dict[str, _Kept] = {}
        self._stuck = 0  # entries of the trash that could not be deleted
        self._read()

    def names(self) -> list[str]:
        """All directories. Read the directories in use after this: a later one is not in the list."""
        try:
            return [entry.name for entry in self._directory.iterdir()]
        except FileNotFoundError:
            return []

    def sweep(
        self, names: list[str], in_use: frozenset[str], now_ms: int, *, older: bool = False
    ) -> list[Deleted]:
        """Deletes empty directories at once, others by the limits. `older`: directories of older versions too."""
        passed_ms = max(0, now_ms - self._swept_ms) if self._swept_ms else 0
        self._swept_ms = now_ms
        try:
            root_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            ended = [
                name for name in names if _TMP.sub("", name) not in in_use and _is_ours(name, older=older)
            ]
            self._age({name for name in ended if _is_left(root_fd, name)}, passed_ms)
            for name, kept in self._kept.items():
                if kept.size_bytes < 0:
                    kept.size_bytes = measure(f"{self._directory}/{name}")
            deleted = self._over_limits()
            for each in deleted:
                throw_away(root_fd, each.name)
                del self._kept[each.name]
            self._stuck = empty_trash(root_fd)
        finally:
            os.close(root_fd)
        self._write()
        return deleted

    @property
    def kept_bytes(self) -> int:
        return sum(kept.size_bytes for kept in self._kept.values())

    @property
    def stuck(self) -> int:
        return self._stuck

    def _age(self, ended: set[str], passed_ms: int) -> None:
        for name in [name for name in self._kept if name not in ended]:
            del self._kept[name]
        for kept in self._kept.values():
            kept.age_ms += passed_ms
        for name in ended - self._kept.keys():
            self._kept[name] = _Kept()

    def _over_limits(self) -> list[Deleted]:
        max_age_ms, max_bytes = self._limits
        total = self.kept_bytes
        deleted = []
        oldest_first = sorted(
            self._kept.items(), key=lambda item: (not _TMP.search(item[0]), -item[1].age_ms, item[0])
        )
        for name, kept in oldest_first:
            if _TMP.search(name):
                deleted.append(Deleted(name, kept.size_bytes, "temporary"))
            elif max_age_ms and kept.age_ms > max_age_ms:
                deleted.append(Deleted(name, kept.size_bytes, "age"))
            elif max_bytes and total > max_bytes:
                deleted.append(Deleted(name, kept.size_bytes, "size"))
            else:
                break
            total -= kept.size_bytes
        return deleted

    def _read(self) -> None:
        """With a lost or damaged ledger, directories count as new: they are kept longer, never shorter."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found: dict[str, Any] = json.loads(self._ledger.read_bytes())
            kept = {
                str(name): _Kept(int(age_ms), int(size)) for name, (age_ms, size) in found["kept"].items()
            }
            self._kept = kept
            if found["boot_id"] == self._boot_id:
                self._swept_ms = int(found["swept_ms"])

    def _write(self) -> None:
        kept = {name: [each.age_ms, each.size_bytes] for name, each in self._kept.items()}
        found = {"boot_id": self._boot_id, "swept_ms": self._swept_ms, "kept": kept}
        draft = self._ledger.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: written after a later sweep
            draft.write_text(json.dumps(found))
            draft.replace(self._ledger)


def measure(path: str) -> int:
    """Bytes on disk, without following links. If the tree changes meanwhile, only the count may be wrong.

    Not counted: entries beyond a million, directories that are unreadable or whose path is too long for the system.
    """
    total = 0
    left = MAX_MEASURED
    pending = [path]
    while pending:
        directory = pending.pop()
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return total
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return total


def _is_ours(name: str, *, older: bool) -> bool:
    return bool(_OURS.fullmatch(name) or (older and _OF_OLDER_VERSIONS.fullmatch(name)))


def _is_left(root_fd: int, name: str) -> bool:
    """Removes an empty directory; entries of other kinds do not belong to dgpu."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=root_fd, follow_symlinks=False).st_mode):
            return False
        os.rmdir(name, dir_fd=root_fd)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
