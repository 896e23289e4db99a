"""Start orders: the only messages with variables and secrets of tasks in clear."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from dgpu.core.commands import ReportFinished
from dgpu.core.model.gang import Gang, master_port
from dgpu.core.model.ids import task_name
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import WHOLE_MILLI, Outcome, Task, TaskDetail
from dgpu.core.state import ClusterState
from dgpu.service.machine.agent_words import account
from dgpu.service.machine.call_words import call
from dgpu.service.secrets.opened import CannotOpen, Opened, Opener
from dgpu.wire.grids import filled, values_of, variables_of
from dgpu.wire.isolation import Isolation
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import HOST_FILE, LAUNCHER_PREFIX
from dgpu.wire.uploads import upload_of

_CANNOT_START = 126  # as a shell says it
_GRID = b'"grid"'  # a key in a detail, found without decoding it

_decode_detail = msgspec.json.Decoder(TaskDetail).decode


class StartOrders:
    """`opener` None: details are sent as they are."""

    def __init__(self, state: ClusterState, opener: Opener | None, isolation: Isolation) -> None:
        self._state = state
        self._opener = opener
        self._isolation = isolation
        self._failed: list[ReportFinished] = []

    def start(self, task: Task, lease: Lease) -> pb.Start | pb.Call | None:
        """None: its values cannot be opened, and the end of its lease is among the failed ones."""
        if lease.worker:
            return call(task, lease)
        opened = Opened(task.detail, {})
        if self._opener is not None:
            tenant_id = self._state.shapes[task.shape_id].tenant_id
            try:
                opened = self._opener(tenant_id, task.detail, self._state.secrets)
            except CannotOpen as error:
                end = ReportFinished(
                    lease_id=lease.id,
                    outcome=Outcome.CANNOT_START,
                    exit_code=_CANNOT_START,
                    error=str(error),
                )
                self._failed.append(end)
                return None
        return _order(self._state, task, lease, opened, self._isolation)

    def take_failed(self) -> list[ReportFinished]:
        """Ends of leases whose node gets no order. The caller reports them in place of the node."""
        failed, self._failed = self._failed, []
        return failed


def _order(state: ClusterState, task: Task, lease: Lease, opened: Opened, isolation: Isolation) -> pb.Start:
    shape = state.shapes[task.shape_id]
    order = pb.Start(
        lease_id=lease.id,
        task_id=task.id,
        attempt=task.attempt,
        gpu_uuids=lease.gpu_ids,
        detail=opened.detail,
        timeout_ms=task.timeout_ms,
        nonce=lease.nonce,
        secret_files=opened.files,
        account=account(isolation, shape.tenant_id),
        ram_mb=shape.ram_mb,
        cpus_milli=shape.cpus_milli,
        upload=upload_of(task.detail),
    )
    if lease.share_milli < WHOLE_MILLI:
        order.share_milli = lease.share_milli
        order.gpu_memory_mb = lease.gpu_memory_mb
        order.kill_outgrown = state.settings.share_enforcement == "kill"
        order.env["DGPU_GPU_SHARE"] = f"{lease.share_milli / WHOLE_MILLI:g}"
        order.env["DGPU_GPU_MEMORY_MB"] = str(lease.gpu_memory_mb)
    if task.array_id:
        order.env["DGPU_ARRAY_ID"] = task_name(task.array_id)
        order.env["DGPU_ARRAY_INDEX"] = str(task.array_index)
        order.env["DGPU_ARRAY_COUNT"] = str(task.array_count)
        if _GRID in opened.detail:
            _fill(order, task)
    gang = state.gangs.get(task.id)
    if gang is not None:
        order.rank = lease.rank
        order.env.update(_places(state, gang, lease))
        order.env.update(_launcher_options(task, order.env, lease))
        order.secret_files[HOST_FILE] = _host_file(state, gang)
    return order


def _fill(order: pb.Start, task: Task) -> None:
    """The values of the grid that the index of the task selects."""
    detail = _decode_detail(order.detail)
    values = values_of(detail.grid, task.array_index)
    order.env.update(variables_of(values))
    order.detail = msgspec.json.encode(replace(detail, command=filled(detail.command, values), grid={}))


def _places(state: ClusterState, gang: Gang, lease: Lease) -> dict[str, str]:
    """One process per node, so the rank of the process is the rank of its node."""
    return {
        "MASTER_ADDR": _host(state, state.leases[gang.leases[0]]),
        "MASTER_PORT": str(master_port(gang)),
        "WORLD_SIZE": str(len(gang.leases)),
        "RANK": str(lease.rank),
        "NODE_RANK": str(lease.rank),
        "LOCAL_RANK": "0",
    }


def _launcher_options(task: Task, places: Mapping[str, str], lease: Lease) -> dict[str, str]:
    """Options of torchrun as variables, so that `torchrun train.py` needs none. The `static` rendezvous keeps the ranks
    of the nodes: MASTER_ADDR is the node of rank 0.
    """
    host, port = places["MASTER_ADDR"], places["MASTER_PORT"]
    is_ipv6 = ":" in host and not host.startswith("[")
    options = {
        "NNODES": places["WORLD_SIZE"],
        "NPROC_PER_NODE": str(_processes(lease)),
        "NODE_RANK": places["NODE_RANK"],
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RDZV_BACKEND": "static",
        "RDZV_ENDPOINT": f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}",
        "RDZV_ID": f"{task_name(task.id)}.{task.attempt}",
    }
    return {LAUNCHER_PREFIX + name: value for name, value in options.items()}


def _host_file(state: ClusterState, gang: Gang) -> bytes:
    """One line for each node, by rank, as MPI and DeepSpeed read it."""
    leases = [state.leases[lease_id] for lease_id in gang.leases]
    return "".join(f"{_host(state, lease)} slots={_processes(lease)}\n" for lease in leases).encode()


def _host(state: ClusterState, lease: Lease) -> str:
    node = state.nodes[lease.node_id]
    return node.address or node.id


def _processes(lease: Lease) -> int:
    """That launchers start on the node: one per GPU."""
    return max(1, len(lease.gpu_ids))
