from __future__ import annotations

import pathlib
import shutil
import tempfile
import time

import pytest

from integration.ha.ha_site import HaSite
from integration.ha.member_cluster import MemberCluster


@pytest.fixture
def home():
    if shutil.which("etcd") is None:
        pytest.skip("no etcd in PATH (Debian: etcd-server)")
    home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-ha-"))
    yield home
    for _ in range(100):  # a process that was killed may still have created a file meanwhile
        shutil.rmtree(home, ignore_errors=True)
        if not home.exists():
            return
        time.sleep(0.1)
    shutil.rmtree(home)


@pytest.fixture
def cluster(home):
    cluster = MemberCluster(home)
    yield cluster
    cluster.close()


@pytest.fixture
def site(home):
    site = HaSite(home)
    yield site
    site.close()
