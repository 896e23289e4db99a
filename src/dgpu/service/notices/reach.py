"""The targets that tasks may name: those of the operator, and secrets of the tenant that hold a URL.

The scheduler sends the messages, so a URL of a tenant could reach addresses that only the scheduler can reach: other
services of its machine, which trust it, or of its network. `public` allows services at a fixed address on the Internet,
and webhooks whose host has only public addresses. See docs/decisions/0043.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dgpu.core.model.ids import SecretId, TenantId
from dgpu.core.model.secrets import Secret, secret_id
from dgpu.service.alerts.outbox import SendingRules
from dgpu.service.alerts.targets import Target, webhook_refusal
from dgpu.service.secrets.opened import CannotOpen
from dgpu.service.secrets.vault import Vault

KEY = "notify.secrets"
MAX_URL_BYTES = 4_096

# Services of apprise whose address is part of the service. A test compares them with their templates.
PUBLIC_SERVICES = frozenset(
    {"slack", "discord", "tgram", "pover", "pbul", "ifttt", "gchat", "sendgrid", "wxteams", "feishu", "lark",
     "dingtalk", "wecombot", "schan", "pagerduty", "opsgenie"}
)  # fmt: skip

Policy = Literal["none", "public", "all"]


class TaskTarget(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    tenants: tuple[str, ...] = ()  # empty: all


class NoticeOptions(msgspec.Struct, frozen=True, kw_only=True):
    targets: tuple[TaskTarget, ...] = ()
    secrets: Policy = "public"
    sending: SendingRules = SendingRules()


class NoTarget(Exception):  # noqa: N818 - the name states the failure
    """The text says why, without any part of a value."""


class NoticeTargets:
    def __init__(self, options: NoticeOptions, vault: Vault | None) -> None:
        self._listed = {each.target.name: each for each in options.targets}
        self._policy = options.secrets
        self._vault = vault

    def find(self, tenant_id: TenantId, name: str, secrets: Mapping[SecretId, Secret]) -> Target:
        """Raises NoTarget. Opens a secret, so the result must not be kept."""
        listed = self._listed.get(name)
        if listed is not None and (not listed.tenants or tenant_id in listed.tenants):
            return listed.target
        secret = secrets.get(secret_id(tenant_id, name))
        if secret is None or self._vault is None:
            raise NoTarget(f"{name} is neither a target of this cluster nor a secret of {tenant_id}")
        if self._policy == "none":
            raise NoTarget(
                f"{name} is a secret; an administrator can allow them as targets: {KEY} in scheduler.yaml"
            )
        try:
            url = self._vault.open_secret(tenant_id, name, secret.sealed).decode().strip()
        except (CannotOpen, UnicodeDecodeError):
            raise NoTarget(f"the secret {name} cannot be read as a URL") from None
        return _own_target(name, url, self._policy)


def _own_target(name: str, url: str, policy: Policy) -> Target:
    scheme = url.partition("://")[0].lower()
    if len(url) > MAX_URL_BYTES:
        raise NoTarget(f"the secret {name} is too long for a URL")
    if scheme in {"http", "https"}:
        if (why := webhook_refusal(url)) is not None:
            raise NoTarget(f"the secret {name}: {why}")
        return Target(name=name, kind="webhook", url=url, public_only=policy == "public")
    if policy == "public" and scheme not in PUBLIC_SERVICES:
        allowed = ", ".join(sorted(PUBLIC_SERVICES))
        raise NoTarget(
            f"the secret {name} is not a URL that tenants may use: https, or one of {allowed}. An administrator can "
            f"allow all ({KEY}: all) or add a target (notify.targets)"
        )
    from dgpu.service.alerts.senders import apprise_refusal

    if (why := apprise_refusal(url)) is not None:
        raise NoTarget(f"the secret {name}: {why}")
    return Target(name=name, kind="apprise", url=url)
