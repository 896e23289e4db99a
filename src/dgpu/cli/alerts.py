from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.arguments import parse_duration
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import for_each, remove_each
from dgpu.cli.failures import ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import clock, duration, plural, since
from dgpu.cli.output import Column, Row, print_rows, repeat

app = typer.Typer(add_completion=False)

RULES = (
    "agent_offline",
    "node_unfit",
    "history_behind",
    "gpu_error",
    "gpu_unrecoverable",
    "gpu_temperature",
    "quota_usage",
    "failure_rate",
    "queue_wait",
    "worker_down",
    "disk_full",
    "epoch_unknown",
    "journal_unavailable",
    "clock_skew",
    "standby_lagging",
    "master_changed",
    "engine_unavailable",
    "engine_member_lost",
    "engine_quota",
)

Comment = Annotated[str, typer.Option("--comment", "-m", metavar="TEXT", help="Shown with the alert.")]


def _since(row: Row) -> str:
    return duration(since(row["resolved_at"] or row["firing_since"] or row["pending_since"]))


def _known(row: Row) -> str:
    words = []
    if row["acknowledged_at"]:
        words.append("acknowledged" + (f": {row['comment']}" if row["comment"] else ""))
    if row["silenced_until"]:
        words.append(f"silenced until {clock(row['silenced_until'])}")
    if row["flaps"]:
        words.append(f"came back {plural(row['flaps'], 'time')}")
    return ", ".join(words)


COLUMNS = (
    Column("ALERT", lambda row: str(row["id"])),
    Column("STATE", lambda row: str(row["state"])),
    Column("SEVERITY", lambda row: str(row["severity"])),
    Column("FOR", _since, right=True),
    Column("RULE", lambda row: str(row["rule"])),
    Column("SUBJECT", lambda row: str(row["subject"]), stretches=True, wide=True),
    Column("WHAT", lambda row: str(row["summary"]), stretches=True),
    Column("REMARK", _known, stretches=True),
)
SILENCES = (
    Column("SILENCE", lambda row: str(row["id"])),
    Column("RULE", lambda row: str(row["rule"])),
    Column("SUBJECT", lambda row: row["subject"] or "all", stretches=True),
    Column("UNTIL", lambda row: clock(row["until"])),
    Column("COMMENT", lambda row: str(row["comment"]), stretches=True),
)
HOLDS = Column("STATE", lambda row: "active" if row["active"] else "over")
TARGETS = (
    Column("TARGET", lambda row: str(row["name"])),
    Column("KIND", lambda row: str(row["kind"])),
    Column("ADDRESS", lambda row: str(row["address"]), stretches=True),
    Column("QUEUED", lambda row: str(row["queued"]), right=True),
    Column("SENT", lambda row: str(row["sent"]), right=True),
    Column("FAILED", lambda row: str(row["failed"]), right=True),
    Column("DROPPED", lambda row: str(row["dropped"]), right=True),
    Column("LAST-ERROR", lambda row: str(row["last_error"]), stretches=True),
)
TESTED = (
    Column("TARGET", lambda row: str(row["name"])),
    Column("ADDRESS", lambda row: str(row["address"]), stretches=True),
    Column("RESULT", lambda row: "ok" if row["ok"] else "failed"),
    Column("DETAIL", lambda row: str(row["detail"]), stretches=True),
    Column("TOOK", lambda row: duration(row["seconds"]), right=True),
)

State = Annotated[
    str | None,
    typer.Option("--state", "-s", metavar="STATE", help="pending, firing, resolved or open."),
]
Every = Annotated[bool, typer.Option("--all", "-a", help="Include resolved alerts.")]
OfRule = Annotated[str | None, typer.Option("--rule", metavar="RULE", help="Only alerts of this rule.")]


@app.callback(invoke_without_command=True)
def alerts(ctx: typer.Context, state: State = None, every: Every = False, rule: OfRule = None) -> None:
    """Open alerts. Subcommands: list, ack, silence, silences, unsilence, targets, test."""
    if ctx.invoked_subcommand is not None:
        return
    _list(flags_of(ctx), state, every=every, rule=rule)


