from __future__ import annotations

import itertools

import pytest

from dgpu.journal.etcd.engine import EtcdEngine
from etcd_cluster import EtcdCluster

_prefixes = itertools.count(1)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    """One member."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def connect(etcd):
    """Makes another connection to the same keys. Each test has a prefix of its own."""
    prefix = f"test/{next(_prefixes)}/"
    engines = []

    def one_more(**changes) -> EtcdEngine:
        patient = {"prefix": prefix, "patience_s": 30.0, "attempt_s": 10.0, "ttl_s": 120}
        engines.append(EtcdEngine(etcd.settings(**patient | changes)))
        return engines[-1]

    yield one_more
    for engine in engines:
        engine.close()
