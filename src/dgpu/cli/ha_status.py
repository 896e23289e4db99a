"""The tables of `dgpu ha status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from dgpu.cli.failures import ExitCode, note
from dgpu.cli.flags import Flags
from dgpu.cli.formats import duration, memory, plural
from dgpu.cli.output import Column, Row, print_rows, print_table

if TYPE_CHECKING:
    from dgpu.entry.ha.status import HaStatus

_MIB = 1 << 20


def _lag(row: Row) -> str:
    return "-" if row["lag_ms"] is None else f"{row['lag_ms'] / 1_000:.1f} s"


def _data(row: Row) -> str:
    if not row["version"]:
        return "-"
    used = memory(row["db_bytes"] / _MIB)
    return f"{used} of {memory(row['quota_bytes'] / _MIB)}" if row["quota_bytes"] else used


SCHEDULERS = (
    Column("SCHEDULER", lambda row: str(row["name"]), stretches=True),
    Column("ROLE", lambda row: str(row["role"])),
    Column("LAG", _lag, right=True),
    Column("EPOCH", lambda row: str(row["epoch"]), right=True),
    Column("VERSION", lambda row: str(row["version"])),
    Column("SEEN", lambda row: f"{duration(row['last_seen_seconds'])} ago", right=True),
    Column("URL", lambda row: str(row["url"] or "-"), stretches=True),
    Column("TROUBLE", lambda row: str(row["trouble"] or "-"), wraps=True),
)
MEMBERS = (
    Column("MEMBER", lambda row: str(row["address"]), stretches=True),
    Column("STATE", lambda row: str(row["state"])),
    Column("HEALTHY", lambda row: "yes" if row["healthy"] else "no"),
    Column("VERSION", lambda row: str(row["version"] or "-")),
    Column("DATA", _data, right=True),
    Column(
        "TROUBLE",
        lambda row: ", ".join(filter(None, (row["trouble"], *row.get("alarms", ())))) or "-",
        wraps=True,
    ),
)


def print_local(found: HaStatus, flags: Flags) -> int:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(found)
    _print(document, flags)
    if flags.is_table:
        if found.has_quorum:
            note(_journal(found))
        _note_majority(found.survives if found.has_quorum else None, found.trouble)
    return ExitCode.OK if found.has_quorum else ExitCode.FAILED


def print_of_server(flags: Flags) -> int:
    """As a scheduler sees the others. It needs no directory of this machine."""
    import msgspec

    from dgpu.cli.connection import connect

    with connect(flags) as client:
        found = client.schedulers()
    _print(msgspec.to_builtins(found), flags)
    if flags.is_table:
        note(
            f"Leading scheduler: {found.master or 'this one, which is alone' if not found.engine else 'unknown'}."
        )
        if found.members_may_stop is not None:
            _note_majority(None if found.engine else found.members_may_stop, found.engine)
    return ExitCode.FAILED if found.engine else ExitCode.OK


def _print(document: dict[str, Any], flags: Flags) -> None:
    print_rows(document, document["schedulers"], SCHEDULERS, "name", flags)
    if flags.is_table and document["members"]:
        if document["schedulers"]:
            typer.echo()
        print_table(document["members"], MEMBERS)


def _journal(found: HaStatus) -> str:
    if found.trouble:
        return f"The journal cannot be read: {found.trouble}."
    behind = (
        f", {max(0, found.index - found.copied_index)} behind here" if found.copied_index is not None else ""
    )
    end = f"group {found.index}{behind}, epoch {found.epoch}."
    if found.leader is not None and not found.leader.http:  # dgpu ha leave was run
        return f"The journal is {found.leader.name}: {end}"
    leader = f"{found.leader.name} ({found.leader.http})" if found.leader else "none"
    return f"Leading scheduler: {leader}. Journal: {end}"


def _note_majority(may_stop: int | None, trouble: str) -> None:
    note(
        f"{plural(may_stop, 'member')} may stop without stopping the cluster."
        if may_stop is not None
        else f"No majority of members answers, so nothing can be stored: {trouble}"
    )