@app.command("list")
def list_alerts(ctx: typer.Context, state: State = None, every: Every = False, rule: OfRule = None) -> None:
    """The same as without a subcommand."""
    _list(flags_of(ctx), state, every=every, rule=rule)


@app.command()
def ack(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ALERT...", help="alert-12 or 12.")],
    comment: Comment = "",
) -> None:
    """Acknowledge alerts: no more reminders are sent."""
    flags = flags_of(ctx)
    client = connect(flags)
    for_each(
        ids,
        lambda name: builtins(client.acknowledge_alert(name, comment=comment)),
        lambda answers: print_rows(answers, answers, COLUMNS, "id", flags),
    )


@app.command()
def silence(
    ctx: typer.Context,
    rule: Annotated[str, typer.Argument(metavar="RULE", help=f"{', '.join(RULES)}, or * for all.")],
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="A node or a GPU. [all]")] = None,
    lasting: Annotated[str, typer.Option("--for", metavar="TIME", help="90s, 15m, 2h, 1d.")] = "1h",
    comment: Comment = "",
) -> None:
    """Send no messages about a rule (and a subject) for some time. Its alerts are still listed."""
    flags = flags_of(ctx)
    seconds = parse_duration(lasting)
    made = builtins(connect(flags).silence_alerts(rule, subject=subject, seconds=seconds, comment=comment))
    print_rows(made, [made], SILENCES, "id", flags)


@app.command()
def silences(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", "-a", help="Include recently ended silences.")] = False,
) -> None:
    """Active silences."""
    flags = flags_of(ctx)
    rows = builtins(connect(flags).alert_silences(ended=every))
    print_rows({"silences": rows}, rows, (*SILENCES, HOLDS) if every else SILENCES, "id", flags)
    if flags.is_table and not any(row["active"] for row in rows):
        note("There are no silences.")


@app.command()
def unsilence(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="SILENCE...", help="silence-3 or 3.")],
) -> None:
    """End silences early."""
    flags = flags_of(ctx)
    client = connect(flags)
    remove_each(ids, client.remove_silence, flags)


@app.command()
def targets(ctx: typer.Context) -> None:
    """Targets of alerts, with their latest results."""
    flags = flags_of(ctx)
    rows = builtins(connect(flags).alert_targets())
    print_rows({"targets": rows}, rows, TARGETS, "name", flags)
    _note_none(rows, flags)


@app.command()
def test(ctx: typer.Context) -> None:
    """Send a test message to every target now. The exit code is 1 if any target fails."""
    flags = flags_of(ctx)
    rows = builtins(connect(flags).test_alert_targets())
    print_rows({"targets": rows}, rows, TESTED, "name", flags)
    _note_none(rows, flags)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def _list(flags: Flags, state: str | None, *, every: bool, rule: str | None) -> None:
    if every and state is not None:
        raise typer.BadParameter("--all and --state exclude each other", param_hint="--all")
    client = connect(flags)
    wanted = None if every else state or "open"

    def draw() -> None:
        answer = builtins(client.alerts(state=wanted, rule=rule, limit=1_000))
        print_rows(answer, answer["alerts"], COLUMNS, "id", flags)
        if flags.is_table:
            note(_summary(answer))

    repeat(draw, flags)


def _summary(answer: dict[str, Any]) -> str:
    parts = [f"{answer['firing']} firing", f"{answer['pending']} pending", f"{answer['resolved']} resolved"]
    more = answer["total"] - len(answer["alerts"])
    return ", ".join(parts) + (f"; {more:,} more than are shown" if more > 0 else "")


def _note_none(rows: list[dict[str, Any]], flags: Flags) -> None:
    if flags.is_table and not rows:
        note("No target is configured: alerts are only listed. See alerts.webhooks in scheduler.yaml.")
