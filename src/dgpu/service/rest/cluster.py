"""The calls on nodes, GPUs, the queue and the service itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Request, Response, delete, get, post
from litestar.params import PathParameter, QueryParameter

from dgpu.core.commands import Command, DrainNode, RecoverGpu, ReleaseNode, RemoveNode, ResumeNode
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.rejections import UnknownGpu, UnknownNode
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import gpus_told_to, node_told_to
from dgpu.service.rest import listing, probes
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import Given, LimitQuery, Who
from dgpu.service.views.cluster import gpu_list, node_answer, node_list, one_gpu
from dgpu.service.views.schedulers import scheduler_list
from dgpu.service.views.tasks import queue_entry
from dgpu.wire.answers import Health, QueuePage, Ready, Removed
from dgpu.wire.change_requests import decode_reason
from dgpu.wire.cluster_answers import GpuAnswer, GpuList, NodeAnswer, NodeList
from dgpu.wire.problem import problem_of
from dgpu.wire.scheduler_answers import SchedulerList

NodeIdText = Annotated[str, PathParameter(description="The node's id.")]
GpuIdText = Annotated[str, PathParameter(description="The GPU's UUID.")]
NodeQuery = Annotated[
    str | None, QueryParameter(description="Only those of the node with this id.", required=False)
]
_MAX_ID = 128
MAX_LOOKED_AT = 10_000  # places of the queue, for a reader of some tenants


@get(
    "/api/v1/queue",
    summary="The queue",
    description="Waiting tasks in the order in which they are tried. A task without a name shows its command. "
    "A task with a reservation names its nodes and its latest start (null: unknown). A principal of some tenants "
    "sees only their tasks, with their true positions among the first 10,000, and the number of all waiting tasks.",
)
async def show_queue(rest: Given, who: Who, limit: LimitQuery = None) -> QueuePage:
    most = listing.parse_limit(limit)
    looks = most if who.tenants is None else MAX_LOOKED_AT

    def look(state: ClusterState) -> QueuePage:
        tasks = [state.tasks[task_id] for task_id in queue(state, limit=looks)]
        entries = [
            queue_entry(task, state.shapes[task.shape_id], place, state.reservations.get(task.id))
            for place, task in enumerate(tasks, 1)
            if who.owns(state.shapes[task.shape_id].tenant_id)
        ]
        return QueuePage(queue=entries[:most], total=state.waiting_count)

    return await rest.runtime.read(look)


@get("/api/v1/gpus", summary="List GPUs", description="With the latest sample of each, by node and index.")
async def list_gpus(rest: Given, who: Who, node: NodeQuery = None) -> GpuList:
    only = None if node is None else NodeId((await _node(rest, node)).id)

    def look(state: ClusterState) -> GpuList:
        return gpus_told_to(who.tenants, state, gpu_list(state, rest.runtime.telemetry, only))

    return await rest.runtime.read(look)


@post(
    "/api/v1/gpus/{gpu_id:str}/recover",
    summary="Recover a GPU",
    description="After the repair of a GPU that was taken out of service: it is checked, then gets work of low "
    "priority, then all work. Refused for a GPU in service. Body: {} or {reason}.",
    status_code=200,
)
async def recover_gpu(rest: Given, gpu_id: GpuIdText, request: Request[Any, Any, Any]) -> GpuAnswer:
    reason = await _reason(request)
    await rest.do(RecoverGpu(gpu_id=GpuId(gpu_id[:_MAX_ID]), reason=reason))
    found = await rest.runtime.read(lambda state: one_gpu(state, GpuId(gpu_id), rest.runtime.telemetry))
    if found is None:
        raise ProblemError(problem_of(UnknownGpu(gpu_id=GpuId(gpu_id[:_MAX_ID]))))
    return found


@get("/api/v1/nodes", summary="List nodes", description="All registered nodes, including lost ones.")
async def list_nodes(rest: Given, who: Who) -> NodeList:
    def look(state: ClusterState) -> NodeList:
        found = node_list(state)
        nodes = [node_told_to(who.tenants, state, node) for node in found.nodes]
        return NodeList(total=found.total, nodes=nodes, isolation=rest.options.boundary)

    return await rest.runtime.read(look)


@get("/api/v1/nodes/{node_id:str}", summary="Show a node", description="Its GPUs are in the list of GPUs.")
async def get_node(rest: Given, who: Who, node_id: NodeIdText) -> NodeAnswer:
    found = await _node(rest, node_id)
    return await rest.runtime.read(lambda state: node_told_to(who.tenants, state, found))


@post(
    "/api/v1/nodes/{node_id:str}/drain",
    summary="Drain a node",
    description="Running tasks continue; no new task is placed. Body: {} or {reason}.",
    status_code=200,
)
async def drain_node(rest: Given, node_id: NodeIdText, request: Request[Any, Any, Any]) -> NodeAnswer:
    reason = await _reason(request)
    return await _order(rest, node_id, DrainNode(node_id=NodeId(node_id), reason=reason))


@post(
    "/api/v1/nodes/{node_id:str}/resume",
    summary="Resume a node",
    description="Ends a drain. Body: {}.",
    status_code=200,
)
async def resume_node(rest: Given, node_id: NodeIdText, request: Request[Any, Any, Any]) -> NodeAnswer:
    await _reason(request)
    return await _order(rest, node_id, ResumeNode(node_id=NodeId(node_id)))


@post(
    "/api/v1/nodes/{node_id:str}/lost",
    summary="Give a lost node up",
    description="Confirms that nothing runs there any more: its tasks may start elsewhere at once. "
    "Refused while the node is connected. Body: {} or {reason}.",
    status_code=200,
)
async def give_up_node(rest: Given, node_id: NodeIdText, request: Request[Any, Any, Any]) -> NodeAnswer:
    reason = await _reason(request) or "an operator reported it lost"
    return await _order(rest, node_id, ReleaseNode(node_id=NodeId(node_id), reason=reason))


@delete(
    "/api/v1/nodes/{node_id:str}",
    summary="Forget a node",
    description="A node that is offline and runs nothing.",
    status_code=200,
)
async def remove_node(rest: Given, node_id: NodeIdText) -> Removed:
    await rest.do(RemoveNode(node_id=NodeId(node_id)))
    return Removed(id=node_id)


async def _order(rest: Backend, node_id: str, command: Command) -> NodeAnswer:
    await rest.do(command)
    return await _node(rest, node_id)


async def _node(rest: Backend, node_id: str) -> NodeAnswer:
    def look(state: ClusterState) -> NodeAnswer | None:
        node = state.nodes.get(NodeId(node_id))
        return None if node is None else node_answer(state, node)

    answer = await rest.runtime.read(look)
    if answer is None:
        raise ProblemError(problem_of(UnknownNode(node_id=NodeId(node_id[:100]))))
    return answer


async def _reason(request: Request[Any, Any, Any]) -> str:
    return decode_reason(await request.body())


@get(
    "/api/v1/schedulers",
    summary="List schedulers",
    description="Role, lag, epoch and version of each scheduler, and the members of the engine that keeps their "
    "journal. Any scheduler answers, also while the engine does not. A lone scheduler lists itself.",
)
async def list_schedulers(rest: Given) -> SchedulerList:
    options, runtime = rest.options, rest.runtime
    return scheduler_list(
        options.standing, version=options.version, epoch=runtime.epoch, index=runtime.committed_index
    )


@get("/health", summary="Liveness", description="Answers while the process runs.")
async def get_health(rest: Given) -> Health:
    return (await probes.health(rest))[1]


RoleQuery = Annotated[
    Literal["master"] | None, QueryParameter(description="Only the scheduler that leads.", required=False)
]


@get(
    "/ready",
    summary="Readiness",
    description="503 with the reason if it cannot take tasks. A standby is ready if its reads are fresh enough; with "
    "`role=master`, only the scheduler that leads is ready.",
)
async def get_readiness(rest: Given, role: RoleQuery = None) -> Response[Ready]:
    status, answer = await probes.readiness(rest, b"role=master" if role else b"")
    return Response(answer, status_code=status)


ROUTES: tuple[Any, ...] = (
    show_queue,
    list_gpus,
    recover_gpu,
    list_nodes,
    get_node,
    drain_node,
    resume_node,
    give_up_node,
    remove_node,
    list_schedulers,
    get_health,
    get_readiness,
)
