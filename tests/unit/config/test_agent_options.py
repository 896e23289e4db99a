from __future__ import annotations

from pathlib import Path

from dgpu.agent.options import AgentOptions, NodeOptions
from dgpu.agent.probe.detect import DetectionMethod
from dgpu.agent.probe.models import SimulatedCards
from dgpu.core.model.ids import NodeId
from dgpu.entry.agent import agent_options
from dgpu.entry.config import load_agent_config
from dgpu.entry.config_types import AgentConfig


def test_the_default_configuration_is_the_agents_own_default() -> None:
    expected = AgentOptions(
        nodes=(NodeOptions(id=NodeId("box"), address="box"),),
        addresses=("127.0.0.1:9090",),
        state_dir=Path("/var/lib/dgpu-agent/tasks"),
    )
    assert agent_options(AgentConfig(), host_name="box") == expected


def test_every_key_that_matters_reaches_the_agent() -> None:
    environ = {
        "DGPU__AGENT__ID": "n7",
        "DGPU__AGENT__ADDRESS": "10.0.0.7",
        "DGPU__AGENT__HEARTBEAT_INTERVAL": "0.5",
        "DGPU__AGENT__LABELS": '{"zone": "a"}',
        "DGPU__SCHEDULER__MASTER_ADDRESS": "master:9090",
        "DGPU__SCHEDULER__RETRY_INTERVAL": "2",
        "DGPU__SCHEDULER__MAX_RETRY_INTERVAL": "3",
        "DGPU__GPU__DETECTION_METHOD": "simulated",
        "DGPU__GPU__SIMULATED": "2xV100,1xT4",
        "DGPU__GPU__GPU_IDS": "[0, 1]",
        "DGPU__GPU__RESERVED_GPU_IDS": "[2]",
        "DGPU__GPU__HEALTH_CHECK_INTERVAL": "4",
        "DGPU__EXECUTOR__WORK_DIR": "/x",
        "DGPU__EXECUTOR__STOP_GRACE_SECONDS": "5",
        "DGPU__EXECUTOR__MAX_OUTPUT_MB": "6",
    }
    assert agent_options(load_agent_config(None, environ)) == AgentOptions(
        nodes=(
            NodeOptions(
                id=NodeId("n7"),
                address="10.0.0.7",
                labels={"zone": "a"},
                detection_method=DetectionMethod.SIMULATED,
                simulated=(SimulatedCards(model="V100", count=2), SimulatedCards(model="T4", count=1)),
                gpu_ids=(0, 1),
                reserved_gpu_ids=(2,),
            ),
        ),
        addresses=("master:9090",),
        state_dir=Path("/x"),
        heartbeat_ms=500,
        retry_ms=2_000,
        max_retry_ms=3_000,
        health_check_ms=4_000,
        grace_ms=5_000,
        output_cap_bytes=6 << 20,
    )


def test_simulated_nodes_are_numbered_so_that_they_sort() -> None:
    environ = {
        "DGPU__AGENT__ID": "sim",
        "DGPU__AGENT__SIMULATED_NODES": "12",
        "DGPU__GPU__DETECTION_METHOD": "simulated",
        "DGPU__GPU__SIMULATED": "4xV100",
    }
    ids = [node.id for node in agent_options(load_agent_config(None, environ)).nodes]
    assert ids == sorted(ids)
    assert (ids[0], ids[-1], len(ids)) == ("sim-01", "sim-12", 12)


def test_a_host_name_with_odd_characters_still_gives_a_node_name() -> None:
    assert agent_options(AgentConfig(), host_name="my box!").nodes[0].id == "my-box-"


def test_simulated_execution_is_the_runner_that_runs_nothing() -> None:
    environ = {
        "DGPU__GPU__DETECTION_METHOD": "simulated",
        "DGPU__GPU__SIMULATED": "4xV100",
        "DGPU__EXECUTOR__EXECUTION_METHOD": "simulated",
    }
    assert agent_options(load_agent_config(None, environ)).runner == "null"
