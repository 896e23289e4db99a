"""Secrets over HTTP: set, used, rotated, deleted. No answer, record or history ever has a value."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dgpu.core.commands import SubmitTasks
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskDetail
from dgpu.journal.memory import MemoryDisk
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.secrets.vault import KEY_NAME, Vault
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.requests import decode_task
from rest_world import Listening, Reply, RestWorld

WORD = "xyzzy-plugh"


def set_secret(world: RestWorld, value: str = WORD, name: str = "KEY", tenant: str = "lab") -> Reply:
    return world.ask("PUT", f"/api/v1/tenants/{tenant}/secrets/{name}", {"value": value})


def delete(world: RestWorld, name: str = "KEY") -> Reply:
    return world.ask("DELETE", f"/api/v1/tenants/lab/secrets/{name}")


def rotate(world: RestWorld) -> dict[str, Any]:
    reply = world.ask("POST", "/api/v1/secrets/rotate", {})
    assert reply.status == 200, reply
    return dict(reply.body)


def listening_to(world: RestWorld) -> Listening:
    world.add_node("n1", gpus=4)
    agent = Listening()
    world.connect_agent("n1", agent)
    return agent


def env_in(start: pb.Start) -> dict[str, str]:
    return msgspec.json.decode(start.detail, type=TaskDetail).env


def stored(world: RestWorld) -> bytes:
    """Everything that the service keeps: records, history."""
    rows = ""
    with sqlite3.connect(world.folder / HISTORY_NAME) as history:
        rows = "\n".join(history.iterdump())
    return bytes(world.journal.disk.segment) + rows.encode()


def test_a_secret_is_set_listed_and_never_shown(world) -> None:
    first, second = set_secret(world), set_secret(world, WORD + "2")
    assert (first.status, first.body["version"], second.body["version"]) == (200, 1, 2)
    set_secret(world, name="A", tenant="abc")
    listed = world.ask("GET", "/api/v1/secrets")
    assert [(each["tenant_id"], each["name"], each["version"]) for each in listed.body["secrets"]] == [
        ("abc", "A", 1),
        ("lab", "KEY", 2),
    ]
    assert listed.body["secrets"][1]["set_by"]
    assert listed.body["secrets"][1]["set_at"] == second.body["set_at"]
    for reply in (first, second, listed):
        assert WORD.encode() not in reply.raw
    assert b"KEY" in stored(world)
    assert WORD.encode() not in stored(world)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/tenants/lab/secrets/9", {"value": WORD}, 400),
        ("/api/v1/tenants/-/secrets/KEY", {"value": WORD}, 400),
        ("/api/v1/tenants/lab/secrets/KEY", {"value": ""}, 400),
        ("/api/v1/tenants/lab/secrets/KEY", {"value": [WORD]}, 400),
        ("/api/v1/tenants/lab/secrets/KEY", {"secret": WORD}, 400),
        ("/api/v1/tenants/lab/secrets/KEY", [WORD], 400),
    ],
)
def test_a_wrong_request_changes_nothing_and_repeats_no_value(
    world, path: str, body: Any, status: int
) -> None:
    before = world.digest()
    reply = world.ask("PUT", path, body)
    assert (reply.status, WORD.encode() in reply.raw) == (status, False), reply
    assert world.digest() == before


def test_a_start_order_carries_variables_and_files_in_clear(world) -> None:
    agent = listening_to(world)
    set_secret(world)
    set_secret(world, "cert", name="cert")
    uses = {"KEY": {"env": "TOKEN"}, "cert": {"file": "tls.pem"}}
    task = world.submit(tenant_id="lab", env={"A": WORD + "-env"}, secrets=uses)
    (start,) = agent.starts
    assert env_in(start) == {"A": WORD + "-env", "TOKEN": WORD}
    assert dict(start.secret_files) == {"tls.pem": b"cert"}
    shown = world.ask("GET", f"/api/v1/tasks/{task}")
    assert (shown.body["env"], shown.body["secrets"]) == (["A"], ["KEY", "cert"])
    assert WORD.encode() not in shown.raw
    assert WORD.encode() not in world.ask("GET", f"/api/v1/tasks/{task}/events").raw
    assert WORD.encode() not in stored(world)


def test_a_past_task_still_names_its_secrets(tmp_path: Path) -> None:
    with RestWorld(tmp_path, settings=Settings(keep_finished=0)) as world:
        world.add_node()
        set_secret(world)
        task = world.submit(tenant_id="lab", secrets=["KEY"])
        world.finish_running()
        world.forget()
        assert world.read(lambda state: len(state.tasks)) == 0
        assert world.ask("GET", f"/api/v1/tasks/{task}").body["secrets"] == ["KEY"]


@pytest.mark.parametrize("batch", [False, True])
def test_a_submit_with_an_unknown_secret_names_it_and_its_remedy(world, batch: bool) -> None:
    set_secret(world, tenant="rival")
    before = world.digest()
    task = {"command": "x", "tenant_id": "lab", "secrets": ["KEY"]}
    path, body = ("/api/v1/tasks/batch", {"tasks": [task]}) if batch else ("/api/v1/tasks", task)
    reply = world.ask("POST", path, body)
    assert (reply.status, reply.body["code"]) == (422, "secret_not_set")
    assert "dgpu secret set KEY -A lab" in reply.body["detail"]
    assert reply.body["errors"][0]["path"] == ("tasks[0].secrets" if batch else "secrets")
    assert world.digest() == before


def test_the_current_value_counts_at_each_start(world) -> None:
    agent = listening_to(world)
    set_secret(world, "old")
    world.submit(tenant_id="lab", gpu_count=4)
    waiting = world.submit(tenant_id="lab", gpu_count=4, secrets=["KEY"])
    set_secret(world, "new")
    world.finish_running()
    assert env_in(agent.starts[-1]) == {"KEY": "new"}
    set_secret(world, "newest")
    world.finish_running(exit_code=1)
    assert world.ask("POST", f"/api/v1/tasks/{waiting}/retry", {}).status == 201
    assert env_in(agent.starts[-1]) == {"KEY": "newest"}


def test_a_task_whose_secret_was_deleted_fails_with_its_name(world) -> None:
    """It neither hangs nor starts without the value. A second attempt could not help."""
    agent = listening_to(world)
    set_secret(world)
    world.submit(tenant_id="lab", gpu_count=4)
    task = world.submit(tenant_id="lab", gpu_count=4, secrets=["KEY"])
    assert delete(world).status == 200
    assert (delete(world).status, delete(world).body["code"]) == (404, "unknown_secret")
    world.finish_running()
    shown = world.ask("GET", f"/api/v1/tasks/{task}").body
    assert (shown["status"], shown["attempt"]) == ("failed", 1)
    assert "secret KEY of tenant lab was deleted. To set it: dgpu secret set KEY -A lab" in shown["error"]
    assert len(agent.starts) == 1
    assert world.read(lambda state: len(state.leases)) == 0


def test_a_gang_whose_secret_was_deleted_ends_on_all_nodes(world) -> None:
    agents = [Listening(), Listening()]
    for name, agent in zip(("n1", "n2"), agents, strict=True):
        world.add_node(name)
        world.connect_agent(name, agent)
    set_secret(world)
    task = world.submit(tenant_id="lab", nodes=2, secrets=["KEY"], held=True)
    delete(world)
    world.ask("POST", f"/api/v1/tasks/{task}/release", {})
    assert world.ask("GET", f"/api/v1/tasks/{task}").body["status"] == "failed"
    assert [agent.starts for agent in agents] == [[], []]
    assert world.read(lambda state: len(state.leases)) == 0


def test_an_agent_that_was_away_gets_the_values_with_its_welcome(world) -> None:
    world.add_node("n1")
    set_secret(world)
    world.submit(tenant_id="lab", secrets={"KEY": {"file": "f"}}, gpu_count=0)
    agent = Listening()
    world.connect_agent("n1", agent, holds=False)
    assert [dict(start.secret_files) for start in agent.starts] == [{"f": WORD.encode()}]


def test_a_rotation_seals_everything_again(world) -> None:
    agent = listening_to(world)
    set_secret(world)
    held = world.submit(tenant_id="lab", env={"A": WORD}, secrets=["KEY"], held=True)
    old = world.read(lambda state: (state.secrets["lab/KEY"], state.tasks[1].detail))
    assert rotate(world) == {"secrets": 1, "tasks": 1, "unreadable": 0, "dropped_keys": 0}
    new = world.read(lambda state: (state.secrets["lab/KEY"], state.tasks[1].detail))
    assert (new[0].sealed, new[1]) != (old[0].sealed, old[1])
    assert new[0].version == 1
    assert world.vault.is_current(new[0].sealed)
    assert rotate(world)["dropped_keys"] == 1
    assert not world.vault.is_known(old[0].sealed)
    assert len((world.folder / KEY_NAME).read_text().split()) == 2
    world.ask("POST", f"/api/v1/tasks/{held}/release", {})
    assert env_in(agent.starts[0]) == {"A": WORD, "KEY": WORD}
    assert WORD.encode() not in stored(world)


def test_a_rotation_that_was_cut_short_loses_nothing_and_the_next_one_completes_it(world) -> None:
    """The key file has the new key, but the state was not sealed again: as after kill -9."""
    set_secret(world)
    world.vault.begin_rotation()
    set_secret(world, name="B")
    assert rotate(world)["secrets"] == 2
    sealed = world.read(lambda state: [each.sealed for each in state.secrets.values()])
    assert all(Vault.load(world.folder).is_current(each) for each in sealed)


def test_a_value_whose_key_is_gone_is_told_and_left_alone(tmp_path: Path) -> None:
    disk = MemoryDisk()
    with RestWorld(tmp_path, disk=disk) as world:
        set_secret(world)
        lost = world.submit(tenant_id="lab", env={"A": WORD}, held=True)
        world.ask("DELETE", f"/api/v1/tasks/{lost}")
    (tmp_path / KEY_NAME).unlink()
    with RestWorld(tmp_path, disk=disk) as world:
        assert rotate(world) == {"secrets": 0, "tasks": 0, "unreadable": 2, "dropped_keys": 0}
        listening_to(world)
        task = world.submit(tenant_id="lab", secrets=["KEY"])
        error = world.ask("GET", f"/api/v1/tasks/{task}").body["error"]
        assert (
            "cannot open secret KEY of tenant lab: it is sealed under a key that secrets.key does not have"
            in error
        )
        again = world.ask("POST", f"/api/v1/tasks/{lost}/retry", {})
        assert (again.status, again.body["code"]) == (410, "key_gone")
        set_secret(world, "anew")
        assert world.read(lambda state: state.secrets["lab/KEY"].version) == 2


def test_the_same_key_and_body_is_the_same_submit_also_after_a_rotation(world) -> None:
    set_secret(world)
    body = {"command": "x", "tenant_id": "lab", "env": {"A": WORD}, "secrets": ["KEY"]}
    headers = {"Idempotency-Key": "k1"}
    first = world.ask("POST", "/api/v1/tasks", body, headers)
    rotate(world)
    assert world.ask("POST", "/api/v1/tasks", body, headers).body["task_id"] == first.body["task_id"]
    other = world.ask("POST", "/api/v1/tasks", {**body, "env": {"A": "other"}}, headers)
    assert (other.status, WORD.encode() in other.raw) == (422, False)


def test_a_task_of_an_older_journal_starts_with_its_variables(world) -> None:
    """Older versions journaled them in clear. A rotation seals them, too."""
    agent = listening_to(world)
    body = json.dumps({"command": "x", "tenant_id": "lab", "env": {"A": WORD}, "held": True}).encode()
    world.execute(SubmitTasks(entries=((2, decode_task(body)),)))
    world.ask("POST", "/api/v1/tasks/task-1/release", {})
    assert rotate(world)["tasks"] == 2
    world.ask("POST", "/api/v1/tasks/task-2/release", {})
    assert [env_in(start) for start in agent.starts] == [{"A": WORD}] * 2
    assert WORD.encode() not in world.read(lambda state: state.tasks[2].detail)
