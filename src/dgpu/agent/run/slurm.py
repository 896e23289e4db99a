"""The variables that Slurm sets, with the values that are known only at the start. The client sends the others."""

from __future__ import annotations

from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.ids import NodeId, parse_task_id
from dgpu.wire.ranks import HOST_FILE, attempt_of


def slurm_variables(order: RunOrder, node_id: NodeId) -> dict[str, str]:
    rank, nodes = order.env.get("NODE_RANK", "0"), order.env.get("WORLD_SIZE", "1")
    number = str(order.task_id)
    hosts = _hosts(order) or node_id
    found = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_NODEID": rank,
        "SLURM_PROCID": rank,  # dgpu starts one process on each node
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts,
        "SLURMD_NODENAME": node_id,
        "SLURM_GPUS_ON_NODE": str(len(order.gpu_ids)),
        "SLURM_RESTART_COUNT": str(attempt_of(order.attempt) - 1),
        "SLURM_CLUSTER_NAME": "dgpu",
    }
    if order.cpus_milli >= 1_000:
        found["SLURM_CPUS_ON_NODE"] = found["SLURM_JOB_CPUS_PER_NODE"] = str(order.cpus_milli // 1_000)
    if order.ram_mb:
        found["SLURM_MEM_PER_NODE"] = str(order.ram_mb)
    return found | _array(order.env)


def _array(env: dict[str, str]) -> dict[str, str]:
    array_id = parse_task_id(env.get("DGPU_ARRAY_ID", ""))
    if array_id is None:
        return {}
    return {
        "SLURM_ARRAY_JOB_ID": str(array_id),
        "SLURM_ARRAY_TASK_ID": env["DGPU_ARRAY_INDEX"],
        "SLURM_ARRAY_TASK_COUNT": env["DGPU_ARRAY_COUNT"],
    }


def _hosts(order: RunOrder) -> str:
    """Of a task on several nodes: the first word of each line of its host file."""
    lines = order.secret_files.get(HOST_FILE, b"").decode().splitlines()
    return ",".join(line.split()[0] for line in lines if line)
