"""Unsent messages, per target and in order. Without I/O: it returns due deliveries and takes their results.

A target that does not answer keeps its messages, up to a bound; other targets do not wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from dgpu.service.alerts.values import Message

Outcome = Literal["sent", "retry", "given_up"]


class SendingRules(msgspec.Struct, frozen=True, kw_only=True):
    timeout_ms: int = 10_000  # of one attempt
    attempts: int = 10  # then the message is dropped
    retry_ms: int = 2_000  # doubles
    max_retry_ms: int = 300_000
    queue: int = 100  # messages of one target; beyond it the oldest are dropped


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str  # the same for all attempts, so that a receiver can detect a repetition
    target: str
    message: Message
    attempts: int = 0  # that failed
    due_at: int = 0


class TargetCounts(NamedTuple):
    """Counts since the start of the process."""

    queued: int
    sent: int
    failed: int  # attempts
    dropped: int  # messages
    last_error: str


class _Queue:
    __slots__ = ("dropped", "failed", "in_flight", "last_error", "sent", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        self.in_flight = False  # the first waiting delivery
        self.sent = self.failed = self.dropped = 0
        self.last_error = ""


class Outbox:
    def __init__(self, targets: Iterable[str], rules: SendingRules, kept: Iterable[Delivery] = ()) -> None:
        self._rules = rules
        self._queues = {name: _Queue() for name in targets}
        for delivery in kept:
            queue = self._queues.get(delivery.target)
            if queue is not None and len(queue.waiting) < rules.queue:
                queue.waiting.append(replace(delivery, due_at=0))  # after a restart, try at once

    def put(self, message: Message, message_id: str, now: int) -> list[Delivery]:
        """Queues the message for every target. Returns the deliveries that were dropped for it."""
        dropped = []
        for name, queue in self._queues.items():
            if len(queue.waiting) >= self._rules.queue:
                place = 1 if queue.in_flight and len(queue.waiting) > 1 else 0
                dropped.append(queue.waiting[place])
                del queue.waiting[place]
                queue.in_flight = queue.in_flight and place == 1
                queue.dropped += 1
            queue.waiting.append(Delivery(id=message_id, target=name, message=message, due_at=now))
        return dropped

    def take_due(self, now: int) -> list[Delivery]:
        """At most one per target. Each must be followed by `on_sent` or `on_failed`."""
        due = []
        for queue in self._queues.values():
            if queue.waiting and not queue.in_flight and queue.waiting[0].due_at <= now:
                queue.in_flight = True
                due.append(queue.waiting[0])
        return due

    def next_due_at(self) -> int | None:
        waiting = (
            queue.waiting[0].due_at
            for queue in self._queues.values()
            if queue.waiting and not queue.in_flight
        )
        return min(waiting, default=None)

    def on_sent(self, delivery: Delivery) -> None:
        queue = self._queues[delivery.target]
        queue.sent += 1
        queue.last_error = ""
        if self._is_first(queue, delivery):
            queue.waiting.popleft()
            queue.in_flight = False

    def on_failed(self, delivery: Delivery, error: str, now: int) -> Outcome:
        queue, rules = self._queues[delivery.target], self._rules
        queue.failed += 1
        queue.last_error = error
        if not self._is_first(queue, delivery):
            return "given_up"  # dropped and counted meanwhile
        queue.in_flight = False
        failed = delivery.attempts + 1
        if failed >= rules.attempts:
            queue.waiting.popleft()
            queue.dropped += 1
            return "given_up"
        pause_ms = min(rules.retry_ms << min(failed - 1, 30), max(rules.max_retry_ms, rules.retry_ms))
        queue.waiting[0] = replace(delivery, attempts=failed, due_at=now + pause_ms)
        return "retry"

    def counts(self, target: str) -> TargetCounts:
        queue = self._queues[target]
        return TargetCounts(len(queue.waiting), queue.sent, queue.failed, queue.dropped, queue.last_error)

    def kept(self) -> tuple[Delivery, ...]:
        return tuple(delivery for queue in self._queues.values() for delivery in queue.waiting)

    @staticmethod
    def _is_first(queue: _Queue, delivery: Delivery) -> bool:
        return queue.in_flight and bool(queue.waiting) and queue.waiting[0].id == delivery.id
