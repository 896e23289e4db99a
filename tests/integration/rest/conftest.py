from __future__ import annotations

import pytest

from rest_world import RestWorld


@pytest.fixture
def world(tmp_path):
    with RestWorld(tmp_path) as running:
        yield running
