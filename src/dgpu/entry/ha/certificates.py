"""Certificates of members: issued on a scheduler's machine, which has the authority."""

from __future__ import annotations

import time
from pathlib import Path

from dgpu.agent.certificate import new_key, request_for
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress
from dgpu.service.machines.authority import AuthorityMissing, create_authority


def issue_own(data_dir: Path, me: MemberAddress) -> bool:
    """For the member beside the authority, which is made if there is none. False: there was a certificate."""
    files = MemberFiles(data_dir)
    if files.has_certificate:
        return False
    try:
        authority, _ = create_authority(data_dir, now_s=int(time.time()))
    except AuthorityMissing as error:
        raise HaFailure(str(error)) from error
    key_pem = new_key()
    issued = authority.issue_member(request_for(key_pem), me.host, now_s=int(time.time()))
    files.write_certificate(
        key_pem=key_pem, certificate_pem=issued.certificate_pem, authority_pem=authority.certificate_pem
    )
    return True
