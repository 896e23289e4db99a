"""Cleans up the directories of ended tasks once a minute, in a separate thread."""

from __future__ import annotations

import asyncio

import structlog

from dgpu.agent.background import DaemonPool
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.options import AgentOptions
from dgpu.agent.retention import Retention
from dgpu.agent.run.process import ProcessRunner
from dgpu.agent.run.runner import Runner

SWEEP_SECONDS = 60.0
LEDGER = "workdirs.json"  # in the agent's state directory

_log = structlog.get_logger("dgpu.agent")


def keep_house(options: AgentOptions, runner: Runner, boot_id: str) -> asyncio.Task[None] | None:
    """Starts when the runner has listed its runs: before, it is unknown which directories are in use."""
    if not isinstance(runner, ProcessRunner):
        return None
    retention = Retention(
        directory=options.tasks_dir,
        ledger=options.state_dir / LEDGER,
        limits=options.workdir_limits,
        boot_id=boot_id,
    )
    return asyncio.get_running_loop().create_task(_sweep_for_ever(retention, runner))


async def _sweep_for_ever(retention: Retention, runner: ProcessRunner) -> None:
    thread = DaemonPool("workdirs", threads=1, max_waiting=0)
    while True:
        try:
            await sweep_once(retention, runner, thread)
        except Exception as error:  # noqa: BLE001 - a broken disk now may be well in a minute
            _log.warning("workdirs_not_swept", error=str(error), kind=type(error).__name__)
        await asyncio.sleep(SWEEP_SECONDS)


async def sweep_once(retention: Retention, runner: ProcessRunner, thread: DaemonPool) -> None:
    names = await thread.run(retention.names)
    # After the list: the directory of a later run is not in it.
    in_use, older = runner.dirs_in_use(), runner.names_dirs
    deleted = await thread.run(lambda: retention.sweep(names, in_use, boot_ms(), older=older))
    for each in deleted:
        _log.info("workdir_deleted", directory=each.name, bytes=each.size_bytes, reason=each.reason)
    if retention.stuck:
        _log.warning("workdirs_not_deleted", entries=retention.stuck)
