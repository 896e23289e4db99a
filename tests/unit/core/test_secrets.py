"""Secrets in the journal: set, deleted, resealed, bounded. The core has only ciphertext."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from building import START, spec
from building.calls import call
from dgpu.core.commands import DeleteSecret, RemoveTenant, Reseal, SetSecret, SetTenant, SubmitTasks
from dgpu.core.decide import credentials as deciding
from dgpu.core.digest import digest
from dgpu.core.events import Resealed, SecretDeleted, SecretSet, TasksSubmitted
from dgpu.core.execute import execute
from dgpu.core.invariants import check_invariants
from dgpu.core.model.secrets import ResealedDetail, ResealedSecret, Secret, SecretUse, secret_names
from dgpu.core.model.task import TaskDetail, TaskSpec
from dgpu.core.model.tenant import Tenant
from dgpu.core.rejections import SecretNotSet, TooManySecrets, UnknownSecret, UnknownTenant
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState

SECRET = Secret(tenant_id="lab", name="KEY", sealed=b"c1", set_by="ann")


def set_secret(state: ClusterState, sealed: bytes = b"c1", at: int = 5, name: str = "KEY") -> object:
    return execute(state, SetSecret(at=at, secret=replace(SECRET, sealed=sealed, name=name)))


def using(*names: str, tenant: str = "lab") -> TaskSpec:
    uses = {name: SecretUse(env=name) for name in names}
    detail = msgspec.json.encode(TaskDetail(command="x", secrets=uses))
    return replace(spec(tenant=tenant), detail=detail)


def test_every_change_of_a_value_is_a_new_version() -> None:
    state = ClusterState()
    assert set_secret(state) == (SecretSet(5, replace(SECRET, version=1, set_at=5)),)
    assert set_secret(state, b"c2", at=9) == (
        SecretSet(9, replace(SECRET, sealed=b"c2", version=2, set_at=9)),
    )
    assert list(state.secrets) == ["lab/KEY"]
    check_invariants(state)


def test_no_client_chooses_a_version_or_a_time() -> None:
    state = ClusterState()
    execute(state, SetSecret(at=5, secret=replace(SECRET, version=77, set_at=99)))
    assert state.secrets["lab/KEY"] == replace(SECRET, version=1, set_at=5)


def test_a_deleted_secret_is_unknown() -> None:
    state = ClusterState()
    set_secret(state)
    delete = DeleteSecret(at=6, tenant_id="lab", name="KEY")
    assert execute(state, delete) == (SecretDeleted(6, "lab/KEY"),)
    assert execute(state, delete) == UnknownSecret(tenant_id="lab", name="KEY")
    assert not state.secrets


def test_a_task_that_uses_an_unknown_secret_is_refused_by_name() -> None:
    """Of another tenant counts as unknown."""
    state = ClusterState()
    set_secret(state)
    submit = SubmitTasks(at=START, entries=((1, using("KEY")), (1, using("KEY", tenant="rival"))))
    assert execute(state, submit) == SecretNotSet(entry=1, tenant_id="rival", name="KEY")
    assert not state.tasks
    found = execute(state, SubmitTasks(at=START, entries=((1, using("KEY")),)))
    assert isinstance(found, tuple)
    assert isinstance(found[0], TasksSubmitted)


def test_a_label_named_secrets_is_no_reference() -> None:
    detail = msgspec.json.encode(TaskDetail(command='echo "secrets"', labels={"secrets": "all"}))
    assert secret_names(detail) == ()


def test_a_removed_tenant_leaves_no_secret_to_its_namesake() -> None:
    state = ClusterState()
    for tenant in ("lab", "lab2"):
        execute(state, SetTenant(at=1, tenant=Tenant(id=tenant)))
        execute(state, SetSecret(at=2, secret=replace(SECRET, tenant_id=tenant)))
    execute(state, RemoveTenant(at=3, tenant_id="lab"))
    assert list(state.secrets) == ["lab2/KEY"]


def test_where_tenants_are_listed_an_unlisted_one_has_no_secrets() -> None:
    state = ClusterState()
    execute(state, SetTenant(at=1, tenant=Tenant(id="other")))
    state.settings = replace(state.settings, creates_tenants=False)
    assert set_secret(state) == UnknownTenant(tenant_id="lab")


@pytest.mark.patches_core
def test_the_number_of_secrets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MAX_TENANT_SECRETS", 2)
    monkeypatch.setattr(deciding, "MAX_SECRETS", 3)
    state = ClusterState()
    for name in ("A", "B"):
        set_secret(state, name=name)
    assert set_secret(state, name="C") == TooManySecrets(tenant_id="lab", limit=2)
    assert isinstance(set_secret(state, b"c2", name="B"), tuple), (
        "a new value of a known one is no further one"
    )
    execute(state, SetSecret(at=1, secret=replace(SECRET, tenant_id="lab2")))
    assert execute(state, SetSecret(at=1, secret=replace(SECRET, tenant_id="lab3"))) == TooManySecrets(
        limit=3
    )


def test_resealing_keeps_versions_and_skips_newer_values() -> None:
    """A value that was set during a rotation must not be replaced by the one before it."""
    state = ClusterState()
    set_secret(state, name="A")
    set_secret(state, name="B")
    set_secret(state, b"newer", name="B")
    items = (
        ResealedSecret("lab/A", 1, b"r1"),
        ResealedSecret("lab/B", 1, b"r2"),
        ResealedSecret("lab/C", 1, b"r3"),
    )
    assert execute(state, Reseal(at=7, secrets=items)) == (Resealed(7, items[:1]),)
    assert [(each.sealed, each.version) for each in state.secrets.values()] == [(b"r1", 1), (b"newer", 2)]
    assert execute(state, Reseal(at=8, secrets=items[2:])) == ()


def test_resealed_details_reach_the_tasks_that_are_still_known() -> None:
    state = ClusterState()
    events = list(execute(state, SubmitTasks(at=START, entries=((2, spec()),))))  # type: ignore[arg-type]
    first = next(iter(state.tasks))
    detail = b'{"command":"x","sealed_env":"new"}'
    done = execute(state, Reseal(at=START, details=(ResealedDetail((first, first + 99), detail),)))
    assert done == (Resealed(START, (), (ResealedDetail((first,), detail),)),)
    assert [task.detail == detail for task in state.tasks.values()] == [True, False]
    check_invariants(state)
    assert digest(replay([*events, *done])) == digest(state)


def test_a_resealed_detail_reaches_an_app_without_a_worker() -> None:
    state = ClusterState()
    events = list(execute(state, replace(call(), at=START)))  # type: ignore[arg-type]
    detail = b'{"command":"x","sealed_env":"new"}'
    done = execute(state, Reseal(at=START, details=(ResealedDetail((), detail, ("job", "gone")),)))
    assert done == (Resealed(START, (), (ResealedDetail((), detail, ("job",)),)),)
    assert state.apps["job"].spec.detail == detail
    assert digest(replay([*events, *done])) == digest(state)
