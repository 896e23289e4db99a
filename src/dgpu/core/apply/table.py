"""apply(state, event): the only place that changes the state. An event is never refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dgpu.core import events
from dgpu.core.apply.alerts import apply_alert_records
from dgpu.core.apply.calls import apply_worker_changed
from dgpu.core.apply.credentials import (
    apply_resealed,
    apply_secret_deleted,
    apply_secret_set,
    apply_token_created,
    apply_token_revoked,
)
from dgpu.core.apply.dependencies import apply_held, apply_released
from dgpu.core.apply.health import (
    apply_blamed,
    apply_health,
    apply_run_succeeded,
    apply_stop_requested,
)
from dgpu.core.apply.holdings import apply_charged, apply_quota, apply_tenant_removed, apply_tenant_set
from dgpu.core.apply.learning import apply_condition, apply_demand, apply_learned, apply_typical
from dgpu.core.apply.node import (
    apply_draining,
    apply_epoch,
    apply_inventory,
    apply_lost,
    apply_observation,
    apply_registered,
    apply_removed,
    apply_resumed,
)
from dgpu.core.apply.reservation import apply_reserved
from dgpu.core.apply.services import apply_service_deleted, apply_service_set
from dgpu.core.apply.task import (
    apply_calls_failed,
    apply_cancel_requested,
    apply_cancelled,
    apply_finished,
    apply_forgotten,
    apply_gang_placed,
    apply_keys_forgotten,
    apply_placed,
    apply_priority,
    apply_rank_ended,
    apply_requeued,
    apply_started,
    apply_submitted,
)
from dgpu.core.events import Event
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import apply_wall_clock


def apply(state: ClusterState, event: Event) -> None:
    APPLIERS[type(event)](state, event)
    if event.at > state.last_at:  # noqa: PLR1730 - for every event, and max() is a call
        state.last_at = event.at


def apply_nothing(_state: ClusterState, _event: Event) -> None:
    """For the history, the audit log or the store of results only."""


APPLIERS: Final[dict[type[Event], Callable[[ClusterState, Any], None]]] = {
    events.EpochBegan: apply_epoch,
    events.TasksSubmitted: apply_submitted,
    events.TaskPlaced: apply_placed,
    events.TaskStarted: apply_started,
    events.TaskFinished: apply_finished,
    events.TaskRequeued: apply_requeued,
    events.TaskCancelRequested: apply_cancel_requested,
    events.TasksCancelled: apply_cancelled,
    events.GangPlaced: apply_gang_placed,
    events.RankEnded: apply_rank_ended,
    events.TasksHeld: apply_held,
    events.TasksReleased: apply_released,
    events.PriorityChanged: apply_priority,
    events.TasksForgotten: apply_forgotten,
    events.KeysForgotten: apply_keys_forgotten,
    events.NodeRegistered: apply_registered,
    events.InventoryChanged: apply_inventory,
    events.NodeLost: apply_lost,
    events.NodeDraining: apply_draining,
    events.NodeResumed: apply_resumed,
    events.NodeRemoved: apply_removed,
    events.ObservationChanged: apply_observation,
    events.TaskStopRequested: apply_stop_requested,
    events.GpuHealthChanged: apply_health,
    events.GpuBlamed: apply_blamed,
    events.GpuRunSucceeded: apply_run_succeeded,
    events.QuotaChanged: apply_quota,
    events.TenantSet: apply_tenant_set,
    events.TenantRemoved: apply_tenant_removed,
    events.UsageCharged: apply_charged,
    events.ConditionChanged: apply_condition,
    events.TypicalChanged: apply_typical,
    events.EstimateLearned: apply_learned,
    events.DemandChanged: apply_demand,
    events.TasksReserved: apply_reserved,
    events.TokenCreated: apply_token_created,
    events.TokenRevoked: apply_token_revoked,
    events.SecretSet: apply_secret_set,
    events.SecretDeleted: apply_secret_deleted,
    events.Resealed: apply_resealed,
    events.WallClockRead: apply_wall_clock,
    events.AlertRecordsKept: apply_alert_records,
    events.ServiceSet: apply_service_set,
    events.ServiceDeleted: apply_service_deleted,
    events.Audited: apply_nothing,
    events.AttemptMeasured: apply_nothing,
    events.CallReturned: apply_nothing,
    events.WorkerChanged: apply_worker_changed,
    events.CallsFailed: apply_calls_failed,
}
