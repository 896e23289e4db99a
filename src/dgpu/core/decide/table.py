"""decide(state, command): the events of a command, or its refusal. Deciding changes no state and does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dgpu.core import commands
from dgpu.core.commands import Command, RunPass
from dgpu.core.decide.alerts import decide_keep_alerts
from dgpu.core.decide.audit import audited, decide_record_audit
from dgpu.core.decide.calls import decide_workers, with_calls
from dgpu.core.decide.credentials import (
    decide_create_token,
    decide_delete_secret,
    decide_reseal,
    decide_revoke_token,
    decide_set_secret,
)
from dgpu.core.decide.health import decide_check, decide_recover
from dgpu.core.decide.learning import decide_condition, decide_end
from dgpu.core.decide.node import (
    decide_drain,
    decide_inventory,
    decide_lose,
    decide_observe,
    decide_register,
    decide_release,
    decide_remove,
    decide_resume,
)
from dgpu.core.decide.orders import decide_cancel, decide_hold, decide_priority
from dgpu.core.decide.quota import decide_remove_tenant, decide_set_quota, decide_set_tenant
from dgpu.core.decide.report import decide_started
from dgpu.core.decide.schedule import run_pass
from dgpu.core.decide.services import (
    decide_delete_service,
    decide_scale_service,
    decide_set_service,
    decide_step_services,
)
from dgpu.core.decide.submit import decide_submit
from dgpu.core.decide.time import decide_begin_epoch, decide_tick
from dgpu.core.decision import Decision
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import decide_wall_clock


def decide(state: ClusterState, command: Command) -> Decision:
    """Changes no state. RunPass is decided on a fork, because each grant changes the room for the next one."""
    decision = DECIDERS[type(command)](state, command)
    if state.workers and not isinstance(decision, Rejection):
        decision = with_calls(state, decision)
    if command.audit is None or isinstance(decision, Rejection):
        return decision
    return (*decision, audited(state, command.audit, decision, command.at))


def decide_pass(state: ClusterState, command: RunPass) -> Decision:
    return run_pass(state.fork(), command)


DECIDERS: Final[dict[type[Command], Callable[[ClusterState, Any], Decision]]] = {
    commands.BeginEpoch: decide_begin_epoch,
    commands.SubmitTasks: decide_submit,
    commands.CancelTasks: decide_cancel,
    commands.HoldTasks: decide_hold,
    commands.ReleaseTasks: decide_hold,
    commands.ChangePriority: decide_priority,
    commands.RegisterNode: decide_register,
    commands.ChangeInventory: decide_inventory,
    commands.ObserveGpu: decide_observe,
    commands.ReportCheck: decide_check,
    commands.RecoverGpu: decide_recover,
    commands.ObserveCondition: decide_condition,
    commands.LoseNode: decide_lose,
    commands.ReleaseNode: decide_release,
    commands.DrainNode: decide_drain,
    commands.ResumeNode: decide_resume,
    commands.RemoveNode: decide_remove,
    commands.ReportStarted: decide_started,
    commands.ReportFinished: decide_end,
    commands.ReportWorkers: decide_workers,
    commands.SetQuota: decide_set_quota,
    commands.SetTenant: decide_set_tenant,
    commands.RemoveTenant: decide_remove_tenant,
    commands.CreateToken: decide_create_token,
    commands.RevokeToken: decide_revoke_token,
    commands.SetSecret: decide_set_secret,
    commands.DeleteSecret: decide_delete_secret,
    commands.Reseal: decide_reseal,
    commands.KeepAlertRecords: decide_keep_alerts,
    commands.RecordAudit: decide_record_audit,
    commands.SetService: decide_set_service,
    commands.ScaleService: decide_scale_service,
    commands.DeleteService: decide_delete_service,
    commands.StepServices: decide_step_services,
    commands.RunPass: decide_pass,
    commands.Tick: decide_tick,
    commands.ReadWallClock: decide_wall_clock,
}
