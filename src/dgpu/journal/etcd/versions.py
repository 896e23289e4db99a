"""Versions of etcd that may keep a journal."""

from __future__ import annotations

import re

from dgpu.journal.engine import EngineRefused

OLDEST = (3, 4, 23)
_LOSING = ((3, 5, 0), (3, 5, 2))  # both included: they can lose data after a crash
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def check_version(version: str, url: str) -> None:
    found = _VERSION.match(version)
    if found is None:
        raise EngineRefused(
            f"{url} has etcd version {version!r}: expected 3.4.23 or later, and not 3.5.0 to 3.5.2"
        )
    number = (int(found[1]), int(found[2]), int(found[3]))
    if number < OLDEST:
        raise EngineRefused(f"{url} runs etcd {version}, which is too old: upgrade it to 3.4.23 or later")
    if _LOSING[0] <= number <= _LOSING[1]:
        raise EngineRefused(
            f"{url} runs etcd {version}: versions 3.5.0 to 3.5.2 can lose data; upgrade it to 3.5.3 or later"
        )
