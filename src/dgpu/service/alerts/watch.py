"""Alerts in the loop: checks every few seconds, sends messages in the background, stores lasting changes.

Nothing here may delay the scheduler: the state is read in one step, and files and mails are left to threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from dgpu.core.commands import KeepAlertRecords
from dgpu.core.rejections import Rejection
from dgpu.journal.journal import Room
from dgpu.service.access.principal import Tenants
from dgpu.service.alerts.bodies import change_stream_text
from dgpu.service.alerts.machine import AlertMachine
from dgpu.service.alerts.options import AlertOptions
from dgpu.service.alerts.outbox import Delivery, Outbox, TargetCounts
from dgpu.service.alerts.readers import alert_for
from dgpu.service.alerts.readings import EndedTasks, read_state
from dgpu.service.alerts.records import NOTICES, AlertRecords, Kept, load
from dgpu.service.alerts.rules import OffClock, Readings, findings
from dgpu.service.alerts.senders import Senders, SendFailed
from dgpu.service.alerts.shared_readings import read_shared
from dgpu.service.alerts.targets import Target
from dgpu.service.alerts.values import Alert, AlertState, Change, Message, Silence
from dgpu.service.alerts.worker_rules import TroubledWorkers
from dgpu.service.leadership.standing import Lone, Standing
from dgpu.service.loop.failures import NotMaster, OutcomeUnknown
from dgpu.service.loop.runtime import Runtime
from dgpu.wire.alert_answers import AlertCounts

_LONGEST_NAP_S = 60.0
_STOP_PATIENCE_S = 2.0
_MAX_LOG_LINES = 5  # of one kind in one check

_MAX_COUNTS = 128  # audiences whose counts are kept

TextFor = Callable[[Tenants], bytes]
_log = structlog.get_logger("dgpu.alerts")


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    ok: bool
    detail: str
    seconds: float


class NotKept(Exception):  # noqa: N818 - the name states the failure
    """The requested change could not be stored, so it was not made."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.code)
        self.rejection = rejection


