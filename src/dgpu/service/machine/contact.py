"""When each node was last heard and last told something, and what follows from silence.

Why a task never runs twice at the same time because of a lost node:

1. A word to a node renews its leases. The keeper counts from the moment at which the agent *sent* what that word
   answers (its Register or Heartbeat), never from the arrival of the answer. So a word that lay in a buffer for a
   minute renews nothing.
2. The scheduler notes the moment of every word it sends, before it leaves. That moment is later than the one the
   keeper counts from. So at `told_at + task_lease` the keeper has frozen everything (or stopped it), whatever the
   network did in between; both sides count on clocks that never go back, and the margin covers their drift and the
   time that freezing takes.
3. ReleaseNode is asked for at `told_at + task_lease + margin`, never before. Only ReleaseNode, a new boot of the
   machine, a registration that does not name the lease, or an operator gives a lease away.
4. A scheduler that just started does not know what its predecessor said; it counts as if it had spoken to every node
   at its own start, and the predecessor was dead by then (it holds a lock, or a higher epoch fences it). It gives its
   agents the time of the task lease to come back before it counts one of them as lost.
5. A node that comes back is told in Welcome which of its leases still stand, after that is durable. It thaws those and
   kills the others, before it starts anything new.

With `lease_action: never` the keeper freezes nothing, so time alone proves nothing and nothing is released by it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Literal

import msgspec

from dgpu.core.commands import Command, LoseNode, ReleaseNode
from dgpu.core.model.ids import NodeId
from dgpu.core.state import ClusterState

LeaseAction = Literal["freeze", "stop", "never"]

_ASK_AGAIN_MS = 5_000
_CLOCK_READINGS = 3
_NAP_MS = 3_000  # a scheduler that was stopped this long cannot blame the others for silence


class AgentRules(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_timeout_ms: int = 15_000
    task_lease_ms: int = 60_000
    lease_action: LeaseAction = "freeze"
    lease_margin_ms: int = 5_000


class NodeContact(msgspec.Struct, frozen=True, kw_only=True):
    connected: bool
    heard_at: int  # 0: not since this scheduler started
    clock_ahead_ms: int = 0  # the node's wall clock compared with the scheduler's; 0 also while not known


class _Times:
    __slots__ = ("clocks_ahead_ms", "heard_at", "lose_asked_at", "release_asked_at", "told_at")

    def __init__(self) -> None:
        self.heard_at = 0
        self.told_at = 0
        self.lose_asked_at = 0
        self.release_asked_at = 0
        self.clocks_ahead_ms: tuple[int, ...] = ()  # as the last few heartbeats said


class Contacts:
    def __init__(self, state: ClusterState, rules: AgentRules, started_at: int) -> None:
        self._state = state
        self._rules = rules
        self._started_at = started_at
        self._awake_since = started_at
        self._last_look_at = started_at
        self._times: dict[NodeId, _Times] = {}

    def heard(self, node_id: NodeId, now: int) -> None:
        self._of(node_id).heard_at = now

    def told(self, node_id: NodeId, now: int) -> None:
        self._of(node_id).told_at = now

    def heard_at(self, node_id: NodeId) -> int:
        times = self._times.get(node_id)
        return times.heard_at if times else 0

    def clock_said(self, node_id: NodeId, ahead_ms: int) -> None:
        times = self._of(node_id)
        times.clocks_ahead_ms = (*times.clocks_ahead_ms, ahead_ms)[-_CLOCK_READINGS:]

    def clock_ahead_ms(self, node_id: NodeId) -> int:
        """The least of the last few: a heartbeat that was on its way for long looks like a clock that is behind."""
        times = self._times.get(node_id)
        readings = times.clocks_ahead_ms if times else ()
        return min(readings, key=abs) if len(readings) == _CLOCK_READINGS else 0

    def is_fresh(self, node_id: NodeId, now: int) -> bool:
        return now - self.heard_at(node_id) < self._rules.heartbeat_timeout_ms

    def overdue(self, now: int) -> Iterator[Command]:
        """What silence asks for by now. Each is asked for again only after a while."""
        if now - self._last_look_at > _NAP_MS:
            self._awake_since = now
        self._last_look_at = now
        for node_id, node in self._state.nodes.items():
            times = self._of(node_id)
            if not node.offline_since:
                if self._is_silent(times, now) and now - times.lose_asked_at >= _ASK_AGAIN_MS:
                    times.lose_asked_at = now
                    seconds = (now - max(times.heard_at, self._started_at)) // 1_000
                    yield LoseNode(node_id=node_id, reason=f"no heartbeat for {seconds} s")
            elif self._is_release_due(node_id, times, now):
                times.release_asked_at = now
                yield ReleaseNode(node_id=node_id, reason="task lease over")

    def forget_removed(self, registering: Container[NodeId]) -> None:
        for node_id in [n for n in self._times if n not in self._state.nodes and n not in registering]:
            del self._times[node_id]

    def _of(self, node_id: NodeId) -> _Times:
        times = self._times.get(node_id)
        if times is None:
            times = self._times[node_id] = _Times()
        return times

    def _is_silent(self, times: _Times, now: int) -> bool:
        rules = self._rules
        if not times.heard_at:
            # Agents look for a scheduler less and less often while there is none; it is not theirs to answer for.
            return now - self._awake_since >= max(rules.heartbeat_timeout_ms, rules.task_lease_ms)
        return now - max(times.heard_at, self._awake_since) >= rules.heartbeat_timeout_ms

    def _is_release_due(self, node_id: NodeId, times: _Times, now: int) -> bool:
        return (
            self._is_lease_over(times, now)
            and now - times.release_asked_at >= _ASK_AGAIN_MS
            and bool(self._state.node_leases(node_id))
        )

    def _is_lease_over(self, times: _Times, now: int) -> bool:
        if self._rules.lease_action == "never":
            return False
        since_told_ms = now - max(times.told_at, self._started_at)
        return since_told_ms >= self._rules.task_lease_ms + self._rules.lease_margin_ms
