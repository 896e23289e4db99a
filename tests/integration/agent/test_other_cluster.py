"""An agent whose keeper holds runs of one cluster meets the scheduler of another: real gRPC, a real keeper."""

from __future__ import annotations

import json

import pytest

from integration.agent.scheduling import ScriptedScheduler, start, until
from integration.agent.test_agent_host import agent

pytestmark = pytest.mark.slow

LEASE = 1 << 32 | 1


async def test_a_node_refuses_another_cluster_until_it_is_told_to_move(tmp_path) -> None:
    """Before, the new scheduler's first order was ignored because the number was known: its task ran forever."""
    async with (
        ScriptedScheduler(cluster_id="old", nonce="n-old") as old,
        agent(tmp_path, old, stop_tasks=False),
    ):
        await old.order(start(LEASE, "echo old; sleep 600", nonce="n-old"))
        await until(lambda: LEASE in old.started)
    assert json.loads((tmp_path / "cluster.json").read_text())["cluster_id"] == "old"

    async with ScriptedScheduler(epoch=5, cluster_id="new", nonce="n-new") as new:
        async with agent(tmp_path, new, stop_tasks=False):
            await until(lambda: len(new.registrations) >= 2)  # it hangs up and dials again
            assert not new.heartbeats
            assert {register.cluster_id for register in new.registrations} == {"old"}
        (tmp_path / "cluster.json").unlink()
        new.registrations.clear()
        new.give_up = {LEASE}
        async with agent(tmp_path, new):
            (held,) = new.registrations[0].leases
            assert (held.lease_id, held.nonce, held.cluster_id) == (LEASE, "n-old", "old")
            await new.order(start(LEASE, "exit 3", nonce="n-new"))
            (refused,) = await until(lambda: new.finished.get(LEASE))
            assert refused.outcome == "node_fault"
            assert "of another journal" in refused.error or "has ended here before" in refused.error
            await new.order(start(LEASE + 1, "exit 3", nonce="n-new"))
            (finished,) = await until(lambda: new.finished.get(LEASE + 1))
            assert (finished.outcome, finished.exit_code) == ("exited", 3)
            assert LEASE not in new.chunks, "output of the old cluster is not for this one"


async def test_a_scheduler_of_the_same_epoch_with_another_nonce_is_refused(tmp_path) -> None:
    async with ScriptedScheduler(epoch=4, cluster_id="ours", nonce="first") as scheduler:
        async with agent(tmp_path, scheduler):
            await until(lambda: scheduler.heartbeats)
        scheduler.nonce = "second"
        scheduler.heartbeats.clear()
        scheduler.registrations.clear()
        async with agent(tmp_path, scheduler):
            await until(lambda: len(scheduler.registrations) >= 2)
            assert not scheduler.heartbeats
            scheduler.epoch = 5
            await until(lambda: scheduler.heartbeats)
