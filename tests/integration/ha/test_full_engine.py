"""A member whose quota is used up accepts writes again after the chores, without an etcd command."""

from __future__ import annotations

import pytest

from dgpu.entry.chaos.ports import free_port
from dgpu.entry.ha import member_command
from dgpu.entry.ha.certificates import issue_own
from dgpu.entry.ha.chores import MakeRoom, do_chore, next_chore
from dgpu.entry.ha.engine_cluster import EngineCluster, engine_settings
from dgpu.entry.ha.init import running_member
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress
from dgpu.journal.etcd.connection import Connection, NoSpace
from dgpu.journal.etcd.txn import delete, put, txn
from dgpu.service.machines.member_marker import Member
from dgpu.wire.proto import etcd_pb2 as pb

TXN = "/etcdserverpb.KV/Txn"


@pytest.fixture
def small(home, monkeypatch):
    """A running member with a quota of 16 MiB."""
    monkeypatch.setattr(member_command, "QUOTA_BYTES", 16 << 20)
    monkeypatch.setattr("dgpu.entry.ha.care.next_chore", lambda *_: None)  # the test does them
    me = f"127.0.0.1:{free_port(following=1)}"
    issue_own(home / "a", MemberAddress.parse(me))
    files = MemberFiles(home / "a")
    files.write(Member(cluster="0", role="witness", me=me, members=(me,), first_peers=(me,), is_first=True))
    with running_member(home / "a") as cluster:
        yield files, cluster, me


def write(connection: Connection, operation) -> None:
    connection.call(TXN, txn([], [operation], []), pb.TxnResponse)


def test_a_full_engine_gets_room(small) -> None:
    files, cluster, me = small
    connection = Connection(engine_settings(files, (me,)))
    try:
        with pytest.raises(NoSpace):
            for number in range(100):
                write(connection, put(b"k%d" % number, bytes(1 << 20)))
        write_all_gone(connection)
        state = cluster.state(me)
        chore = next_chore([state], me)
        assert chore == MakeRoom(), state
        do_chore(cluster, chore, (me,))
        write(connection, put(b"again", b"x"))
    finally:
        connection.close()
    after = cluster.state(me)
    assert after.alarms == ()
    assert after.db_bytes < state.db_bytes


def write_all_gone(connection: Connection) -> None:
    """Deletions are accepted by a full engine."""
    write(connection, delete(b"k", b"l"))


def test_a_cluster_without_members_says_so(home) -> None:
    me = f"127.0.0.1:{free_port(following=1)}"
    issue_own(home / "a", MemberAddress.parse(me))
    state = EngineCluster(MemberFiles(home / "a"), (me,)).state(me)
    assert not state.answers
    assert me in state.trouble
