from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dgpu.cli.arguments import parse_duration
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import duration, memory, plural
from dgpu.cli.output import Column, print_document, print_rows

app = typer.Typer(add_completion=False, no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="D", help="The scheduler's storage.snapshot_dir; without it: of --config."),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="F", help="scheduler.yaml")]
MAX_TOKEN_SECONDS = 30 * 86_400

COLUMNS = (
    Column("MEMBER", lambda row: str(row["address"]), stretches=True),
    Column("STATE", lambda row: str(row["state"])),
    Column("HEALTHY", lambda row: "yes" if row["healthy"] else "no"),
    Column("VERSION", lambda row: str(row["version"] or "-")),
    Column("DATA", lambda row: memory(row["db_bytes"] / (1 << 20)) if row["version"] else "-", right=True),
    Column(
        "TROUBLE", lambda row: ", ".join(filter(None, (row["trouble"], *row["alarms"]))) or "-", wraps=True
    ),
)


@app.callback()
def ha() -> None:
    """High availability, and backups. The verbs work on the directory of a scheduler, on its own machine."""


@app.command()
def init(
    ctx: typer.Context,
    members: Annotated[
        list[str],
        typer.Option(
            "--member", "-m", metavar="HOST[:PORT]", help="Three times: two schedulers and a witness."
        ),
    ],
    me: Annotated[str, typer.Option("--me", metavar="HOST[:PORT]", help="The member on this machine.")],
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Make the scheduler of this machine the first of a highly available cluster. It keeps its tasks and history."""
    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.init import initiate

    with _refusals(HaFailure):
        done = initiate(_data_dir(directory, config), members, me)
    _print(done, done.me, ctx)
    note(
        f"The cluster was founded with group {done.index}, epoch {done.epoch}, {done.tasks} tasks."
        if done.new
        else "This was done before; nothing was changed."
    )
    _configure(config, done.members, done.me)
    others = [each for each in done.members if each != done.me]
    note("Next: start the scheduler. When it runs, one machine after the other:")
    note(f"  dgpu ha token {others[0]}, and dgpu ha token {others[1]} --witness")


@app.command()
def token(
    ctx: typer.Context,
    address: Annotated[
        str, typer.Argument(metavar="HOST[:PORT]", help="One of the members of `dgpu ha init`.")
    ],
    witness: Annotated[bool, typer.Option("--witness", help="It will run no scheduler.")] = False,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="For example 30m, 1h or 1d.")
    ] = "1h",
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Print a token with which one machine may join, once."""
    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.inviting import invite_member

    seconds = max(1, int(parse_duration(expires)))
    if seconds > MAX_TOKEN_SECONDS:
        raise typer.BadParameter("at most 30d", param_hint="--expires")
    role: Literal["scheduler", "witness"] = "witness" if witness else "scheduler"
    with _refusals(HaFailure):
        made = str(invite_member(_data_dir(directory, config), address, role, seconds))
    _print({"token": made, "member": address, "role": role, "expires_in_seconds": seconds}, made, ctx)
    flag = " --witness" if witness else " --config scheduler.yaml"
    note(
        f"Valid for {duration(seconds)}, once. On the machine: dgpu ha join --server HOST:PORT --token TOKEN{flag}"
    )


@app.command()
def join(
    ctx: typer.Context,
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="The first scheduler's server.join_address.")
    ],
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="DGPU_JOIN_TOKEN",
            help="Of `dgpu ha token`; - reads it from stdin.",
        ),
    ],
    witness: Annotated[bool, typer.Option("--witness", help="This machine runs no scheduler.")] = False,
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Join a highly available cluster, as its second scheduler or as its witness."""
    import sys

    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.joining import join_cluster
    from dgpu.entry.ha.witness import DEFAULT_DIR

    text = sys.stdin.readline() if token == "-" else token  # noqa: S105 - not a password
    target = directory or (DEFAULT_DIR if witness else None)
    with _refusals(HaFailure):
        joined = join_cluster(_data_dir(target, config), server, text, "witness" if witness else "scheduler")
    _print(joined, joined.me, ctx)
    if not witness:
        _configure(config, joined.members, joined.me)
    start = f"dgpu witness --dir {joined.directory}" if witness else "dgpu scheduler --config scheduler.yaml"
    note(
        f"{joined.me} has joined as a {joined.role}. Start it: {start}. It gets its vote when it has caught up."
    )


@app.command()
def status(ctx: typer.Context, directory: Directory = None, config: Config = None) -> int:
    """Members and their health, the scheduler that leads, and the end of the journal. Exit code 1: no majority."""
    import msgspec

    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.status import ha_status

    with _refusals(HaFailure):
        found = ha_status(_data_dir(directory, config))
    document: dict[str, Any] = msgspec.to_builtins(found)
    flags = flags_of(ctx)
    print_rows(document, document["members"], COLUMNS, "address", flags)
    if flags.is_table:
        leader = f"{found.leader.name} ({found.leader.http})" if found.leader else "none"
        behind = (
            f", {max(0, found.index - found.copied_index)} behind here"
            if found.copied_index is not None
            else ""
        )
        note(f"Leading scheduler: {leader}. Journal: group {found.index}{behind}, epoch {found.epoch}.")
        note(
            f"{plural(found.survives, 'member')} may stop without stopping the cluster."
            if found.has_quorum
            else f"No majority of members answers, so nothing can be stored: {found.trouble}"
        )
    return ExitCode.OK if found.has_quorum else ExitCode.FAILED


@app.command()
def handover(
    ctx: typer.Context,
    from_name: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="NAME",
            help="Only if the scheduler with this ha.name leads, for example after its process died.",
        ),
    ] = "",
    directory: Directory = None,
    config: Config = None,
) -> int:
    """Let another scheduler lead, for example before this machine is restarted. Exit code 1: the same one leads."""
    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.handover import hand_over

    with _refusals(HaFailure):
        done = hand_over(_data_dir(directory, config), from_name)
    if done is None:
        note(f"{from_name} does not lead; nothing was changed.")
        return ExitCode.OK
    _print(done, done.after, ctx)
    if done.changed:
        note(f"{done.after} leads now, {done.seconds:.1f} s after {done.before} was asked to stop leading.")
        return ExitCode.OK
    note(f"{done.before} leads again: no other scheduler was ready.")
    return ExitCode.FAILED


@app.command("replace-member")
def replace(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="The member that is lost.")],
    new: Annotated[
        str | None,
        typer.Option("--with", metavar="HOST[:PORT]", help="Its successor; without it: the same address."),
    ] = None,
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Remove a lost member and let a new one join in its place. Both other members must run."""
    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.replacing import replace_member

    with _refusals(HaFailure):
        done = replace_member(_data_dir(directory, config), old, new)
    _print(done, done.new, ctx)
    note(
        f"{done.old} is no member any more; {done.new} may join. Next, here: dgpu ha token {done.new} [--witness]"
    )
    if done.old != done.new:
        note(f"Set ha.members to {', '.join(done.members)} in scheduler.yaml of both schedulers.")


