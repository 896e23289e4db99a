"""Finds the Unix users of tasks in threads: a directory service that does not answer must not stop the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from dgpu.agent.accounts import Accounts, NoAccount
from dgpu.agent.background import Busy, DaemonPool
from dgpu.agent.run.orders import not_started, withdrawn
from dgpu.agent.run.runner import RunnerWord, RunOrder, RunsEnded
from dgpu.core.model.ids import LeaseId, NodeId

LOOK_UP_SECONDS = 10.0  # less than the start deadline of an order
_THREADS = 4
_MAX_WAITING = 256

Spawn = Callable[[NodeId, Sequence[RunOrder]], None]
Say = Callable[[NodeId, Sequence[RunnerWord]], None]


class UserLookUps:
    """Orders whose user is not known yet wait here, one look-up for each tenant. All calls come from the loop."""

    def __init__(self, accounts: Accounts, *, spawn: Spawn, say: Say) -> None:
        self._accounts = accounts
        self._spawn = spawn
        self._say = say
        self._threads = DaemonPool("users", threads=_THREADS, max_waiting=_MAX_WAITING)
        self._waiting: dict[tuple[NodeId, str, str], dict[LeaseId, RunOrder]] = {}
        self._at_work: set[asyncio.Task[None]] = set()

    def pass_known(self, node_id: NodeId, orders: Iterable[RunOrder]) -> list[RunOrder]:
        """The orders that can start now. The others are passed to `spawn` later, or reported as ended."""
        ready: list[RunOrder] = []
        for order in orders:
            if order.user is None or self._accounts.known(order.tenant, order.user) is not None:
                ready.append(order)
                continue
            key = (node_id, order.tenant, order.user)
            if key not in self._waiting:
                self._waiting[key] = {}
                task = asyncio.get_running_loop().create_task(self._look_up(*key))
                self._at_work.add(task)
                task.add_done_callback(self._at_work.discard)
            self._waiting[key][order.lease_id] = order
        return ready

    def withdraw(self, lease_ids: Iterable[LeaseId]) -> None:
        """Orders that wait here will not start."""
        for lease_id in lease_ids:
            for (node_id, _, _), orders in self._waiting.items():
                if orders.pop(lease_id, None) is not None:
                    self._say(node_id, [RunsEnded(ended=(withdrawn(lease_id),))])

    def clear(self) -> None:
        for orders in self._waiting.values():
            orders.clear()

    async def _look_up(self, node_id: NodeId, tenant: str, user: str) -> None:
        error: NoAccount | None = None
        try:
            find = self._threads.run(lambda: self._accounts.find(tenant, user))
            await asyncio.wait_for(find, LOOK_UP_SECONDS)
        except NoAccount as refused:
            error = refused
        except (TimeoutError, Busy):
            error = NoAccount(
                f"the look-up of the Unix user of tenant {tenant} ({user}) got no answer within "
                f"{LOOK_UP_SECONDS:g} s: check the directory service of this node (getent passwd {user})",
                is_of_node=True,
            )
        orders = tuple(self._waiting.pop((node_id, tenant, user)).values())
        if error is None:
            self._spawn(node_id, orders)
        elif orders:
            ended = tuple(not_started(order.lease_id, error) for order in orders)
            self._say(node_id, [RunsEnded(ended=ended)])
