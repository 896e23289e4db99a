"""Makes the machine of a node from the agent's options and the facts of this computer."""

from __future__ import annotations

import secrets
from random import SystemRandom

from dgpu import __version__
from dgpu.agent import machine
from dgpu.agent.boundaries import find_boundaries
from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.node import NodeMachine
from dgpu.agent.options import AgentOptions, NodeOptions
from dgpu.agent.session import Session
from dgpu.agent.session_words import Identity, SessionSettings
from dgpu.agent.workers.machine import Workers


def new_node(options: AgentOptions, node: NodeOptions, joined: Joined, boot_id: str) -> NodeMachine:
    runs_processes = options.runner == "process"
    boundaries = find_boundaries(options.tasks_dir, runs_processes=runs_processes)
    session = Session(
        identity=Identity(
            node_id=node.id,
            boot_id=boot_id,
            cpus_milli=node.cpus_milli or machine.cpus_milli(),
            ram_mb=node.ram_mb or machine.ram_mb(),
            agent_version=__version__,
            address=node.address,
            labels=node.labels,
            work_dir=str(options.tasks_dir) if runs_processes else "",
            enforced=boundaries.enforced,
            not_isolated=boundaries.not_isolated,
        ),
        settings=SessionSettings(
            addresses=options.addresses,
            heartbeat_ms=options.heartbeat_ms,
            retry_ms=options.retry_ms,
            max_retry_ms=options.max_retry_ms,
        ),
        joined=joined,
        jitter=SystemRandom().random,
        new_session_id=lambda: secrets.token_hex(8),
    )
    return NodeMachine(
        session=session,
        lifecycle=Lifecycle(grace_ms=options.grace_ms),
        workers=Workers(grace_ms=options.grace_ms),
    )
