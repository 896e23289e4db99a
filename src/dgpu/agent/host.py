"""An agent: one process, one keeper, one node of a real machine or many simulated ones."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from dgpu.agent import machine
from dgpu.agent.accounts import Accounts
from dgpu.agent.channel import OpenChannel, open_plain
from dgpu.agent.containers.watch import EngineWatch
from dgpu.agent.disk_watch import DiskWatch
from dgpu.agent.epoch import JoinedFile
from dgpu.agent.file_stream import FilesDesk
from dgpu.agent.housework import keep_house
from dgpu.agent.keeper_settings import KeeperSettings, boot_ms
from dgpu.agent.node_host import NodeHost
from dgpu.agent.options import AgentOptions
from dgpu.agent.output_host import OutputDesk
from dgpu.agent.output_shelf import OutputShelf
from dgpu.agent.run.null import NullRunner
from dgpu.agent.run.process import ProcessRunner
from dgpu.agent.run.runner import Runner, RunnerWord
from dgpu.agent.upload_cache import UploadCache
from dgpu.core.model.ids import NodeId
from dgpu.file_limit import given_soft_limit
from dgpu.wire.address import parse_address

_log = structlog.get_logger("dgpu.agent")


class AgentRunningError(Exception):
    """Another agent uses the same directory."""


async def serve_agent(options: AgentOptions, *, stop: asyncio.Event | None = None) -> None:
    """Runs until `stop` is set; without one, until SIGTERM or SIGINT. Tasks continue unless `stop_tasks` is set.

    Raises AgentRunningError, CertificateUnusable, KeeperError or OSError if it cannot start.
    """
    if stop is None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(options.state_dir / "agent.lock"):
        async with _channels(options) as open_channel:
            await _serve(options, open_channel, stop)


async def _serve(options: AgentOptions, open_channel: OpenChannel, stop: asyncio.Event) -> None:
    output_dir = options.state_dir / "output"
    joined = JoinedFile(options.state_dir)
    boot_id = machine.boot_id()
    desk = _output_desk(options, output_dir)
    accounts = Accounts(options.state_dir, options.tasks_dir, options.isolation)
    files = _files_desk(options, accounts)
    work_dir = str(options.work_dir or options.state_dir)
    engine = EngineWatch(options.containers)
    await engine.look()
    disk = DiskWatch((str(options.state_dir), work_dir), str(options.state_dir), engine.unfit)
    nodes = {
        node.id: NodeHost(
            options,
            msgspec.structs.replace(node, labels={**node.labels, **engine.labels()}),
            joined=joined,
            desk=desk,
            files=files,
            disk=disk,
            boot_id=boot_id,
            open_channel=open_channel,
        )
        for node in options.nodes
    }
    runner = _runner(options, nodes, output_dir, accounts, files.uploads)

    def relabel(labels: Mapping[str, str]) -> None:
        for node in options.nodes:
            nodes[node.id].relabel({**node.labels, **labels})

    background: list[asyncio.Task[None] | None] = []
    try:
        for node in nodes.values():
            await node.find_gpus()
            node.attach(runner)
        await runner.open()
        desk.start()
        background = [keep_house(options, runner, boot_id), asyncio.create_task(engine.run(relabel))]
        await stop.wait()
    finally:
        _log.info("agent_stopping", stop_tasks=options.stop_tasks)
        for work in filter(None, background):
            work.cancel()
        # Ends caused by the stop are still reported: the streams close last.
        await runner.close(stop_tasks=options.stop_tasks)
        if options.stop_tasks:
            await asyncio.gather(*(node.say_goodbye() for node in nodes.values()))
        for node in nodes.values():
            await node.close()
        await desk.close()


@contextlib.asynccontextmanager
async def _channels(options: AgentOptions) -> AsyncIterator[OpenChannel]:
    """Keeps the certificate valid meanwhile, if this machine has one. Raises CertificateUnusable."""
    if options.tls is None:
        if not all(parse_address(address).is_loopback for address in options.addresses):
            _log.warning(
                "plain_text", schedulers=options.addresses, advice="join the cluster: dgpu agent join"
            )
        yield open_plain
        return
    from dgpu.agent.certificate import CertificateFiles
    from dgpu.agent.renewal import MachineCertificate

    files = CertificateFiles(options.tls.directory)
    certificate = MachineCertificate(files, [node.id for node in options.nodes])
    renewing = asyncio.create_task(
        certificate.keep_renewed(options.addresses, options.tls.renew_before_s), name="certificate"
    )
    try:
        yield certificate.open_channel
    finally:
        renewing.cancel()


def _files_desk(options: AgentOptions, accounts: Accounts) -> FilesDesk:
    tasks_dir = options.tasks_dir if options.runner == "process" else None
    return FilesDesk(tasks_dir, accounts, UploadCache(options.state_dir / "uploads"))


def _output_desk(options: AgentOptions, output_dir: Path) -> OutputDesk:
    return OutputDesk(
        OutputShelf(
            output_dir,
            clock_ms=boot_ms,
            max_bytes=options.output_retention_bytes,
            max_age_ms=options.output_retention_ms,
        )
    )


def _runner(
    options: AgentOptions,
    nodes: dict[NodeId, NodeHost],
    output_dir: Path,
    accounts: Accounts,
    uploads: UploadCache,
) -> Runner:
    def say(node_id: NodeId, words: Sequence[RunnerWord]) -> None:
        nodes[node_id].hear(words)

    if options.runner == "null":
        return NullRunner(node_ids=tuple(nodes), say=say)
    settings = KeeperSettings(
        directory=str(options.state_dir),
        work_dir=str(options.tasks_dir),
        output_dir=str(output_dir),
        output_cap_bytes=options.output_cap_bytes,
        idle_exit_ms=options.keeper_idle_exit_ms,
        soft_files=given_soft_limit(),
    )
    return ProcessRunner(
        settings=settings,
        node_ids=tuple(nodes),
        say=say,
        grace_ms=options.grace_ms,
        accounts=accounts,
        containers=options.containers,
        uploads=uploads,
    )


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AgentRunningError(f"another agent uses {path.parent}") from error
        yield
    finally:
        os.close(fd)