class AlertWatch:
    """Create it in the serving loop. `start` begins the checks, `stop` stores the remaining changes.

    `stored`: the records of the journal.
    """

    def __init__(
        self,
        options: AlertOptions,
        runtime: Runtime,
        folder: Path,
        stored: Mapping[str, bytes],
        standing: Standing | None = None,
    ) -> None:
        self.options = options
        self._standing = standing or Lone()
        self._runtime = runtime
        self._folder = folder
        stored = {name: content for name, content in stored.items() if not name.startswith(NOTICES)}
        self._records = AlertRecords(stored)
        kept = load(stored)
        self.machine = AlertMachine(options.machine, kept.alerts)
        self._targets = {target.name: target for target in options.targets}
        self._outbox = Outbox(self._targets, options.sending, kept.unsent)
        self._senders = Senders(options.sending.timeout_ms)
        self._ended = EndedTasks(options.machine.rules.failure_rate.window_ms)
        self._troubled = TroubledWorkers(options.machine.rules.worker_down.window_ms)
        self._listeners: list[Callable[[TextFor], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._disk: tuple[int, int] | None = None
        self._disk_look: asyncio.Task[None] | None = None
        self._to_send = asyncio.Event()
        self._changed = 0  # grows with every change that must be stored
        self._saved = 0
        self._counts: dict[Tenants, AlertCounts] = {}  # as of the change `_counted`
        self._counted = 0
        self._saving = asyncio.Lock()
        self._save: asyncio.Task[None] | None = None
        self._save_failed = False
        self._unsubscribe: list[Callable[[], None]] = []
        self.testing = False

    async def start(self) -> None:
        seen_by = (self._ended.on_group, self._troubled.on_group)
        self._unsubscribe = [self._runtime.subscribe(listener) for listener in seen_by]
        for work in (self._look_on(), self._send_on()):
            self._keep(asyncio.create_task(work))

    async def stop(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for task in tuple(self._tasks):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE_S):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._senders.close()
        self._changed += 1
        # The next master has what was stored before. An engine without majority must not hold up the end.
        with contextlib.suppress(NotMaster, OutcomeUnknown, TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE_S):
                await self.save()

    # Checks

    async def look(self) -> list[Change]:
        """One check: returns alerts that began and alerts that ended."""
        now = self._runtime.now_ms()
        rules = self.options.machine.rules
        readings = await self._runtime.read(
            lambda state: read_state(
                state, self._runtime.telemetry, rules, max(now, state.last_at), self._troubled
            )
        )
        changes = self.machine.on_findings(findings(self._whole(readings), rules), readings.at)
        _tell_log(changes)
        messages = self.machine.take_messages(readings.at)
        if changes or messages:
            self._changed += 1
            self._send_soon(messages, readings.at)
            self._publish(changes)
        return changes

    def _whole(self, readings: Readings) -> Readings:
        ended, failed = self._ended.totals(readings.at)
        free, total = self._disk or (None, 0)
        return readings._replace(
            ended=ended,
            failed=failed,
            disk_free_bytes=free,
            disk_total_bytes=total,
            journal_full=self._runtime.room is not Room.OK and not self._runtime.trouble,
            epoch_unknown=self._runtime.epoch_unknown,
            journal_trouble=self._runtime.trouble,
            journal_repaired=self._runtime.repairs.of_late,
            clocks=self._clocks(),
            shared=read_shared(self._standing),
        )

    def _clocks(self) -> tuple[OffClock, ...]:
        jump = self._runtime.clock.recent_jump()
        own = () if jump is None else (OffClock("scheduler", jump.by_ms),)
        return (*own, *(OffClock(node, ahead_ms) for node, ahead_ms in self._runtime.clocks_ahead().items()))

    async def _look_on(self) -> None:
        while True:
            try:
                self._look_at_disk()
                await self.look()
                self._save_soon()
            except (NotMaster, OutcomeUnknown):
                return  # the next master has a watch of its own
            except Exception:  # noqa: BLE001 - a bug here must not end the watch, nor the scheduler
                _log.exception("alerts_look_failed")
            await asyncio.sleep(self.options.interval_ms / 1_000)

    def _save_soon(self) -> None:
        """Beside the checks: while nothing can be stored, they must go on, and tell that nothing can be stored."""
        if self._saved != self._changed and (self._save is None or self._save.done()):
            self._save = asyncio.create_task(self._save_quietly())
            self._keep(self._save)

    async def _save_quietly(self) -> None:
        try:
            await self.save()
        except (NotMaster, OutcomeUnknown):
            pass  # the next master has what was stored before
        except Exception:  # noqa: BLE001 - a bug here must not end the scheduler
            _log.exception("alerts_not_saved")

    def _look_at_disk(self) -> None:
        """Runs beside the check, one at a time: a dead network disk never answers."""
        if self._disk_look is None or self._disk_look.done():
            self._disk_look = asyncio.create_task(self._measure_disk())
            self._keep(self._disk_look)

    async def _measure_disk(self) -> None:
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, self._folder)
        except OSError as error:
            self._disk = None
            _log.warning("alerts_disk_unknown", error=error.strerror)
        else:
            self._disk = (usage.free, usage.total)

    # Changes by users

    async def acknowledge(self, number: int, comment: str) -> Alert | None:
        before = self.machine.find(number)
        change = self.machine.acknowledge(number, comment, self._runtime.now_ms())
        if change is None or before is None:
            return None
        await self._changed_by_hand(
            [change], lambda: self.machine.forget_acknowledgement(change.alert, before)
        )
        return change.alert

    async def silence(self, rule: str, subject: str | None, until: int, comment: str) -> Silence | None:
        made = self.machine.silence(rule, subject, until, comment, self._runtime.now_ms())
        if made is None:
            return None
        silence, changes = made
        await self._changed_by_hand(changes, lambda: self.machine.forget_silence(silence.number))
        return silence

    async def unsilence(self, number: int) -> bool:
        silence = self.machine.silences.get(number)
        changes = self.machine.unsilence(number, self._runtime.now_ms())
        if changes is None or silence is None:
            return False
        await self._changed_by_hand(changes, lambda: self.machine.bring_back_silence(silence))
        return True

    async def _changed_by_hand(self, changes: list[Change], undo: Callable[[], None]) -> None:
        """Raises NotKept. A change that a restart would lose is undone."""
        self._changed += 1  # a silence counts even if it matches no alert yet
        try:
            rejection = await self.save()
        except (NotMaster, OutcomeUnknown):
            undo()
            raise
        if rejection is not None:
            undo()
            self._changed += 1
            raise NotKept(rejection)
        self._publish(changes)

    def now_ms(self) -> int:
        return self._runtime.now_ms()

    # Queries

    def counts(self, tenants: Tenants = None) -> AlertCounts:
        """Of the alerts that readers of these tenants get."""
        if self._counted != self._changed or len(self._counts) > _MAX_COUNTS:
            self._counts, self._counted = {}, self._changed
        if tenants not in self._counts:
            alerts = (alert for alert in self.machine.listed() if alert_for(tenants, alert) is not None)
            numbers = Counter(alert.state for alert in alerts)
            self._counts[tenants] = AlertCounts(
                **{state.value: numbers[state] for state in AlertState},
            )
        return self._counts[tenants]

    def target_counts(self) -> list[tuple[Target, TargetCounts]]:
        return [(target, self._outbox.counts(name)) for name, target in self._targets.items()]

    def listen(self, listener: Callable[[TextFor], None]) -> Callable[[], None]:
        """Passes on every change, as a function that returns its text of server-sent events for some tenants."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _publish(self, changes: list[Change]) -> None:
        if changes and self._listeners:
            now = self._runtime.now_ms()
            for listener in tuple(self._listeners):
                listener(lambda tenants: change_stream_text(changes, self.machine, now, tenants))

    # Sending

    async def test(self) -> list[Tested]:
        """One attempt to every target, now, beside the queue."""
        message = Message(state="test", rule="test", severity="info", at=self._runtime.now_ms(), count=0)
        self.testing = True
        try:
            return await asyncio.gather(*(self._try(target, message) for target in self._targets.values()))
        finally:
            self.testing = False

    async def _try(self, target: Target, message: Message) -> Tested:
        began_s = time.monotonic()
        try:
            detail, ok = await self._senders.send(target, message, secrets.token_hex(8)), True
        except SendFailed as failed:
            detail, ok = str(failed), False
            _log.warning("alert_test_failed", target=target.name, address=target.address, error=detail)
        return Tested(target=target, ok=ok, detail=detail, seconds=round(time.monotonic() - began_s, 3))

    def _send_soon(self, messages: Iterable[Message], now: int) -> None:
        for message in messages:
            for dropped in self._outbox.put(message, secrets.token_hex(8), now):
                _log.warning(
                    "alert_message_dropped", target=dropped.target, reason="too many deliveries wait"
                )
        self._to_send.set()

    async def _send_on(self) -> None:
        while True:
            now = self._runtime.now_ms()
            for delivery in self._outbox.take_due(now):
                self._keep(asyncio.create_task(self._deliver(delivery)))
            due_at = self._outbox.next_due_at()
            nap_s = _LONGEST_NAP_S if due_at is None else min(_LONGEST_NAP_S, max(0, due_at - now) / 1_000)
            self._to_send.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(nap_s + 0.01):
                    await self._to_send.wait()

    async def _deliver(self, delivery: Delivery) -> None:
        target = self._targets[delivery.target]
        told = {"target": target.name, "address": target.address, "rule": delivery.message.rule}
        try:
            await self._senders.send(target, delivery.message, delivery.id)
        except SendFailed as failed:
            outcome = self._outbox.on_failed(delivery, str(failed), self._runtime.now_ms())
            name = "alert_message_dropped" if outcome == "given_up" else "alert_message_failed"
            _log.warning(name, **told, attempt=delivery.attempts + 1, error=str(failed))
        except Exception:  # noqa: BLE001 - a bug counts as a failed attempt
            _log.exception("alert_sender_failed", **told)
            self._outbox.on_failed(delivery, "an error in the scheduler itself", self._runtime.now_ms())
        else:
            self._outbox.on_sent(delivery)
            _log.info(
                "alert_message_sent", **told, state=delivery.message.state, count=delivery.message.count
            )
        self._changed += 1
        self._to_send.set()
        await self._save_quietly()

    # Storing

    async def save(self) -> Rejection | None:
        """Returns when all earlier changes are durable, or the refusal that prevented it."""
        async with self._saving:
            if self._saved == self._changed:
                return None
            changed = self._changed
            kept = Kept(alerts=self.machine.kept(), unsent=self._outbox.kept())
            for step in await asyncio.to_thread(self._records.changes, kept):
                answer = await self._runtime.execute(KeepAlertRecords(put=step.put, removed=step.removed))
                if isinstance(answer, Rejection):
                    if not self._save_failed:
                        _log.error("alerts_not_saved", reason=answer.code)
                    self._save_failed = True
                    return answer
                self._records.on_stored(step, kept)
            self._saved = changed
            self._save_failed = False
            return None

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tell_log(changes: list[Change]) -> None:
    """A storm is a few lines and a number."""
    told: Counter[str] = Counter()
    for name, alert in changes:
        if name not in {"firing", "resolved"}:
            continue
        told[name] += 1
        if told[name] <= _MAX_LOG_LINES:
            tell = _log.warning if name == "firing" else _log.info
            known = {"rule": alert.rule, "subject": alert.subject, "severity": alert.severity}
            tell(f"alert_{name}", **known, summary=alert.summary)
    for which, number in told.items():
        if number > _MAX_LOG_LINES:
            _log.warning(f"alert_{which}", count=number - _MAX_LOG_LINES, summary="more at the same time")
