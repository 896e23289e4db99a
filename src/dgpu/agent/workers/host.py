"""Executes the outputs of one node's machine for workers: connections, files, content. asyncio, no decisions."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from pathlib import Path

import structlog

from dgpu.agent.run.runner import Runner
from dgpu.agent.unpack import CannotUnpack
from dgpu.agent.upload_cache import UploadCache
from dgpu.agent.workers import files
from dgpu.agent.workers.content import ContentRefused, put_content
from dgpu.agent.workers.link import WorkerLink
from dgpu.agent.workers.output import CallOutputs
from dgpu.agent.workers.words import (
    ArgumentsStored,
    CloseCallOutput,
    ConnectWorker,
    DeleteArguments,
    DeleteCallOutput,
    EndWorker,
    FetchArguments,
    HangUpWorker,
    PutResult,
    ResultStored,
    TellWorker,
    WorkerInput,
    WorkerOutput,
    WorkerUnread,
    WriteCallOutput,
)
from dgpu.core.model.ids import LeaseId, NodeId

_AGAIN_SECONDS = 1.0


class WorkerHost:
    """For one node. `feed` takes the inputs of the machine."""

    def __init__(
        self,
        node_id: NodeId,
        *,
        output_dir: Path,
        output_cap_bytes: int,
        uploads: UploadCache,
        feed: Callable[[WorkerInput], None],
    ) -> None:
        self._node_id = node_id
        self._uploads = uploads
        self._feed = feed
        self._runner: Runner | None = None
        self._links: dict[LeaseId, WorkerLink] = {}
        self._outputs = CallOutputs(output_dir, output_cap_bytes, on_closed=feed, on_free=self._resume)
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("dgpu.agent").bind(node=node_id)

    def attach(self, runner: Runner) -> None:
        self._runner = runner

    def carry_out(self, output: WorkerOutput) -> None:
        match output:
            case TellWorker():
                if (link := self._links.get(output.lease_id)) is not None:
                    link.tell(output.frames)
            case WriteCallOutput():
                if not self._outputs.put(output):
                    self._pause(output.worker_lease_id)
            case CloseCallOutput() | DeleteCallOutput():
                self._outputs.put(output)
            case FetchArguments():
                self._spawn(self._fetch(output))
            case DeleteArguments():
                self._spawn(self._delete(output))
            case PutResult():
                self._spawn(self._put(output))
            case ConnectWorker():
                self._connect(output.lease_id)
            case HangUpWorker():
                if (link := self._links.pop(output.lease_id, None)) is not None:
                    link.close()
            case EndWorker():
                pass  # of the lifecycle

    async def close(self) -> None:
        for link in self._links.values():
            link.close()
        for task in list(self._tasks):
            task.cancel()
        await self._outputs.close()

    def _connect(self, lease_id: LeaseId) -> None:
        address = self._address(lease_id)
        if address is not None and lease_id not in self._links:
            path, uid = address
            self._links[lease_id] = WorkerLink(lease_id, path, uid, self._feed)

    def _address(self, lease_id: LeaseId) -> tuple[str, int] | None:
        return self._runner.worker_address(lease_id) if self._runner is not None else None

    def _pause(self, lease_id: LeaseId) -> None:
        link = self._links.get(lease_id)
        if link is not None and link.pause():
            self._tell_unread(lease_id, is_unread=True)

    def _resume(self) -> None:
        for lease_id, link in self._links.items():
            if link.resume():
                self._tell_unread(lease_id, is_unread=False)

    def _tell_unread(self, lease_id: LeaseId, *, is_unread: bool) -> None:
        """Later: the machine may be in the middle of an input."""
        told = WorkerUnread(lease_id=lease_id, is_unread=is_unread)
        asyncio.get_running_loop().call_soon(self._feed, told)

    # -- content

    async def _fetch(self, asked: FetchArguments) -> None:
        name = files.arguments_name(asked.lease_id)
        address = self._address(asked.worker_lease_id)
        if address is None:
            return  # the worker has ended, and the call with it
        path, uid = address
        try:
            async with self._uploads.archive(self._node_id, asked.lease_id, asked.sha256) as source:
                await asyncio.to_thread(files.store_arguments, source, str(Path(path).parent), name, uid)
        except CannotUnpack as error:
            self._feed(_stored(asked, error=str(error), is_of_node=error.is_of_node))
        except OSError as error:
            why = (
                "there is no room on the node"
                if files.is_full(error)
                else f"cannot be stored: {error.strerror}"
            )
            self._feed(_stored(asked, error=why, is_of_node=True))
        else:
            self._feed(_stored(asked, name=name))

    async def _delete(self, unread: DeleteArguments) -> None:
        if (address := self._address(unread.worker_lease_id)) is not None:
            await asyncio.to_thread(files.delete, str(Path(address[0]).parent), unread.name)

    async def _put(self, asked: PutResult) -> None:
        error, is_lost = "", False
        address = self._address(asked.worker_lease_id)
        if address is None:
            self._feed(ResultStored(lease_id=asked.lease_id, error="its worker has ended", is_lost=True))
            return
        path, uid = address
        directory = str(Path(path).parent)
        try:
            with contextlib.ExitStack() as stack:
                descriptor = await asyncio.to_thread(
                    files.open_result, directory, asked.name, uid, asked.size
                )
                stack.callback(os.close, descriptor)
                await asyncio.to_thread(files.check_digest, descriptor, asked.sha256)
                while not await put_content(self._uploads, self._node_id, asked, descriptor):  # noqa: ASYNC110 - a server
                    await asyncio.sleep(_AGAIN_SECONDS)
        except (files.FileRefused, ContentRefused) as refusal:
            error, is_lost = str(refusal), isinstance(refusal, files.WorkerGone)
        await asyncio.to_thread(files.delete, directory, asked.name)
        self._feed(ResultStored(lease_id=asked.lease_id, error=error, is_lost=is_lost))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stored(
    asked: FetchArguments, *, name: str = "", error: str = "", is_of_node: bool = False
) -> ArgumentsStored:
    return ArgumentsStored(
        lease_id=asked.lease_id,
        worker_lease_id=asked.worker_lease_id,
        name=name,
        error=error,
        is_of_node=is_of_node,
    )
