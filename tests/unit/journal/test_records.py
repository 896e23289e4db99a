"""Groups as bytes: every event survives, old schemas are read, newer ones are refused by name."""

import typing

import msgspec
import pytest

from dgpu.core import events
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.estimates import Estimate
from dgpu.core.model.health import Blame, Health
from dgpu.core.model.node import Kind, Node
from dgpu.core.model.quota import Quota
from dgpu.core.model.reservation import Place, Reservation
from dgpu.core.model.secrets import ResealedDetail, ResealedSecret, Secret
from dgpu.core.model.service import Replica, Service, ServiceSpec
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.model.typical import Typical
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.model.worker import LoadedModel
from dgpu.core.parts import Parts
from dgpu.wire.records import EVENT_TYPES, SCHEMA, UnreadableGroup, decode_group, encode_group
from dgpu.wire.upcast import upcast
from unit.journal.samples import busy_cluster, gpus, spec


def persisted() -> list[type[msgspec.Struct]]:
    """Every kind of value in a journal or a snapshot."""
    seen: dict[type[msgspec.Struct], None] = {}

    def walk(kind: object) -> None:
        for part in typing.get_args(kind):
            walk(part)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
            seen[kind] = None
            for field in msgspec.structs.fields(kind):
                walk(field.type)

    for kind in (*EVENT_TYPES, Parts):
        walk(kind)
    del seen[Parts]  # the snapshot has a form of its own
    return list(seen)


def test_every_kind_of_event_is_known_to_the_decoder() -> None:
    declared = {
        kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)
    }
    assert set(EVENT_TYPES) == declared - {events.Event}


TOKEN = Token(
    id="k1", name="ci", user="ann", role="user", keyed_hash=b"h" * 32, tenants=("lab",), scopes=("task.read",)
)
OF_TOKENS = (events.TokenCreated(22, TOKEN, ("k0",)), events.TokenRevoked(22, "k1"))
OF_SECRETS = (
    events.SecretSet(
        22, Secret(tenant_id="lab", name="KEY", sealed=b"\0\xff", version=2, set_by="ann", set_at=22)
    ),
    events.SecretDeleted(22, "lab/KEY"),
    events.Resealed(22, (ResealedSecret("lab/KEY", 2, b"c"),), (ResealedDetail((5, 6), b"{}"),)),
)
AUDITED = events.Audited(
    22, AuditEntry(user="ann", tenants=None, action="task.change", code="not_permitted", count=3)
)
OF_ALERTS = events.AlertRecordsKept(22, {"silence/1": b"{}"}, ("silence/2",))
MEASURED = events.AttemptMeasured(22, 5, 9, AttemptUsage(gpu_samples=3, gpu_percent=40, cpu_ms=7))
OF_CALLS = (
    events.CallReturned(22, 5, 9, b"\x93", "msgpack", "", 1, ""),
    events.WorkerChanged(22, 5, 9, True, (LoadedModel(name="llama", memory_mb=16_000, load_ms=900),), ""),
    events.CallsFailed(22, (5, 6), "no_worker", "no module named job"),
)
OF_SERVICES = (
    events.ServiceSet(
        22,
        Service(
            name="chat",
            tenant_id="lab",
            spec=ServiceSpec(task=spec(), port=8000),
            replicas=(Replica(task_id=5, generation=1, since=3, ready=True),),
            notes=((22, "created"),),
        ),
    ),
    events.ServiceDeleted(22, "lab/chat"),
)
OF_ACCESS = (*OF_SERVICES, *OF_TOKENS, *OF_SECRETS, AUDITED, OF_ALERTS, MEASURED, *OF_CALLS)


