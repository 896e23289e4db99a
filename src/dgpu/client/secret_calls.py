"""Calls about secrets. A value is sent; no call returns one."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from dgpu.client.call import Call
from dgpu.client.request import NOTHING, Request, api_path, given
from dgpu.wire import answers
from dgpu.wire.secret_answers import Rotated, SecretAnswer, SecretList


class SecretCalls:
    @Call
    def secrets(self) -> Request[Sequence[SecretAnswer]]:
        """Secrets of the caller's tenants, without values, by tenant and name."""
        return Request("GET", api_path("secrets"), SecretList).picking(lambda found: found.secrets)

    @Call
    def set_secret(
        self, name: str, value: str | bytes, *, tenant_id: str = "default"
    ) -> Request[SecretAnswer]:
        """Creates a secret or replaces its value."""
        encoded = base64.b64encode(value).decode() if isinstance(value, bytes) else None
        body = given(value=value if encoded is None else None, value_base64=encoded)
        return Request("PUT", api_path("tenants", tenant_id, "secrets", name), SecretAnswer, body=body)

    @Call
    def delete_secret(self, name: str, *, tenant_id: str = "default") -> Request[None]:
        """A task that uses it and starts later fails."""
        path = api_path("tenants", tenant_id, "secrets", name)
        return Request("DELETE", path, answers.Removed).picking(lambda _: None)

    @Call
    def rotate_secrets(self) -> Request[Rotated]:
        """Encrypts all secrets and the variables of all tasks under a new key."""
        return Request("POST", api_path("secrets", "rotate"), Rotated, body=NOTHING)
