"""What a machine gets that joins as a member of the engine: its certificate, the other members, and, for a scheduler,
the keys that every scheduler of the cluster must have.
"""

from __future__ import annotations

import base64
from pathlib import Path

from dgpu.service.access.key_file import KEY_NAME as TOKEN_KEY
from dgpu.service.machines.authority import FILE, FOLDER, Authority
from dgpu.service.machines.member_marker import MarkerDamaged, Role, read_marker
from dgpu.service.machines.roster import Join, JoinRefused
from dgpu.service.secrets.vault import KEY_NAME as SECRETS_KEY
from dgpu.wire.machines import MemberGrant

# Agents, tokens and secrets must work with whichever scheduler leads.
SHARED_FILES = (f"{FOLDER}/{FILE}", TOKEN_KEY, SECRETS_KEY)


def grant_member(
    data_dir: Path, authority: Authority, join: Join, csr_pem: bytes, *, now_s: int
) -> tuple[bytes, MemberGrant]:
    """The certificate and the rest. Raises JoinRefused or BadRequest."""
    try:
        own = read_marker(data_dir)
    except MarkerDamaged as error:
        raise JoinRefused(str(error)) from error
    address = join.nodes[0]
    if own is None or address not in own.members:
        raise JoinRefused(f"{address} is none of the members of this cluster")
    role: Role = "scheduler" if join.kind == "scheduler" else "witness"
    grant = MemberGrant(
        role=role,
        me=address,
        members=own.members,
        cluster=own.cluster,
        files=_shared(data_dir) if role == "scheduler" else {},
    )
    issued = authority.issue_member(csr_pem, _host(address), now_s=now_s)
    return issued.certificate_pem, grant


def _shared(data_dir: Path) -> dict[str, str]:
    return {
        name: base64.b64encode((data_dir / name).read_bytes()).decode()
        for name in SHARED_FILES
        if (data_dir / name).exists()
    }


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
