from __future__ import annotations

from typing import Any

import pytest

from identity_provider import IdentityProvider, oidc_options
from rest_world import RestWorld


@pytest.fixture
def world(tmp_path):
    with RestWorld(tmp_path) as running:
        yield running


@pytest.fixture
def provider():
    with IdentityProvider() as running:
        yield running


@pytest.fixture
def oidc_settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def oidc_world(tmp_path, provider, oidc_settings):
    """No uid is known. Accounts of the provider may sign in."""
    with RestWorld(tmp_path, oidc=lambda url: oidc_options(provider, url, **oidc_settings)) as running:
        running.access._trusted = {}
        yield running
