"""`dgpu ha token`: lets one machine join as a member, once."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Literal

from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress
from dgpu.service.machines.authority import AuthorityMissing, load_authority
from dgpu.service.machines.roster import Roster
from dgpu.service.sqlite_files import FileUnusable
from dgpu.wire.machines import JoinToken


def invite_member(
    directory: Path, address_text: str, role: Literal["scheduler", "witness"], lifetime_s: int
) -> JoinToken:
    """Raises HaFailure."""
    own = MemberFiles(directory).member()
    try:
        address = str(MemberAddress.parse(address_text))
    except ValueError as error:
        raise HaFailure(str(error)) from None
    if address == own.me:
        raise HaFailure(f"{address} is the member of this machine; it has joined")
    if address not in own.members:
        raise HaFailure(
            f"{address} is none of the members {', '.join(own.members)}. To change them: dgpu ha replace-member"
        )
    try:
        authority = load_authority(directory)
        join, secret = Roster(directory).invite(
            (address,), now_s=int(time.time()), lifetime_s=lifetime_s, kind=role
        )
    except (AuthorityMissing, FileUnusable, sqlite3.Error) as error:
        raise HaFailure(str(error)) from error
    except OSError as error:
        raise HaFailure(f"{error.filename}: {error.strerror}") from error
    return JoinToken(join_id=join.id, secret=secret, fingerprint=authority.fingerprint)
