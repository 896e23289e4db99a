"""Carries out the leadership machine: calls of the engine in threads, timers and callbacks in the loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from dgpu.journal.engine import (
    BelowFloor,
    Candidate,
    Engine,
    EngineRefused,
    EngineUnavailable,
    FenceLost,
    Term,
)
from dgpu.journal.errors import NotWritten
from dgpu.journal.journal import Group
from dgpu.service.leadership import words
from dgpu.service.leadership.machine import Leadership, LeadershipRules
from dgpu.service.leadership.shared import SharedJournal
from dgpu.service.loop.clock import ThisMachine

_PASS_S = 0.2
_CONFIRM_RETRY_S = 0.1
_THREADS = 4  # following or renewing, confirming, and one spare for each while the engine does not answer

_T = TypeVar("_T")
_log = structlog.get_logger("dgpu.leadership")


class Candidacy:
    """One attempt to lead, from following to stepping down. It is the Quorum of the runtime.

    `won` has the term when everything is read and the epoch may begin. `over` ends when the leadership is lost, with
    the reason, or when the engine or the local files refuse to go on, with the error.
    """

    def __init__(
        self,
        engine: Engine,
        journal: SharedJournal,
        candidate: Candidate,
        on_groups: Callable[[list[Group]], None],
        rules: LeadershipRules | None = None,
    ) -> None:
        self.machine = Leadership(rules)
        self._loop = asyncio.get_running_loop()
        self.won: asyncio.Future[Term] = self._loop.create_future()
        self.over: asyncio.Future[str] = self._loop.create_future()
        self._engine = engine
        self._journal = journal
        self._candidate = candidate
        self._on_groups = on_groups
        self._clock = ThisMachine()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="engine")
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[Callable[[], None]] = []
        # Both may refuse to go on.
        self.on_complete: Callable[[], None] = lambda: None  # once: the copy has all groups
        self.on_leader: Callable[[], None] = lambda: None  # another scheduler leads
        self._was_complete = False
        self._timer: asyncio.TimerHandle | None = None
        self._carry_out: dict[type[words.Output], Callable[[Any], None]] = {
            words.Follow: lambda _: self._spawn(self._follow()),
            words.Wait: lambda output: self._spawn(self._wait(output)),
            words.Campaign: lambda _: self._spawn(self._campaign()),
            words.Renew: lambda output: self._spawn(self._renew(output.term)),
            words.BeginEpoch: lambda output: self.won.set_result(output.term),
            words.StepDown: lambda output: self._end(output.why),
        }

    def start(self) -> None:
        self._pass()
        self._put(words.Open())

    async def close(self, *, resign: bool) -> None:
        """`resign`: everything is committed, and another scheduler may take over at once."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if resign and self.machine.term is not None and self.machine.has_key:
            try:
                await self._call(self._engine.resign, self.machine.term)
            except (EngineUnavailable, FenceLost) as error:
                _log.warning("not_resigned", reason=str(error))  # the lease ends by itself
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def journal(self) -> SharedJournal:
        return self._journal

    @property
    def last_index(self) -> int:
        return self._journal.last_index

    def step_down(self) -> None:
        """An append that waits for the engine ends."""
        self._journal.step_down()

    def now_ms(self) -> int:
        return self._clock.since_boot_ms()

    # For the runtime

    def may_act(self) -> bool:
        return self.machine.may_act(self.now_ms())

    def when_allowed(self, action: Callable[[], None]) -> None:
        self._held.append(action)

    def confirm(self, done: Callable[[], None]) -> None:
        self._spawn(self._confirm(done))

    def on_fenced(self, why: str) -> None:
        self._put(words.FenceGone(why=why))

    def on_state_differs(self, why: str) -> None:
        self._put(words.StateDiffers(why=why))

    # Driving the machine

    def _put(self, value: words.Input) -> None:
        for output in self.machine.on_input(value, self.now_ms()):
            self._carry_out[type(output)](output)

    def _pass(self) -> None:
        self._timer = self._loop.call_later(_PASS_S, self._pass)
        self._put(words.Passed())

    def _end(self, why: str) -> None:
        self._held.clear()
        if not self.over.done():
            self.over.set_result(why)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (FenceLost, BelowFloor) as error:
            # Below the floor, the next life begins with the engine's snapshot.
            self._put(words.FenceGone(why=str(error)))
        except Exception as error:  # noqa: BLE001 - an operator must act, or it is a bug: the service ends with it
            if not self.over.done():
                self.over.set_exception(error)

    async def _call(self, function: Callable[..., _T], *given: Any) -> _T:
        return await self._loop.run_in_executor(self._pool, functools.partial(function, *given))

    async def _follow(self) -> None:
        asked_at_ms = self.now_ms()
        try:
            leader = await self._call(self._engine.leader)
            while groups := await self._call(self._journal.catch_up):
                self._on_groups(groups)
            if not self._was_complete:
                self._was_complete = True
                self.on_complete()
            if self.machine.term is not None:
                await self._call(self._journal.lead, self.machine.term)
        except EngineUnavailable:
            self._put(words.Unavailable(to=words.Follow))
            return
        except NotWritten as error:
            if not self.machine.copy_trouble:  # once, not with every attempt
                _log.error("copy_not_written", reason=str(error))
            self._put(words.CannotCopy(why=str(error)))
            return
        if leader is not None and leader.candidate.is_closed:
            raise _goes_on_elsewhere(leader.candidate)
        if leader is not None and self.machine.term is None:
            self.on_leader()
        self._put(words.Followed(asked_at_ms=asked_at_ms, leader=leader))

    async def _wait(self, output: words.Wait) -> None:
        if output.is_pause:
            await asyncio.sleep(output.timeout_ms / 1_000)
        else:
            try:
                await self._call(self._engine.wait, self._journal.last_index, output.timeout_ms / 1_000)
            except EngineUnavailable:
                await asyncio.sleep(_CONFIRM_RETRY_S)
        self._put(words.Woke())

    async def _campaign(self) -> None:
        try:
            term = await self._call(self._engine.campaign, self._candidate)
        except EngineUnavailable:
            self._put(words.Unavailable(to=words.Campaign))
            return
        self._put(words.Campaigned(term=term))

    async def _renew(self, term: Term) -> None:
        sent_at_ms = self.now_ms()
        try:
            await self._call(self._engine.renew, term)
            await self._call(self._engine.confirm, term)
        except EngineUnavailable:
            self._put(words.Unavailable(to=words.Renew))
            return
        self._put(words.Renewed(sent_at_ms=sent_at_ms))
        if self._held and self.may_act():
            held, self._held = self._held, []
            for action in held:
                action()

    async def _confirm(self, done: Callable[[], None]) -> None:
        """Repeated until the engine answers: a later confirmation is as good."""
        while self.machine.term is not None:
            try:
                await self._call(self._engine.confirm, self.machine.term)
            except EngineUnavailable:
                await asyncio.sleep(_CONFIRM_RETRY_S)
            else:
                done()
                return


def _goes_on_elsewhere(candidate: Candidate) -> EngineRefused:
    return EngineRefused(
        f"this journal is {candidate.name} (dgpu ha leave). This scheduler can never lead again: stop its service. To "
        f"use this machine again, run dgpu ha init there, then dgpu ha join here with a new directory"
    )
