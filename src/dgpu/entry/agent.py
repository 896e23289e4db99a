"""The agent service of a node: turns the configuration into the agent's options."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dgpu.agent.probe.models import SimulatedCards, parse_cards
from dgpu.core.model.ids import NodeId
from dgpu.entry.config_types import AgentConfig
from dgpu.wire.address import address_list

if TYPE_CHECKING:
    from dgpu.agent.options import AgentOptions, NodeOptions, TlsOptions

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def run_agent(config: AgentConfig) -> int:
    """Serves until SIGTERM or Ctrl-C; tasks continue. Returns the exit code."""
    import uvloop

    from dgpu.entry.logs import set_up_logging

    set_up_logging(config.logging)  # first: it imports the logging library without rich
    from dgpu.agent.channel import CertificateUnusable
    from dgpu.agent.host import AgentRunningError, serve_agent
    from dgpu.agent.keeper_link import KeeperError
    from dgpu.file_limit import raise_file_limit

    raise_file_limit()
    try:
        with _witness(config):
            uvloop.run(serve_agent(agent_options(config)))
    except (AgentRunningError, CertificateUnusable, KeeperError, OSError) as error:
        sys.stderr.write(f"dgpu agent: {error}\n")
        return 1
    return 0


@contextlib.contextmanager
def _witness(config: AgentConfig) -> Iterator[None]:
    """Its refusal does not end the agent: the tasks of the node come first."""
    if not config.agent.witness:
        yield
        return
    from dgpu.entry.ha.witness import witness_beside

    with witness_beside(witness_dir(config)):
        yield


def agent_options(config: AgentConfig, *, host_name: str | None = None) -> AgentOptions:
    from dgpu.agent.accounts import IsolationOptions
    from dgpu.agent.options import AgentOptions, NodeOptions
    from dgpu.agent.retention import Limits
    from dgpu.entry.container_config import container_options

    host = _NOT_IN_A_NAME.sub("-", host_name or socket.gethostname()) or "node"
    node = NodeOptions(
        id=NodeId(config.agent.id or host),
        address=config.agent.address or host,
        labels=config.agent.labels,
        detection_method=config.gpu.detection_method,
        simulated=_cards(config.gpu.simulated),
        gpu_ids=config.gpu.gpu_ids,
        reserved_gpu_ids=config.gpu.reserved_gpu_ids,
        max_temperature_c=config.gpu.max_temperature_c,
        check_command=config.gpu.check_command,
    )
    return AgentOptions(
        nodes=_nodes(node, config.agent.simulated_nodes),
        addresses=tuple(address_list(config.scheduler.master_address, config.scheduler.standby_address)),
        state_dir=state_dir(config),
        work_dir=_path(config.executor.tasks_dir) if config.executor.tasks_dir else None,
        tls=_tls(config),
        heartbeat_ms=_ms(config.agent.heartbeat_interval),
        retry_ms=_ms(config.scheduler.retry_interval),
        max_retry_ms=_ms(config.scheduler.max_retry_interval),
        health_check_ms=_ms(config.gpu.health_check_interval),
        runner="null" if config.executor.execution_method == "simulated" else "process",
        containers=container_options(config, hidden=(str(state_dir(config)), str(tls_dir(config)))),
        grace_ms=_ms(config.executor.stop_grace_seconds),
        output_cap_bytes=config.executor.max_output_mb << 20 or config.executor.output_max_bytes,
        output_retention_bytes=round(config.executor.output_retention.gib * 1024**3),
        output_retention_ms=round(config.executor.output_retention.days * 86_400_000),
        workdir_limits=Limits(
            max_age_ms=round(config.executor.workdir_retention.days * 86_400_000),
            max_bytes=round(config.executor.workdir_retention.gib * 1024**3),
        ),
        isolation=IsolationOptions(
            min_uid=config.isolation.min_uid,
            groups=config.isolation.groups,
            max_processes=config.isolation.max_processes,
        ),
    )


def state_dir(config: AgentConfig) -> Path:
    return _path(config.executor.work_dir)


def witness_dir(config: AgentConfig) -> Path:
    return state_dir(config) / "witness"


def tls_dir(config: AgentConfig) -> Path:
    written = config.scheduler.tls.dir
    return _path(written) if written else state_dir(config) / "tls"


def _tls(config: AgentConfig) -> TlsOptions | None:
    """A machine that has joined never talks in plain text again."""
    from dgpu.agent.options import PAIR_FILE, TlsOptions

    tls = TlsOptions(directory=tls_dir(config), renew_before_s=config.scheduler.tls.renew_before_seconds)
    return tls if (tls.directory / PAIR_FILE).exists() else None


def _nodes(node: NodeOptions, count: int) -> tuple[NodeOptions, ...]:
    if count == 1:
        return (node,)
    # Numbers of equal length, so that nodes sort in numeric order.
    width = len(str(count))
    ids = (NodeId(f"{node.id}-{number:0{width}d}") for number in range(1, count + 1))
    return tuple(msgspec.structs.replace(node, id=node_id) for node_id in ids)


def _cards(simulated: str | tuple[SimulatedCards, ...]) -> tuple[SimulatedCards, ...]:
    return parse_cards(simulated) if isinstance(simulated, str) else simulated


def _path(written: str) -> Path:
    return Path(written).expanduser().absolute()


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
