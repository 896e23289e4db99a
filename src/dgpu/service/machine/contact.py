"""The last contact with each node in both directions, and the consequences of silence.

Why a lost node never makes a task run twice at the same time:

1. A message to a node renews its leases. The keeper counts from the moment when the agent *sent* the message that is
   answered (its Register or Heartbeat), never from the arrival of the answer. So an answer that was in a buffer for a
   minute renews nothing.
2. The scheduler notes the time of every message before sending it. That time is later than the one from which the
   keeper counts. So at `told_at + task_lease` the keeper has frozen or stopped everything, whatever the network did in
   between. Both sides use clocks that never go back. The margin covers their drift and the time that freezing takes.
3. ReleaseNode is issued at `told_at + task_lease + margin`, never earlier. A lease is released only by ReleaseNode, a
   new boot of the machine, a registration that does not name the lease, or an operator.
4. A new scheduler does not know the messages of its predecessor. It counts as if it had sent a message to every node at
   its own start; a standby, at the moment when it takes over. The predecessor was dead by then: it holds a lock, or a
   higher epoch fences it, or it lost the leader key and gets no confirmation any more. The new scheduler gives agents
   the time of the task lease to come back before it counts a node as lost.
5. Welcome tells a returning node which of its leases are still valid, after that is durable. The node thaws those and
   kills the others before it starts anything new.
6. While the engine of the journal does not answer, the scheduler is silent, not the nodes. No silence of a node counts
   meanwhile, and afterwards each node has the time of the task lease to be heard.

With `lease_action: never` the keeper freezes nothing. Time then proves nothing and releases no lease.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Literal

import msgspec

from dgpu.core.commands import Command, LoseNode, ReleaseNode
from dgpu.core.model.ids import NodeId
from dgpu.core.state import ClusterState
from dgpu.wire.isolation import Isolation

LeaseAction = Literal["freeze", "stop", "never"]

_ASK_AGAIN_MS = 5_000
_CLOCK_READINGS = 3
_NAP_MS = 3_000  # a scheduler that was suspended this long must not blame nodes for silence


class AgentRules(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_timeout_ms: int = 15_000
    task_lease_ms: int = 60_000
    lease_action: LeaseAction = "freeze"
    lease_margin_ms: int = 5_000
    isolation: Isolation = Isolation()
    rest_url: str = ""  # as in Welcome
    other_rest_urls: Callable[[], Sequence[str]] = tuple  # at present: schedulers come and go


class NodeContact(msgspec.Struct, frozen=True, kw_only=True):
    connected: bool
    heard_at: int  # 0: not since this scheduler started
    clock_ahead_ms: int = 0  # the node's wall clock compared with the scheduler's; 0 also while unknown


class _Times:
    __slots__ = ("clocks_ahead_ms", "heard_at", "lose_asked_at", "release_asked_at", "told_at")

    def __init__(self) -> None:
        self.heard_at = 0
        self.told_at = 0
        self.lose_asked_at = 0
        self.release_asked_at = 0
        self.clocks_ahead_ms: tuple[int, ...] = ()  # from the last few heartbeats


class Contacts:
    def __init__(self, state: ClusterState, rules: AgentRules, started_at: int) -> None:
        self._state = state
        self._rules = rules
        self._started_at = started_at
        self._awake_since = started_at
        self._last_look_at = started_at
        self._stalled_until = 0  # the scheduler itself was silent
        self._times: dict[NodeId, _Times] = {}

    def begin(self, now: int) -> None:
        """The scheduler takes over now: every earlier message was of its predecessor."""
        self._started_at = self._awake_since = self._last_look_at = now

    def stalled(self, now: int) -> None:
        self._stalled_until = self._last_look_at = now

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
        """The smallest of the last values: a heartbeat that was delayed looks like a clock that is behind."""
        times = self._times.get(node_id)
        readings = times.clocks_ahead_ms if times else ()
        return min(readings, key=abs) if len(readings) == _CLOCK_READINGS else 0

    def is_fresh(self, node_id: NodeId, now: int) -> bool:
        return now - self.heard_at(node_id) < self._rules.heartbeat_timeout_ms

    def overdue(self, now: int) -> Iterator[Command]:
        """Commands that silence makes due by now. Each is repeated only after a while."""
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
        if times.heard_at <= self._stalled_until:  # also not heard at all
            # Without a scheduler, agents retry less and less often. That delay is not their fault.
            since = max(self._awake_since, self._stalled_until)
            return now - since >= max(rules.heartbeat_timeout_ms, rules.task_lease_ms)
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
