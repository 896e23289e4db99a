"""Notices in the loop: made after a commit, stored in the journal, sent in the background with retries.

A target that does not answer delays neither the scheduler nor other targets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import structlog
from msgspec.structs import replace

from dgpu.core.commands import KeepAlertRecords
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.alerts.bodies import Letter
from dgpu.service.alerts.outbox import SendingRules
from dgpu.service.alerts.records import NOTICES as RECORD
from dgpu.service.alerts.senders import Senders, SendFailed
from dgpu.service.loop.failures import NotMaster, OutcomeUnknown
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.notices.machine import NoticeMachine
from dgpu.service.notices.reach import NoTarget, NoticeTargets
from dgpu.service.notices.values import MAX_UNSENT, MAX_UNSENT_OF_TENANT, Notice
from dgpu.wire.answers import instant_or_none

_AT_ONCE = 8  # attempts at the same time
_STOP_PATIENCE_S = 2.0
_NOTHING_S = 3_600.0
_log = structlog.get_logger("dgpu.notices")


class NoticeWatch:
    def __init__(
        self,
        runtime: Runtime,
        state: ClusterState,
        targets: NoticeTargets,
        rules: SendingRules,
        stored: Mapping[str, bytes],
    ) -> None:
        self._runtime = runtime
        self._state = state
        self.targets = targets
        self._rules = rules
        self._machine = NoticeMachine()
        self._senders = Senders(rules.timeout_ms)
        self._unsent: dict[str, Notice] = dict(_load(stored))
        self._due: dict[str, int] = dict.fromkeys(self._unsent, 0)
        self._in_flight: set[str] = set()
        self._stored = set(self._unsent)
        self._to_store: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._unsubscribe = self._runtime.subscribe(self._on_group)
        self._keep(asyncio.create_task(self._work(), name="notices"))

    async def stop(self) -> None:
        self._unsubscribe()
        for task in tuple(self._tasks):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE_S):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._senders.close()
        # The next master has what was stored before. An engine without majority must not hold up the end.
        with contextlib.suppress(NotMaster, OutcomeUnknown, TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE_S):
                await self._save()

    def _on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            for notice in self._machine.on_event(self._state, event):
                self._put(notice)

    def _put(self, notice: Notice) -> None:
        of_tenant = Counter(each.tenant_id for each in self._unsent.values())[notice.tenant_id]
        if len(self._unsent) >= MAX_UNSENT or of_tenant >= MAX_UNSENT_OF_TENANT:
            _log.warning("notice_dropped", task=notice.task_id, to=notice.to, reason="too many wait")
            return
        self._unsent[notice.id] = notice
        self._due[notice.id] = 0
        self._to_store.add(notice.id)
        self._wake.set()

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._save()
            except (NotMaster, OutcomeUnknown):
                return  # the next master has what was stored
            now = self._runtime.now_ms()
            for name in self._first_of_targets():
                if self._due[name] <= now and len(self._in_flight) < _AT_ONCE:
                    self._in_flight.add(name)
                    self._keep(asyncio.create_task(self._send(self._unsent[name])))
            later = [self._due[name] for name in self._first_of_targets() if self._due[name] > now]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((min(later) - now) / 1_000 if later else _NOTHING_S):
                    await self._wake.wait()

    def _first_of_targets(self) -> list[str]:
        """One of each target, none while one is on its way: messages arrive in their order."""
        first: dict[tuple[str, str], str] = {}
        for name, notice in self._unsent.items():
            first.setdefault((notice.tenant_id, notice.to), name)
        return [name for name in first.values() if name not in self._in_flight]

    async def _send(self, notice: Notice) -> None:
        told = {"task": notice.task_id, "to": notice.to, "attempt": notice.attempts + 1}
        try:
            secrets = await self._runtime.read(lambda state: dict(state.secrets))
            target = self.targets.find(notice.tenant_id, notice.to, secrets)
            await self._senders.send_letter(target, letter_of(notice), notice.id)
        except NoTarget as error:
            self._drop(notice)
            _log.warning("notice_dropped", **told, reason=str(error))
        except SendFailed as error:
            failed = replace(notice, attempts=notice.attempts + 1)
            if failed.attempts >= self._rules.attempts:
                self._drop(notice)
                _log.warning("notice_dropped", **told, reason=str(error))
            else:
                pause_ms = min(self._rules.retry_ms << min(notice.attempts, 30), self._rules.max_retry_ms)
                self._unsent[notice.id] = failed
                self._due[notice.id] = self._runtime.now_ms() + pause_ms
                self._to_store.add(notice.id)
                _log.warning("notice_failed", **told, error=str(error))
        except (NotMaster, OutcomeUnknown):
            pass
        except Exception:  # noqa: BLE001 - a bug must not repeat for ever
            self._drop(notice)
            _log.exception("notice_sender_failed", **told)
        else:
            self._drop(notice)
            _log.info("notice_sent", **told)
        finally:
            self._in_flight.discard(notice.id)
            self._wake.set()

    def _drop(self, notice: Notice) -> None:
        self._unsent.pop(notice.id, None)
        self._due.pop(notice.id, None)

    async def _save(self) -> None:
        """A notice that cannot be stored is sent all the same."""
        put = {
            RECORD + name: msgspec.json.encode(self._unsent[name])
            for name in sorted(self._to_store)
            if name in self._unsent
        }
        gone = self._stored - self._unsent.keys()
        self._to_store.clear()
        if not put and not gone:
            return
        answer = await self._runtime.execute(
            KeepAlertRecords(put=put, removed=tuple(sorted(RECORD + name for name in gone)))
        )
        if isinstance(answer, Rejection):
            _log.error("notices_not_saved", reason=answer.code)
            return
        self._stored = (self._stored - gone) | {name.removeprefix(RECORD) for name in put}

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def letter_of(notice: Notice) -> Letter:
    body = {
        "type": "task",
        "event": notice.event,
        "task_id": notice.task_id,
        "name": notice.name,
        "tenant_id": notice.tenant_id,
        "status": notice.status,
        "node": notice.node,
        "exit_code": notice.exit_code,
        "reason": notice.reason,
        "error": notice.error,
        "array_count": notice.count or None,
        "array_failed": notice.failed if notice.count else None,
        "started_at": instant_or_none(notice.started_at),
        "finished_at": instant_or_none(notice.finished_at),
        "summary": notice.summary,
    }
    is_bad = notice.status == "failed" or notice.failed > 0
    kind = "info" if notice.event == "start" else "failure" if is_bad else "success"
    more = f"To see it: dgpu show {notice.task_id}, dgpu logs {notice.task_id}"
    return Letter(
        title=f"[dgpu] {notice.summary}",
        text=f"{notice.summary}.\n\n{more}",
        body=msgspec.json.encode(body),
        kind=kind,
        event="task",
    )


def _load(stored: Mapping[str, bytes]) -> list[tuple[str, Notice]]:
    found = []
    for name in sorted(stored):
        if not name.startswith(RECORD):
            continue
        try:
            found.append((name.removeprefix(RECORD), msgspec.json.decode(stored[name], type=Notice)))
        except msgspec.MsgspecError as error:
            _log.error("notice_damaged", record=name, error=str(error))
    return found
