"""Orders with an upload wait here until it is unpacked. The scribe then renames the directory into its place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dgpu.agent.accounts import Accounts, NoAccount
from dgpu.agent.as_user import files_as
from dgpu.agent.background import Busy, DaemonPool
from dgpu.agent.run.orders import not_started, withdrawn
from dgpu.agent.run.runner import RunnerWord, RunOrder, RunsEnded
from dgpu.agent.unpack import CannotUnpack, unpack
from dgpu.agent.upload_cache import UploadCache
from dgpu.agent.workdirs import make_private
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.wire.uploads import max_unpacked_bytes

STAGING = ".staging"
_PASSABLE = 0o711

Spawn = Callable[[NodeId, Sequence[RunOrder]], None]
Say = Callable[[NodeId, Sequence[RunnerWord]], None]


class UploadStaging:
    """All calls come from the loop."""

    def __init__(
        self, work_dir: Path, accounts: Accounts, cache: UploadCache, *, spawn: Spawn, say: Say
    ) -> None:
        self._folder = work_dir / STAGING
        self._accounts = accounts
        self._cache = cache
        self._spawn = spawn
        self._say = say
        self._threads = DaemonPool("unpack", threads=4, max_waiting=10_000)
        self._waiting: dict[LeaseId, tuple[NodeId, asyncio.Task[None]]] = {}
        self._staged: set[LeaseId] = set()
        self._given: set[LeaseId] = set()  # to the keeper, which may not have used it
        self._dropping: set[asyncio.Task[None]] = set()

    async def tidy(self) -> None:
        """With each keeper: directories of orders that were never started. They are given again."""
        with contextlib.suppress(Busy):
            await self._threads.run(lambda: _remove(self._folder))

    def pass_staged(self, node_id: NodeId, orders: Iterable[RunOrder]) -> list[RunOrder]:
        """The orders that can start now. The others are passed to `spawn` later, or reported as ended."""
        ready: list[RunOrder] = []
        for order in orders:
            if not order.upload or order.lease_id in self._staged:
                ready.append(order)
            elif order.lease_id not in self._waiting:
                task = asyncio.get_running_loop().create_task(self._stage(node_id, order))
                self._waiting[order.lease_id] = (node_id, task)
        return ready

    def take(self, order: RunOrder) -> str:
        """The path of its directory; empty: it has no upload."""
        if order.lease_id not in self._staged:
            return ""
        self._staged.discard(order.lease_id)
        self._given.add(order.lease_id)
        return str(self._path(order.lease_id))

    def withdraw(self, lease_ids: Iterable[LeaseId]) -> None:
        for lease_id in lease_ids:
            node_id, task = self._waiting.pop(lease_id, (None, None))
            if node_id is not None and task is not None:
                task.cancel()
                self._drop(lease_id)
                self._say(node_id, [RunsEnded(ended=(withdrawn(lease_id),))])

    def forget(self, lease_ids: Iterable[LeaseId]) -> None:
        for lease_id in lease_ids:
            if lease_id in self._given or lease_id in self._staged:
                self._given.discard(lease_id)
                self._staged.discard(lease_id)
                self._drop(lease_id)

    def clear(self) -> None:
        """The keeper is lost: all orders that wait here are given again."""
        for lease_id, (_, task) in self._waiting.items():
            task.cancel()
            self._drop(lease_id)
        self._waiting.clear()

    async def _stage(self, node_id: NodeId, order: RunOrder) -> None:
        failure: Exception | None = None
        try:
            async with self._cache.archive(node_id, order.lease_id, order.upload) as archive:
                await self._threads.run(lambda: self._unpack(order, archive))
        except (CannotUnpack, NoAccount) as error:
            failure = error
        except (OSError, Busy) as error:
            failure = CannotUnpack(f"the upload cannot be unpacked: {error}", is_of_node=True)
        del self._waiting[order.lease_id]
        if failure is None:
            self._staged.add(order.lease_id)
            self._spawn(node_id, [order])
        else:
            self._drop(order.lease_id)
            self._say(node_id, [RunsEnded(ended=(not_started(order.lease_id, failure),))])

    def _unpack(self, order: RunOrder, archive: Path) -> None:
        path = self._path(order.lease_id)
        account = None
        if order.user is not None:
            account = self._accounts.remembered(order.tenant, order.user).account
        _remove(path)
        self._folder.mkdir(mode=_PASSABLE, parents=True, exist_ok=True)
        self._folder.chmod(_PASSABLE)  # an umask may have taken bits
        make_private(str(path), account and (account.uid, account.gid))
        with archive.open("rb") as file:
            limit = max_unpacked_bytes(os.fstat(file.fileno()).st_size)
            if account is None:
                unpack(file, str(path), limit)
            else:
                with files_as(account.uid, account.gid, account.groups):
                    unpack(file, str(path), limit)

    def _drop(self, lease_id: LeaseId) -> None:
        async def drop() -> None:
            with contextlib.suppress(Busy):
                await self._threads.run(lambda: _remove(self._path(lease_id)))

        task = asyncio.get_running_loop().create_task(drop())
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def _path(self, lease_id: LeaseId) -> Path:
        return self._folder / f"{lease_id:d}"


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
