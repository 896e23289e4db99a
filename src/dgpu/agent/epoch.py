"""The cluster this agent has joined and the highest epoch it has seen, on disk. One file for all nodes of a host."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

EPOCH_NAME = "epoch"  # the file of earlier versions, with only the number
JOINED_NAME = "cluster.json"


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str = ""  # empty: none yet, or a scheduler of an earlier version
    epoch: int = 0  # the highest one seen
    nonce: str = ""  # of that epoch

    def refuses(self, welcome: Joined) -> str:
        """Why this scheduler is not obeyed; empty: it is."""
        if self.cluster_id and welcome.cluster_id != self.cluster_id:
            theirs = f"cluster {welcome.cluster_id}" if welcome.cluster_id else "a cluster without an id"
            return (
                f"this node belongs to cluster {self.cluster_id}, the scheduler to {theirs}. To move the node: stop "
                f"its agent, remove {JOINED_NAME} from the agent's state directory, start the agent; tasks of the old "
                f"cluster that still run here are then stopped"
            )
        if welcome.epoch < self.epoch:
            return f"epoch {welcome.epoch} is older than {self.epoch}"
        if welcome.epoch == self.epoch and self.nonce and welcome.nonce != self.nonce:
            return (
                f"epoch {self.epoch} was begun by two schedulers: the scheduler's state was restored or copied. "
                f"Start the right one with --accept-lost-tail"
            )
        return ""


class NotJoined(Exception):  # noqa: N818 - it says what happened
    """Another node of this host has joined another cluster or another sequence of epochs meanwhile."""


class JoinedFile:
    def __init__(self, directory: Path) -> None:
        self._path = directory / JOINED_NAME
        self._old_path = directory / EPOCH_NAME
        self.joined = self._read()

    def save(self, joined: Joined) -> None:
        """Returns when it is durable: from then on, a scheduler of another cluster or an older epoch is refused."""
        if joined == self.joined:
            return
        if why := self.joined.refuses(joined):
            raise NotJoined(why)
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(joined) + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.replace(self._path)
        self._old_path.unlink(missing_ok=True)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.joined = joined

    def _read(self) -> Joined:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Joined)
        except FileNotFoundError:
            pass
        except msgspec.DecodeError as error:
            raise ValueError(
                f"{self._path} cannot be read: {error}. Remove it if the node may join a cluster again."
            ) from None
        try:
            return Joined(epoch=int(self._old_path.read_text()))
        except FileNotFoundError:
            return Joined()
