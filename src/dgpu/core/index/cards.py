"""Computes from the facts about a node's GPUs which GPUs it can give to tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgpu.core.index.room import Card, Room
from dgpu.core.model.health import SERVING, Health
from dgpu.core.model.node import Gpu, GpuStatus, Kind, Node
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.score import card_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from dgpu.core.model.ids import GpuId
    from dgpu.core.model.lease import Lease
    from dgpu.core.model.settings import Settings


def deal(
    room: Room, gpus: Sequence[Gpu], leases: Iterable[Lease], held: Container[GpuId], settings: Settings
) -> None:
    """The GPUs of a room: all, idle ones and shared ones."""
    room.cards = {
        gpu.id: _card(gpu, settings)
        for gpu in gpus
        if not (gpu.reserved or gpu.fault or gpu.gone) and gpu.health in SERVING
    }
    cards = room.cards.values()
    room.near = {gpu.id: dict(gpu.near) for gpu in gpus if gpu.near}
    room.flat = len({near for gpu in gpus for _, near in gpu.near}) <= 1
    room.warm = any(card.warm for card in cards)
    room.mixed = len({(card.model, card.usable_mb, card.parole) for card in cards}) > 1
    room.idle, room.used, room.parts, room.kept = [], {}, {}, []
    if room.ready:
        room.idle = sorted(card for card in cards if card.id not in held)
        for lease in leases:
            if lease.share_milli < WHOLE_MILLI:
                for gpu_id in lease.gpu_ids:
                    room.use(gpu_id, lease.share_milli, lease.gpu_memory_mb)


def status_of(gpu: Gpu, node: Node, *, leased: bool) -> GpuStatus:
    if node.offline_since or gpu.gone:
        return GpuStatus.OFFLINE
    if gpu.fault or gpu.health not in SERVING:
        return GpuStatus.ERROR
    if leased:
        return GpuStatus.BUSY
    if node.unconfirmed_since:
        return GpuStatus.UNCONFIRMED
    if node.draining:
        return GpuStatus.DRAINING
    return GpuStatus.RESERVED if gpu.reserved else GpuStatus.IDLE


def usable_mb(gpu: Gpu, settings: Settings) -> int:
    """The memory that may be promised on an idle GPU."""
    return max(0, gpu.memory_in_steps_mb - settings.memory_margin_mb - gpu.foreign_mb)


def _card(gpu: Gpu, settings: Settings) -> Card:
    usable = usable_mb(gpu, settings)
    parole = gpu.health is Health.PAROLE
    return Card(
        key=card_key(gpu, usable),
        place=gpu.index,
        id=gpu.id,
        model=gpu.model,
        usable_mb=usable,
        parole=parole,
        over_mb=gpu.over_mb,
        warm=gpu.warm,
        max_warm=settings.max_models_per_gpu,
        kind=Kind(gpu.model, usable, parole),
    )
