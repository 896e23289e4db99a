"""The entry of a request is an event of its command: both are in the journal, or neither."""

from __future__ import annotations

from dgpu.core.commands import CancelTasks, CreateToken, DrainNode, RecordAudit, RevokeToken, SubmitTasks
from dgpu.core.digest import digest
from dgpu.core.events import Audited, TasksSubmitted
from dgpu.core.execute import execute
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.tokens import Token
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from unit.journal.samples import spec

ENTRY = AuditEntry(user="ann", action="task.submit", origin="uid 7", request_id="r1")
TOKEN = Token(id="k1", name="ci", user="bob", role="user", keyed_hash=bytes(32), tenants=("lab",))


def entry_of(events) -> AuditEntry:
    assert not isinstance(events, Rejection), events
    (found,) = [event.entry for event in events if isinstance(event, Audited)]
    return found


def test_a_submit_is_one_entry_with_its_tenant_and_the_number_of_tasks() -> None:
    state = ClusterState()
    events = execute(state, SubmitTasks(at=5, entries=((3, spec()), (2, spec())), audit=ENTRY))
    assert isinstance(events[0], TasksSubmitted)
    entry = entry_of(events)
    tenant = events[0].entries[0][1].shape.tenant_id
    assert (entry.subject, entry.tasks, entry.tenant_id, entry.user) == ("task-1", 5, tenant, "ann")


def test_a_refused_command_has_no_entry_of_its_own() -> None:
    """The service counts refusals; here one could be written for each guess."""
    refused = execute(ClusterState(), DrainNode(at=5, node_id="n1", audit=ENTRY))
    assert isinstance(refused, Rejection)


def test_an_accepted_command_that_changes_nothing_is_recorded() -> None:
    state = ClusterState()
    execute(state, CreateToken(at=5, token=TOKEN))
    execute(state, RevokeToken(at=6, token_id="k1"))
    assert entry_of(execute(state, RevokeToken(at=7, token_id="k1", audit=ENTRY))).user == "ann"


def test_a_cancel_names_its_only_task_or_their_number() -> None:
    state = ClusterState()
    execute(state, SubmitTasks(at=5, entries=((3, spec()),)))
    one = entry_of(execute(state, CancelTasks(at=6, task_ids=(1,), audit=ENTRY)))
    rest = entry_of(execute(state, CancelTasks(at=7, task_ids=(2, 3), audit=ENTRY)))
    assert (one.subject, one.tasks) == ("task-1", 1)
    assert (rest.subject, rest.tasks) == ("", 2)
    assert one.tenant_id == rest.tenant_id != ""


def test_a_token_gives_its_tenant_if_it_has_only_one() -> None:
    state = ClusterState()
    entry = entry_of(execute(state, CreateToken(at=5, token=TOKEN, audit=ENTRY)))
    assert (entry.subject, entry.tenant_id) == ("k1", "lab")
    assert "keyed_hash" not in repr(entry)


def test_entries_change_nothing_but_the_time() -> None:
    state = ClusterState()
    execute(state, SubmitTasks(at=5, entries=((1, spec()),)))
    before = digest(state)
    events = execute(state, RecordAudit(at=5, entries=(ENTRY, ENTRY)))
    assert events == (Audited(5, ENTRY), Audited(5, ENTRY))
    assert digest(state) == before
