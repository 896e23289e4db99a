from __future__ import annotations

import pathlib
import shutil
import tempfile

import pytest

from integration.ha.member_cluster import MemberCluster

if shutil.which("etcd") is None:
    pytest.skip("no etcd in PATH (Debian: etcd-server)", allow_module_level=True)


@pytest.fixture
def cluster():
    home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-ha-"))
    cluster = MemberCluster(home)
    yield cluster
    cluster.close()
    shutil.rmtree(home)
