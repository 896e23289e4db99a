"""`isolation.users` in the scheduler: what orders say, and which nodes get no tasks."""

from __future__ import annotations

from typing import Any

import pytest

from dgpu.core.model.ids import NodeId
from dgpu.core.model.node import NodeStatus
from dgpu.wire.isolation import Isolation, uid_range
from unit.service.cluster import Bench, heartbeat, register, submit, told

N1 = NodeId("n1")


def isolated(users: Any) -> Bench:
    return Bench(isolation=Isolation(users=users))


def started(bench: Bench) -> Any:
    bench.ask(submit())
    (start,) = [start for message in told(bench.settle()) for start in message.orders.starts]
    return start


@pytest.mark.parametrize(
    ("users", "user"), [("70000-70009", "70000-70009"), ({"default": "ann"}, "ann"), ({"b": "bob"}, "")]
)
def test_an_order_names_the_tenant_and_its_unix_user(users, user) -> None:
    bench = isolated(users)
    bench.say(1, register(enforced=["users"]))
    account = started(bench).account
    assert (account.tenant, account.user) == ("default", user)


@pytest.mark.parametrize("users", ["", "none"])
def test_without_a_boundary_tasks_run_as_the_agents_user(users) -> None:
    bench = isolated(users)
    bench.say(1, register())
    assert not started(bench).HasField("account")


@pytest.mark.parametrize("reason", ["the agent is not root", ""])
def test_a_node_that_cannot_isolate_gets_no_task(reason) -> None:
    """An agent of an earlier version would ignore the user and run the task as root."""
    bench = isolated("70000-70009")
    bench.run(submit())
    outputs = bench.say(1, register(not_isolated=reason))
    assert [message.WhichOneof("body") for message in told(outputs)] == ["welcome"]
    node = bench.state.nodes[N1]
    assert node.status is NodeStatus.DRAINING
    assert (reason or "its agent is of a version") in node.drain_reason
    bench.say(1, heartbeat())
    bench.settle()
    assert bench.state.nodes[N1].draining
    # A new agent that can: it gets the task.
    bench.say(2, register(enforced=["users"]))
    bench.say(2, heartbeat())
    bench.settle()
    assert not bench.state.nodes[N1].draining
    assert bench.state.nodes[N1].enforced == ("users",)
    assert len(bench.state.leases) == 1


def test_a_range_of_uids_is_read_exactly() -> None:
    assert uid_range("70000-70001") == range(70_000, 70_002)
    assert uid_range("alice") is None
    for wrong in ("0-10", "10-9", "1-4294967295"):
        with pytest.raises(ValueError, match="expected uids from 1"):
            uid_range(wrong)
