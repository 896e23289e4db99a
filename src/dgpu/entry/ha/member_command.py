"""The command line of a member's etcd. Pure, but for the name of this machine in the network."""

from __future__ import annotations

from dgpu.entry.ha.etcd_program import EtcdProgram
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress, listening_host
from dgpu.service.machines.member_marker import Member
from dgpu.wire.machines import MEMBER_NAME

QUOTA_BYTES = 4 << 30
_KEPT_REVISIONS = 10_000  # standbys read missing groups by range, so old revisions serve nobody
_RAFT_ENTRIES = 10_000  # kept in memory; the default of 100,000 could take gigabytes
_SKIP_SAN_RENAMED = (3, 6, 0)


def member_command(program: EtcdProgram, files: MemberFiles, member: Member) -> list[str]:
    me = MemberAddress.parse(member.me)
    host = listening_host(me.host)
    tls = ("--cert-file", files.certificate, "--key-file", files.key, "--trusted-ca-file", files.authority)
    return [
        program.path,
        *("--name", str(me)),
        *("--data-dir", str(files.data)),
        *("--listen-client-urls", f"https://{host}:{me.client.port}"),
        *("--advertise-client-urls", me.client_url),
        *("--listen-peer-urls", f"https://{host}:{me.peer.port}"),
        *("--initial-advertise-peer-urls", me.peer_url),
        *("--initial-cluster", ",".join(map(_initial, member.first_peers))),
        *("--initial-cluster-state", "new" if member.is_first else "existing"),
        *("--initial-cluster-token", f"dgpu-{member.cluster}"),
        *map(str, tls),
        *(f"--peer-{flag[2:]}" if str(flag).startswith("--") else str(flag) for flag in map(str, tls)),
        # Agents have certificates of the same authority; only members may talk to members.
        *("--client-cert-auth", "--client-cert-allowed-hostname", MEMBER_NAME),
        *("--peer-client-cert-auth", "--peer-cert-allowed-hostname", MEMBER_NAME),
        # The role was checked. A host name in it says nothing behind an address translation.
        _skip_san(program),
        *("--quota-backend-bytes", str(QUOTA_BYTES)),
        *("--auto-compaction-mode", "revision", "--auto-compaction-retention", str(_KEPT_REVISIONS)),
        *("--snapshot-count", str(_RAFT_ENTRIES)),
        "--pre-vote=true",
        "--enable-grpc-gateway=false",
        *("--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"),
    ]


def _initial(address: str) -> str:
    parsed = MemberAddress.parse(address)
    return f"{parsed}={parsed.peer_url}"


def _skip_san(program: EtcdProgram) -> str:
    is_new = program.version >= _SKIP_SAN_RENAMED
    return (
        "--peer-skip-client-san-verification"
        if is_new
        else "--experimental-peer-skip-client-san-verification"
    )