def test_every_kind_of_event_survives() -> None:
    group = [
        events.EpochBegan(1, 2, Settings(keep_finished=7)),
        events.TasksSubmitted(1, 5, ((3, spec()),), "key", "print"),
        events.TaskPlaced(1, 5, 9, 1, "n1", ("GPU-1",)),
        events.TaskStarted(2, 5, 9, 2),
        events.TaskFinished(3, 5, 9, TaskStatus.FAILED, 3, 1, "exit_code", "it failed"),
        events.TaskRequeued(3, 6, 10, 4, True, "node_fault", "disk"),
        events.TaskCancelRequested(4, 6, 10),
        events.TasksCancelled(4, (6, 7)),
        events.GangPlaced(4, 8, (events.TaskPlaced(4, 8, 11, 1, "n1", ("GPU-1",)),)),
        events.RankEnded(4, 8, 11, Outcome.EXITED, 4, 3, 0, "it failed", ""),
        events.TasksHeld(4, (9,)),
        events.TasksReleased(4, (9,)),
        events.PriorityChanged(4, 60, ((9, 50),)),
        events.TasksForgotten(5, (5,)),
        events.KeysForgotten(5, 1),
        events.NodeRegistered(6, Node(id="n1", boot_id="b"), gpus("n1", 2)),
        events.InventoryChanged(7, "n1", gpus("n1", 1)),
        events.NodeLost(8, "n1", "silent"),
        events.NodeDraining(9, "n1", "fan"),
        events.NodeResumed(10, "n1"),
        events.NodeRemoved(11, "n1"),
        events.ObservationChanged(12, "GPU-n1-0", 512, "xid"),
        events.TaskStopRequested(13, 6, 10, "gpu_fault", "Xid 79"),
        events.GpuHealthChanged(
            13, "GPU-n1-0", "n1", Health.TRUSTED, Health.QUARANTINED, "xid", "Xid 79", 1, 0
        ),
        events.GpuBlamed(14, "GPU-n1-0", "n1", Blame("lab", "python t.py", 6, 14)),
        events.GpuRunSucceeded(15, "GPU-n1-0", 6),
        events.ConditionChanged(16, "GPU-n1-0", 256, 1, 2, 1, ("llama",)),
        events.TypicalChanged(
            16, Typical(cpus_milli_per_gpu=4_000, prices=((Kind("T4", 14_000), 600),), counted=9)
        ),
        events.EstimateLearned(17, "a/model/m", Estimate(tenant_id="a", model="m", base_mb=4_800, ooms=1)),
        events.DemandChanged(17, 6, 6_144),
        events.QuotaChanged(18, Quota(online_ppm=600_000)),
        events.TenantSet(18, Tenant(id="lab", max_gpus=4, pools=(Pool.BATCH,))),
        events.TenantRemoved(19, "lab"),
        events.UsageCharged(20),
        events.TasksReserved(
            21,
            (Reservation(task_id=6, places=(Place("n1", ("GPU-n1-0",)),), at=9_000, made_at=21),),
            (7,),
        ),
        *OF_ACCESS,
        events.WallClockRead(22, 22, WallSpan("boot", 5, -40)),
    ]
    assert {type(event) for event in group} == set(EVENT_TYPES)
    assert decode_group(encode_group(group), SCHEMA) == group


def test_groups_of_a_busy_cluster_survive() -> None:
    for group in busy_cluster(steps=40).groups:
        assert tuple(decode_group(encode_group(group), SCHEMA)) == group


def test_a_field_that_is_new_at_the_end_gets_its_default_from_an_old_record() -> None:
    old = msgspec.msgpack.encode([["TaskCancelRequested", 4, 6]])
    assert decode_group(old, SCHEMA) == [events.TaskCancelRequested(4, 6)]


def test_a_record_of_a_newer_schema_is_refused_by_name() -> None:
    with pytest.raises(UnreadableGroup, match="newer version"):
        decode_group(b"", SCHEMA + 1)


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([["Unheard", 1]]), b"\x93"])
def test_bytes_that_are_no_group_are_refused(payload: bytes) -> None:
    with pytest.raises(UnreadableGroup):
        decode_group(payload, SCHEMA)


def test_an_old_group_walks_through_every_step() -> None:
    steps = {1: lambda group: [*group, "one"], 2: lambda group: [*group, "two"]}
    assert upcast(["event"], 1, 3, steps) == ["event", "one", "two"]
    assert upcast(["event"], 2, 3, steps) == ["event", "two"]


def test_a_missing_step_is_said() -> None:
    with pytest.raises(ValueError, match="from schema 1 to 2"):
        upcast([], 1, 2, {})


def test_a_field_that_this_version_does_not_know_is_refused_and_not_dropped() -> None:
    """An older reader that drops a field silently makes another state of the same journal."""

    class Longer(msgspec.Struct, frozen=True, array_like=True, tag="NodeResumed"):
        at: int
        node_id: str
        added: int

    with pytest.raises(UnreadableGroup, match="at most length"):
        decode_group(msgspec.msgpack.encode([Longer(1, "n1", 7)]), SCHEMA)


@pytest.mark.parametrize("kind", persisted(), ids=lambda kind: kind.__name__)
def test_nothing_that_is_kept_drops_unknown_fields(kind) -> None:
    assert kind.__struct_config__.forbid_unknown_fields
