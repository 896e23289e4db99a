from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dgpu.cli.arguments import parse_duration
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import duration
from dgpu.cli.output import print_document

if TYPE_CHECKING:
    from dgpu.entry.ha.status import HaStatus

app = typer.Typer(add_completion=False, no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="D", help="The scheduler's storage.snapshot_dir; without it: of --config."),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="F", help="scheduler.yaml")]
MAX_TOKEN_SECONDS = 30 * 86_400


@app.callback()
def ha() -> None:
    """High availability, and backups. The verbs work on the directory of a scheduler, on its own machine."""
    from dgpu.entry.logs import hush_grpc

    hush_grpc()


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
        done = initiate(_founder_dir(directory, config), members, me)
    _print(done, done.me, ctx)
    note(
        f"The cluster was founded with group {done.index}, epoch {done.epoch}, {done.tasks} tasks."
        if done.new
        else "This was done before; nothing was changed."
    )
    _configure(config, done.members, done.me)
    others = [each for each in done.members if each != done.me]
    where = f" --config {config}" if config is not None else f" --dir {done.directory}" if directory else ""
    note("Next: start the scheduler. When it runs, one machine after the other:")
    note(f"  dgpu ha token {others[0]}{where}")
    note(f"  dgpu ha token {others[1]} --witness{where}")


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
        made = str(invite_member(_member_dir(directory, config), address, role, seconds))
    _print({"token": made, "member": address, "role": role, "expires_in_seconds": seconds}, made, ctx)
    flag = " --witness" if witness else " --config scheduler.yaml"
    note(
        f"Valid for {duration(seconds)}, once. On the machine: dgpu ha join --server HOST:PORT --token TOKEN{flag}"
    )


@app.command()
def join(
    ctx: typer.Context,
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT[,…]", help="server.join_address of each scheduler.")
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
        joined = join_cluster(
            _founder_dir(target, config), server, text, "witness" if witness else "scheduler"
        )
    _print(joined, joined.me, ctx)
    if not witness:
        _configure(config, joined.members, joined.me)
    start = f"dgpu witness --dir {joined.directory}" if witness else "dgpu scheduler --config scheduler.yaml"
    note(
        f"{joined.me} has joined as a {joined.role}. Start it: {start}. It gets its vote when it has caught up."
    )


@app.command()
def status(
    ctx: typer.Context,
    directory: Directory = None,
    config: Config = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Ask this scheduler instead of the engine.")
    ] = None,
    token: Annotated[str | None, typer.Option("--token", metavar="TOKEN", help="Better: DGPU_TOKEN.")] = None,
) -> int:
    """Schedulers with their role and lag, members and their health, and the end of the journal.

    On a machine of the cluster it asks the engine itself. Elsewhere, or with --server, it asks a scheduler.
    Exit code 1: no majority of members answers.
    """
    from dgpu.cli.ha_status import print_local, print_of_server
    from dgpu.entry.ha.errors import HaFailure

    flags = flags_of(ctx)
    flags.server, flags.token = server or flags.server, token or flags.token
    is_named = directory is not None or config is not None
    if not is_named and (flags.server or not _has_member()):
        return print_of_server(flags)
    with _refusals(HaFailure):
        found = _status_of(directory, config)
    return print_local(found, flags)


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
        done = hand_over(_member_dir(directory, config), from_name)
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
        done = replace_member(_member_dir(directory, config), old, new)
    _print(done, done.new, ctx)
    note(
        f"{done.old} is no member any more; {done.new} may join. Next, here: dgpu ha token {done.new} [--witness]"
    )
    if done.old != done.new:
        note(f"Set ha.members to {', '.join(done.members)} in scheduler.yaml of both schedulers.")


@app.command()
def leave(ctx: typer.Context, directory: Directory = None, config: Config = None) -> None:
    """Go back to a single scheduler, on this machine. It must be stopped, and so must the other scheduler."""
    from dgpu.entry.ha.config_text import remove_managed
    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.leaving import leave_cluster

    with _refusals(HaFailure):
        done = leave_cluster(_member_dir(directory, config))
    _print(done, done.me, ctx)
    note(f"{done.directory} goes on alone after group {done.index}.")
    if config is not None and remove_managed(config):
        note(f"{config} has no section ha any more, and storage.journal: file.")
    else:
        note("Remove the section ha and storage.journal from scheduler.yaml.")
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
    from dgpu.entry.ha.config_text import is_managed, managed_lines, write_managed

    if config is not None and is_managed(config, members, me):
        return
    if config is not None and write_managed(config, members, me):
        note(f"{config} has the section ha now, and storage.journal: etcd.")
    else:
        note(f"Set storage.journal: etcd in scheduler.yaml, and:\n{managed_lines(members, me)}")


@contextlib.contextmanager
def _refusals(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        raise CliFailure(_sentence(str(error)), ExitCode.REFUSED) from None


def _sentence(text: str) -> str:
    """Names of hosts and files keep their first letter."""
    is_word = text.partition(" ")[0].rstrip(":,").isalpha()
    return f"{text[:1].upper() if is_word else text[:1]}{text[1:].rstrip('.')}."


def _status_of(directory: Path | None, config: Path | None) -> HaStatus:
    from dgpu.entry.config import ConfigError, load_scheduler_config
    from dgpu.entry.ha.status import configured_status, ha_status

    if directory is not None:
        return ha_status(_data_dir(directory, config))
    try:
        return configured_status(load_scheduler_config(config))
    except ConfigError as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None


def _has_member() -> bool:
    """Whether the usual directory of this machine belongs to a member."""
    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.member_files import MemberFiles

    try:
        MemberFiles(_data_dir(None, None)).member()
    except (HaFailure, OSError):
        return False
    return True


def _founder_dir(directory: Path | None, config: Path | None) -> Path:
    """Of a scheduler that has a member, or may get one. Raises HaFailure."""
    from dgpu.entry.config import load_scheduler_config
    from dgpu.entry.ha.errors import HaFailure

    found = _data_dir(directory, config)
    if directory is None and load_scheduler_config(config).ha.mode == "external":
        raise HaFailure(
            "ha.mode is external: this verb is for members that dgpu runs (ha.mode: managed). To let another scheduler "
            "lead, stop the one that leads"
        )
    return found


def _member_dir(directory: Path | None, config: Path | None) -> Path:
    """Raises HaFailure."""
    from dgpu.entry.ha.errors import HaFailure

    found = _founder_dir(directory, config)
    if directory is None and config is None and not _has_member():
        raise HaFailure(
            f"{found}, the usual directory, has no member of a cluster: name yours by --config scheduler.yaml or --dir"
        )
    return found


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
