"""The file that keeps alerts, silences and unsent messages across restarts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from dgpu.journal.durable import sync_folder, write_file
from dgpu.service.alerts.outbox import Delivery
from dgpu.service.alerts.values import KeptAlerts

FILE_NAME = "alerts.json"
_MAX_BYTES = 256 << 20

_log = structlog.get_logger("dgpu.alerts")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    alerts: KeptAlerts = KeptAlerts()
    unsent: tuple[Delivery, ...] = ()


class AlertStore:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def load(self) -> Kept:
        """An unreadable file is moved aside and logged: alerts then start empty."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return Kept()
        except OSError as error:
            _log.warning("alerts_not_read", file=str(self._path), error=error.strerror)
            return Kept()
        try:
            kept = _decoded(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._set_aside(str(error))
            return Kept()
        return kept

    def save(self, kept: Kept) -> None:
        write_file(self._path, msgspec.json.encode(kept))
        sync_folder(self._path.parent)

    def _set_aside(self, error: str) -> None:
        aside = self._path.with_name(FILE_NAME + ".damaged")  # at most one: a second replaces the first
        try:
            self._path.replace(aside)
        except OSError as failed:
            _log.error("alerts_damaged", file=str(self._path), error=error, kept_at=failed.strerror)
        else:
            _log.error("alerts_damaged", file=str(self._path), error=error, kept_at=str(aside))


def _decoded(content: bytes) -> Kept:
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    kept = msgspec.json.decode(content, type=Kept)
    if kept.version != 1:
        raise ValueError(f"it has version {kept.version}; this version reads 1")
    return kept
