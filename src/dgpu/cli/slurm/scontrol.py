"""scontrol: show job, show node, show hostnames, hold, release, requeue."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dgpu.cli.arguments import parse_ids
from dgpu.cli.failures import CliFailure
from dgpu.cli.jobs.hostlist import BadHostList, expand
from dgpu.cli.slurm import jobs
from dgpu.cli.slurm.reading import FLAG, read, scheduler, words_of
from dgpu.cli.slurm.sinfo import gres_of, state_of

if TYPE_CHECKING:
    from dgpu.wire.answers import TaskAnswer
    from dgpu.wire.cluster_answers import NodeAnswer

TAKES = {"oneliner": FLAG, "details": FLAG}
SHORT = {"o": "oneliner", "d": "details"}
KNOWN = (
    "show job ID, show node [NAME], show hostnames [LIST], hold ID, release ID, requeue ID, cancel ID, ping"
)


def run(arguments: Sequence[str]) -> int:
    given, words = read(arguments, TAKES, SHORT)
    order, *rest = words or [""]
    if order == "show" and rest:
        return _show(rest[0], rest[1:], one_line="oneliner" in given)
    if order in {"hold", "release", "requeue", "cancel"} and rest:
        client = scheduler()
        calls: dict[str, Callable[[str], object]] = {
            "hold": client.hold,
            "release": client.release,
            "requeue": client.retry,
            "cancel": client.cancel,
        }
        for task_id in parse_ids([word for each in rest for word in words_of(each)]):
            calls[order](task_id)
        return 0
    if order == "ping" and not rest:
        client = scheduler()
        client.nodes()
        sys.stdout.write(f"Slurmctld(primary) at {client.urls[0]} is UP\n")
        return 0
    raise CliFailure(f"{' '.join(words) or 'no command'}: not supported; scontrol knows {KNOWN}")


def _show(what: str, names: Sequence[str], *, one_line: bool) -> int:
    if what in {"hostnames", "hostname"}:
        text = names[0] if names else os.environ.get("SLURM_JOB_NODELIST", "")
        try:
            sys.stdout.write("".join(f"{name}\n" for name in expand(text)))
        except BadHostList as error:
            raise CliFailure(f"{text!r}: {error}") from None
        return 0
    if what in {"job", "jobs"} and names:
        client = scheduler()
        found = [_job(client.get(task_id)) for task_id in parse_ids(words_of(",".join(names)))]
    elif what in {"node", "nodes"}:
        nodes = scheduler().nodes().nodes
        unknown = set(names) - {node.id for node in nodes}
        if unknown:
            raise CliFailure(f"node {', '.join(sorted(unknown))} not found")
        found = [_node(node) for node in nodes if not names or node.id in names]
    else:
        raise CliFailure(f"show {what}: not supported; scontrol knows {KNOWN}")
    sys.stdout.write("".join((" ".join(each) if one_line else "\n   ".join(each)) + "\n\n" for each in found))
    return 0


def _job(task: TaskAnswer) -> list[str]:
    now = datetime.now(UTC)
    array = ""
    if task.array_id is not None:
        array = f" ArrayJobId={task.array_id.removeprefix('task-')} ArrayTaskId={task.array_index}"
    return [
        f"JobId={task.task_id.removeprefix('task-')}{array} JobName={task.name}",
        f"UserId={jobs.user(task)} Account={task.tenant_id} Priority={task.priority_value}",
        f"JobState={jobs.state(task)} Reason={task.waiting or task.reason or 'None'}",
        f"Restarts={max(0, task.attempt - 1)} ExitCode={jobs.exit_code(task)}",
        f"RunTime={jobs.clock(jobs.time_used(task, now))} TimeLimit={jobs.clock(task.timeout_seconds)}",
        f"SubmitTime={jobs.instant(task.created_at)} StartTime={jobs.instant(task.started_at)}",
        f"EndTime={jobs.instant(task.finished_at)}",
        f"Partition={task.pool} NodeList={','.join(task.allocated_nodes) or '(null)'} NumNodes={task.nodes}",
        f"NumCPUs={task.cpus * task.nodes:g} MinMemoryNode={task.ram_mb}M TresPerNode={jobs.gres(task)}",
        f"Command={jobs.command(task)}",
        f"WorkDir={task.workdir}",
    ]


def _node(node: NodeAnswer) -> list[str]:
    return [
        f"NodeName={node.id} NodeAddr={node.address or node.id}",
        f"CPUTot={node.cpus:g} RealMemory={node.ram_mb} Gres={gres_of(node)}",
        f"State={state_of(node).upper()} Reason={node.drain_reason or 'none'}",
        f"GresUsed=gpu:{node.gpus - node.gpus_free}",
    ]
