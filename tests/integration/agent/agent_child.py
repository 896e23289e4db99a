"""An agent as a process of its own, so that a test can kill it: `python agent_child.py DIR PORT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dgpu.agent.host import serve_agent
from dgpu.agent.options import AgentOptions, NodeOptions
from dgpu.agent.probe.detect import DetectionMethod
from dgpu.agent.probe.models import SimulatedCards
from dgpu.core.model.ids import NodeId


def options(directory: Path, port: int, **facts) -> AgentOptions:
    node = NodeOptions(
        id=NodeId("n1"),
        detection_method=DetectionMethod.SIMULATED,
        simulated=(SimulatedCards(model="V100", count=2),),
    )
    return AgentOptions(
        **{
            "nodes": (node,),
            "addresses": (f"127.0.0.1:{port}",),
            "state_dir": directory,
            "heartbeat_ms": 200,
            "retry_ms": 50,
            "max_retry_ms": 200,
            "keeper_idle_exit_ms": 60_000,
            **facts,
        }
    )


if __name__ == "__main__":
    asyncio.run(serve_agent(options(Path(sys.argv[1]), int(sys.argv[2]))))
