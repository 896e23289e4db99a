"""The table of rights: every action, and the roles that may do it for their own tenants and for other tenants.

The code asks only this table. docs/security.md shows it, and a test walks it over every call of the API.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from dgpu.service.access.principal import Principal
from dgpu.wire.answers import Problem
from dgpu.wire.roles import Role


class Action(enum.StrEnum):
    SUBMIT_TASK = "task.submit"
    READ_TASK = "task.read"
    READ_OUTPUT = "task.output"
    CHANGE_TASK = "task.change"
    ENTER_TASK = "task.enter"
    LIST_TASKS = "task.list"
    READ_TENANT = "tenant.read"
    CHANGE_TENANT = "tenant.change"
    READ_CLUSTER = "cluster.read"
    CHANGE_CLUSTER = "cluster.change"
    WATCH_CLUSTER = "cluster.watch"
    READ_ALERT = "alert.read"
    READ_TARGET = "target.read"
    CHANGE_ALERT = "alert.change"
    PREDICT = "whatif.ask"
    READ_TOKEN = "token.read"  # noqa: S105 - the name of an action
    CHANGE_TOKEN = "token.change"  # noqa: S105 - the same
    READ_SECRET = "secret.read"  # noqa: S105 - the same
    CHANGE_SECRET = "secret.change"  # noqa: S105 - the same
    ROTATE_SECRETS = "secret.rotate"
    OPEN_SESSION = "session.open"
    READ_AUDIT = "audit.read"
    READ_SELF = "self.read"


class Subject(enum.Enum):
    TENANT = "one tenant"  # a task, tenant or token; or a list that shows a principal only its own tenants
    CLUSTER = "all tenants"  # the answer or the effect covers all tenants together


class Rule(NamedTuple):
    subject: Subject
    own: frozenset[Role]
    other: frozenset[Role]
    about: str


_ALL: Final = frozenset(Role)
_NO_VIEWER: Final = frozenset(Role) - {Role.VIEWER}
_OPERATORS: Final = frozenset({Role.ADMIN, Role.OPERATOR})
_ADMIN: Final = frozenset({Role.ADMIN})
_AUDITORS: Final = frozenset({Role.ADMIN, Role.OPERATOR, Role.TENANT_ADMIN})
_TOKENS: Final = frozenset({Role.ADMIN, Role.TENANT_ADMIN})
_SECRETS: Final = frozenset({Role.ADMIN, Role.TENANT_ADMIN, Role.USER})
_ONE, _EVERY = Subject.TENANT, Subject.CLUSTER

RULES: Final[dict[Action, Rule]] = {
    Action.SUBMIT_TASK: Rule(
        _ONE, _NO_VIEWER, _OPERATORS, "submit tasks; retry an ended one; create and change services"
    ),
    Action.READ_TASK: Rule(_ONE, _ALL, _OPERATORS, "show a task, its events, and why it waits"),
    Action.READ_OUTPUT: Rule(_ONE, _ALL, _OPERATORS, "read the output, the files and the result of a task"),
    Action.CHANGE_TASK: Rule(
        _ONE,
        _NO_VIEWER,
        _OPERATORS,
        "cancel, hold, release a task; change its priority; scale, roll back, delete services",
    ),
    Action.ENTER_TASK: Rule(
        _ONE, _NO_VIEWER, _OPERATORS, "attach to the terminal of a task; run commands in it; reach its ports"
    ),
    Action.LIST_TASKS: Rule(
        _ONE, _ALL, _OPERATORS, "list and search tasks; the queue; the timeline; services and workers"
    ),
    Action.READ_TENANT: Rule(
        _ONE, _ALL, _OPERATORS, "limits and use of a tenant; estimates; the usage report"
    ),
    Action.CHANGE_TENANT: Rule(_EVERY, _OPERATORS, _OPERATORS, "create, change, remove tenants; the quota"),
    Action.READ_CLUSTER: Rule(
        _EVERY, _ALL, _ALL, "nodes and GPUs, without tasks of other tenants; their history"
    ),
    Action.CHANGE_CLUSTER: Rule(
        _EVERY, _OPERATORS, _OPERATORS, "drain, resume, give up, remove nodes; recover GPUs"
    ),
    Action.WATCH_CLUSTER: Rule(
        _EVERY, _ALL, _ALL, "dashboard, events, metrics, node events, without names of other tenants"
    ),
    Action.READ_ALERT: Rule(_EVERY, _ALL, _ALL, "list alerts and silences, without those of other tenants"),
    Action.READ_TARGET: Rule(_EVERY, _ALL, _OPERATORS, "list targets of alerts"),
    Action.CHANGE_ALERT: Rule(_EVERY, _OPERATORS, _OPERATORS, "acknowledge, silence, test alerts"),
    Action.PREDICT: Rule(
        _ONE, _ALL, _OPERATORS, "predict the effect of a submit; other changes cover all tenants"
    ),
    Action.READ_TOKEN: Rule(_ONE, _TOKENS, _ADMIN, "list API tokens"),
    Action.CHANGE_TOKEN: Rule(_ONE, _TOKENS, _ADMIN, "create and revoke API tokens"),
    Action.READ_SECRET: Rule(_ONE, _SECRETS, _ADMIN, "list secrets, without values"),
    Action.CHANGE_SECRET: Rule(_ONE, _SECRETS, _ADMIN, "set and delete secrets"),
    Action.ROTATE_SECRETS: Rule(_EVERY, _ADMIN, _ADMIN, "encrypt all secrets under a new key"),
    Action.OPEN_SESSION: Rule(_EVERY, _ALL, _ALL, "give a browser a session with your own rights"),
    Action.READ_AUDIT: Rule(_ONE, _AUDITORS, _OPERATORS, "read the audit log"),
    Action.READ_SELF: Rule(_EVERY, _ALL, _ALL, "who am I; the API's description; end a session"),
}


def refusal(who: Principal, action: Action) -> Problem | None:
    """Before the subject of the action is known. `may` decides about a task, tenant or token of a tenant."""
    if is_out_of_scope(who, action):
        return not_permitted(who, action)
    if RULES[action].subject is Subject.TENANT and who.role in RULES[action].own:
        return None
    return refusal_for_all(who, action)


def refusal_for_all(who: Principal, action: Action) -> Problem | None:
    """For an answer or an effect that covers all tenants."""
    rule = RULES[action]
    if who.role in (rule.own if who.tenants is None else rule.other):
        return None
    return not_permitted(who, action)


def may(who: Principal, action: Action, tenant_id: str) -> bool:
    rule = RULES[action]
    return who.role in (rule.own if who.owns(tenant_id) else rule.other) and not is_out_of_scope(who, action)


def is_out_of_scope(who: Principal, action: Action) -> bool:
    """Scopes narrow a role. Each principal may still ask for its own identity."""
    return bool(who.scopes) and action not in who.scopes and action is not Action.READ_SELF


def actions_of(who: Principal) -> list[str]:
    """All actions that the principal may do for its own tenants."""
    return [action.value for action in Action if refusal(who, action) is None]


def not_permitted(who: Principal, action: Action) -> Problem:
    rule = RULES[action]
    facts: dict[str, str] = {"user": who.user, "role": str(who.role), "action": str(action)}
    if is_out_of_scope(who, action):
        facts["scopes"] = ", ".join(who.scopes)
        detail = (
            f"The token of {who.user} is for {', '.join(who.scopes)} only, not for {action} ({rule.about})."
        )
    elif who.role in rule.own:
        tenants = facts["tenants"] = ", ".join(who.tenants or ())
        detail = f"{action} ({rule.about}) covers all tenants. {who.user} has the role {who.role} of {tenants} only."
    else:
        allowed = facts["allowed"] = ", ".join(role for role in Role if role in rule.own)
        detail = f"{who.user} has the role {who.role}. {action} ({rule.about}) needs one of: {allowed}."
    return Problem(status=403, code="not_permitted", title="Not permitted", detail=detail, facts=facts)