@app.command()
def leave(ctx: typer.Context, directory: Directory = None, config: Config = None) -> None:
    """Go back to a single scheduler, on this machine. It must be stopped, and so must the other scheduler."""
    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.leaving import leave_cluster

    with _refusals(HaFailure):
        done = leave_cluster(_data_dir(directory, config))
    _print(done, done.me, ctx)
    note(
        f"{done.directory} goes on alone after group {done.index}. Remove the section ha from scheduler.yaml."
    )
    note(f"No scheduler can continue the old cluster. Stop what runs on {' and '.join(done.others)}.")


@app.command()
def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, for example dgpu.tar.gz.")],
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Save tasks, history, tokens, secrets and the authority in one file. The scheduler may run."""
    from dgpu.entry.ha.backup import back_up
    from dgpu.entry.ha.errors import HaFailure

    with _refusals(HaFailure):
        saved = back_up(_data_dir(directory, config), file.expanduser().absolute())
    _print(saved, str(file), ctx)
    note(f"Saved {saved.tasks} tasks as of group {saved.index}, epoch {saved.epoch}.")
    note("The file holds keys: keep it private. Output of tasks and curves of GPUs are not in it.")


@app.command()
def restore(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of `dgpu ha backup`.")],
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Make the directory of a single scheduler from a backup. The directory must be new or empty."""
    from dgpu.entry.ha.backup import restore as restore_to
    from dgpu.entry.ha.errors import HaFailure

    data_dir = _data_dir(directory, config)
    with _refusals(HaFailure):
        saved = restore_to(file.expanduser().absolute(), data_dir)
    _print(saved, str(data_dir), ctx)
    note(f"Restored {saved.tasks} tasks as of {saved.made_at}: group {saved.index}, epoch {saved.epoch}.")
    note(
        "Later tasks are lost. Stop every other scheduler of this cluster, then start this one once with: "
        "dgpu scheduler --accept-lost-tail"
    )


def _configure(config: Path | None, members: tuple[str, ...], me: str) -> None:
    from dgpu.entry.ha.config_text import managed_lines, write_managed

    if config is not None and write_managed(config, members, me):
        note(f"{config} has the section ha now, and storage.journal: etcd.")
    else:
        note(f"Set storage.journal: etcd in scheduler.yaml, and:\n{managed_lines(members, me)}")


@contextlib.contextmanager
def _refusals(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        raise CliFailure(f"{str(error)[:1].upper()}{str(error)[1:]}.", ExitCode.REFUSED) from None


def _data_dir(directory: Path | None, config: Path | None) -> Path:
    if directory is not None:
        return directory.expanduser().absolute()
    from dgpu.entry.config import ConfigError, load_scheduler_config
    from dgpu.entry.scheduler import data_dir

    try:
        return data_dir(load_scheduler_config(config))
    except ConfigError as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None


def _print(document: Any, line: str, ctx: typer.Context) -> None:
    import msgspec

    flags = flags_of(ctx)
    if flags.is_table or flags.output == "name":
        typer.echo(line)
    else:
        print_document(msgspec.to_builtins(document), flags)
