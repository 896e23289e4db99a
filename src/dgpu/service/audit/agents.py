"""Entries of the audit log about machines: joins, renewals, refusals on the agents' ports, and `dgpu ca`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal

from dgpu.core.model.audit import AuditEntry
from dgpu.core.rejections import Rejection
from dgpu.service.audit.names import clean
from dgpu.service.audit.trail import AuditTrail
from dgpu.service.machine.outputs import Remark
from dgpu.service.task_output.intake_words import Complain
from dgpu.wire.machines import MachineNames
from dgpu.wire.roles import Role

if TYPE_CHECKING:
    from dgpu.service.machines.deeds import Deed

Source = Literal["certificate", "uid", "open"]
Action = Literal["agent.connect", "agent.join", "agent.renew", "agent.report", "agent.output"]

_ROLE: Final = "agent"
_REFUSED: Final = 403
_REMARKS: Final[dict[str, tuple[Action, str]]] = {
    "agent_refused": ("agent.connect", "registration_refused"),
    "report_refused": ("agent.report", "foreign_lease"),
}


class AgentAudit:
    def __init__(self, trail: AuditTrail, source: Source) -> None:
        self._trail = trail
        self._source = source

    def done(self, action: Action, origin: str, names: MachineNames) -> None:
        self._trail.note(self._entry(action, _user(names), origin=origin, subject=_subject(names.nodes)))

    def refused(
        self,
        action: Action,
        code: str,
        origin: str,
        *,
        names: MachineNames | None = None,
        subject: str = "",
    ) -> None:
        user = "" if names is None else _user(names)
        self._trail.note(self._entry(action, user, origin=origin, subject=subject, code=code))

    async def record_deed(self, deed: Deed) -> bool:
        """A command of `dgpu ca`. Returns whether its entry is durable."""
        entry = AuditEntry(
            user=clean(deed.user),
            role=Role.ADMIN.value,
            source="uid",
            tenants=None,
            action=deed.action,
            call="dgpu ca",
            subject=clean(deed.subject),
            origin=f"uid {deed.uid}",
            since=deed.at_s * 1_000,
        )
        writing = self._trail.note(entry)
        if writing is None:
            return True
        await asyncio.wait((writing,))
        return not (writing.cancelled() or writing.exception() or isinstance(writing.result(), Rejection))

    def on_remark(self, remark: Remark) -> None:
        """A line of the scheduler machine about an agent whose session or registration it knows."""
        known = _REMARKS.get(remark.event)
        if known is None:
            return
        action, code = known
        lease, node = remark.facts.get("lease"), str(remark.facts.get("node", ""))
        subject = node if lease is None else f"lease {lease}"
        self._trail.note(self._entry(action, node, subject=subject, code=code))

    def on_complaint(self, complaint: Complain) -> None:
        """One line for many refused chunks of output."""
        facts = complaint.facts
        lease, unlogged = facts.get("lease"), facts.get("unlogged", 0)
        subject = "" if lease is None else f"lease {lease}"
        count = 1 + int(unlogged)
        node, code = str(facts.get("node", "")), "foreign_lease" if subject else "unknown_session"
        self._trail.note(self._entry("agent.output", node, subject=subject, code=code, count=count))

    def _entry(
        self,
        action: Action,
        user: str,
        *,
        subject: str = "",
        origin: str = "",
        code: str = "",
        count: int = 1,
    ) -> AuditEntry:
        return AuditEntry(
            user=clean(user),
            role=_ROLE,
            source=self._source,
            action=action,
            call="join" if action == "agent.join" else "gRPC",
            subject=clean(subject),
            origin=origin,
            status=_REFUSED if code else 0,
            code=code,
            count=count,
        )


def _user(names: MachineNames) -> str:
    return min(names.nodes, default="")


def _subject(nodes: frozenset[str]) -> str:
    first = min(nodes, default="")
    return first if len(nodes) < 2 else f"{first} and {len(nodes) - 1} more"
