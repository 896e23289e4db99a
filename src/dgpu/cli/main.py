"""`dgpu VERB`. The module of a verb is imported only when the verb is used, which keeps short commands fast."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from dgpu.cli.extras import missing_package, require
from dgpu.cli.failures import CliFailure, ExitCode, ReaderLeft, complain, complain_in_json, translated
from dgpu.cli.flags import Flags, shared_parameters, shared_parameters_of_tasks, watch_parameters
from dgpu.cli.lightness import lighten

if TYPE_CHECKING:
    from typer._click.core import Command, Context


class Verb(NamedTuple):
    summary: str
    asks: bool = True  # takes the shared flags
    prints: bool = False  # asks no scheduler, but takes the flags of the output format
    watches: bool = False
    describes: bool = False  # takes the flags that describe a task
    forms: bool = True  # -o selects the output format; otherwise the verb has its own -o
    extras: tuple[str, ...] = ()  # of the distribution: the verb needs their packages


COMPLETE_VARIABLE = "_DGPU_COMPLETE"  # set by a shell that asks for completions
_ALL = ("server", "agent")


VERBS = {
    "up": Verb("Start a scheduler and an agent for this machine.", asks=False, extras=_ALL),
    "down": Verb("Stop the processes of up.", asks=False),
    "demo": Verb("A tour on simulated GPUs: a mixed load, crashes, no task lost.", asks=False, extras=_ALL),
    "submit": Verb("Queue a command.", describes=True),
    "run": Verb("Queue a command, show its output, return its exit code.", describes=True),
    "shell": Verb("Queue a shell with a terminal; the same as run -it -- $SHELL.", describes=True),
    "alloc": Verb("Hold GPUs of this machine while a local command runs.", describes=True),
    "call": Verb("Call a Python function on a GPU, in a warm worker.", describes=True),
    "attach": Verb("Attach to the terminal of a task that run -it started."),
    "exec": Verb("Run a command inside a running task."),
    "forward": Verb("Reach TCP ports of a running task from this machine."),
    "link": Verb("A link that opens a port of a running task in a browser."),
    "jupyter": Verb("JupyterLab on a GPU.", describes=True),
    "serve": Verb("Run a service: replicas behind one address.", describes=True),
    "services": Verb("Services; show, scale, restart, rollback, link, delete.", watches=True),
    "ps": Verb("List tasks: where they run, or why they wait.", watches=True),
    "why": Verb("Why a task waits, and what would start it sooner."),
    "show": Verb("Details of a task."),
    "logs": Verb("Show the output of a task."),
    "result": Verb("The value that a function returned."),
    "fetch": Verb("Copy files of a task to this machine.", forms=False),
    "cancel": Verb("Cancel waiting or running tasks."),
    "retry": Verb("Submit ended tasks again."),
    "hold": Verb("Keep waiting tasks from starting."),
    "release": Verb("Release held tasks."),
    "priority": Verb("Change the priority of a waiting task."),
    "wait": Verb("Wait for tasks to end."),
    "top": Verb("A live view of nodes, GPUs and tasks."),
    "queue": Verb("Waiting tasks in queue order.", watches=True),
    "estimate": Verb("Memory estimates of tasks."),
    "nodes": Verb("Nodes; drain, resume, lost, remove.", watches=True),
    "gpus": Verb("GPUs and their tasks; recover.", watches=True),
    "workers": Verb("Warm workers of functions, and their loaded models.", watches=True),
    "history": Verb("Measurements of GPUs as curves.", watches=True),
    "report": Verb("GPU-hours and waiting times by tenant, pool or user."),
    "alerts": Verb("Alerts; ack, silence, test.", watches=True),
    "quota": Verb("Quota and usage of the pools; set.", watches=True),
    "tenant": Verb("Tenants and their limits; list, show, set, remove.", watches=True),
    "login": Verb("Store a token for a scheduler."),
    "logout": Verb("Forget the stored token."),
    "whoami": Verb("Your user, role and tenants."),
    "token": Verb("API tokens; list, create, revoke.", watches=True),
    "secret": Verb("Secrets of a tenant; list, set, delete, rotate.", watches=True),
    "audit": Verb("Changes and refused attempts: user, origin, result."),
    "dashboard": Verb("Open the dashboard in a browser."),
    "scheduler": Verb("The scheduler service.", asks=False, extras=("server",)),
    "agent": Verb("The agent service of a node; join.", asks=False, extras=("agent",)),
    "ha": Verb(
        "High availability; init, token, join, status, handover, replace-member, leave, backup, restore.",
        asks=False,
        prints=True,
    ),
    "chaos": Verb("Faults against a throw-away cluster under load, and a verdict.", asks=False, extras=_ALL),
    "witness": Verb("The third member of a highly available cluster.", asks=False, extras=("server",)),
    "ca": Verb(
        "Certificates of machines; init, certificate, token, list, revoke.",
        asks=False,
        prints=True,
        extras=("server",),
    ),
    "install-service": Verb("Install a systemd unit.", asks=False),
    "slurm-shims": Verb("Install sbatch, squeue and other commands of Slurm.", asks=False),
    "doctor": Verb("Check this machine and the scheduler."),
    "completion": Verb("Completion for bash, zsh or fish.", asks=False),
    "version": Verb("Print the version."),
}


class LazyVerbs(TyperGroup):
    """Help and completion read the table above; only the module of the used verb is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, verb in VERBS.items():
            self.commands[name] = TyperCommand(name, help=verb.summary, rich_markup_mode=None)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_verb(name) if name in VERBS else command, rest


def load_verb(name: str) -> Command:
    verb = VERBS[name]
    if verb.extras:
        require(name, verb.extras)
    module = importlib.import_module(f"dgpu.cli.{name.replace('-', '_')}")
    app: typer.Typer = module.app
    app.rich_markup_mode = None
    command = typer.main.get_command(app)
    if verb.describes:
        from dgpu.cli.submission import parameters_of_verb

        command.params[1:1] = parameters_of_verb(name)  # after CMD, before the verb's own
    if verb.asks:
        _add_parameters(command, watches=verb.watches, forms=verb.forms, describes=verb.describes)
    elif verb.prints:
        for inner in getattr(command, "commands", {}).values():
            inner.params.extend(each for each in shared_parameters() if {"-o", "--json"} & set(each.opts))
    lighten(command)
    if COMPLETE_VARIABLE in os.environ:
        from dgpu.cli.completing import attach

        attach(command)
    return command


def _add_parameters(command: Command, *, watches: bool, forms: bool = True, describes: bool = False) -> None:
    parameters = shared_parameters_of_tasks() if describes else shared_parameters()
    command.params.extend(each for each in parameters if forms or "-o" not in each.opts)
    if watches:
        command.params.extend(watch_parameters())
    for inner in getattr(command, "commands", {}).values():
        _add_parameters(inner, watches=False)


app = typer.Typer(
    cls=LazyVerbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """A GPU scheduler that explains its decisions. First steps: dgpu up, dgpu submit -- python train.py, dgpu ps."""


def run(arguments: Sequence[str]) -> int:
    """The whole command line as a function: arguments in, exit code out."""
    command = typer.main.get_command(app)
    command.params.extend(shared_parameters())
    lighten(command)
    flags = Flags()
    try:
        code = command.main(args=list(arguments), prog_name="dgpu", standalone_mode=False, obj=flags)
    except typer.TyperException as refused:
        return _complain_usage(refused, flags)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, ReaderLeft):
        return _reader_gone()
    except Exception as error:  # noqa: BLE001  the last line of defence: never a traceback for a person
        failure = _missing(error) or translated(error) or _own_fault(error, flags)
        _complain(failure, flags)
        return ExitCode.OWN_FAILURE if flags.returns_task_code else failure.exit_code
    return code if isinstance(code, int) else ExitCode.OK


def _missing(error: Exception) -> CliFailure | None:
    return missing_package(error) if isinstance(error, ModuleNotFoundError) else None


def _own_fault(error: Exception, flags: Flags) -> CliFailure:
    if flags.is_service or os.environ.get("DGPU_DEBUG"):
        raise error
    return CliFailure(f"Internal error: {type(error).__name__}: {error}\nFor a full trace, set DGPU_DEBUG=1")


def _complain(failure: CliFailure, flags: Flags) -> None:
    if flags.output == "json":
        complain_in_json(failure)
    else:
        complain(failure.message)


def _complain_usage(refused: typer.TyperException, flags: Flags) -> int:
    path = getattr(getattr(refused, "ctx", None), "command_path", "dgpu")
    code = ExitCode.USAGE if refused.exit_code == 2 else refused.exit_code
    if type(refused).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(refused.format_message() + "\n")
    else:
        _complain(CliFailure(f"{refused.format_message()}\nTry: {path} --help", code), flags)
    return code


def _reader_gone() -> int:
    # `dgpu ps | head` closes stdout early; the interpreter must not report that at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main() -> None:
    # Imports create a hundred thousand permanent objects; by default the collector scans them repeatedly.
    gc.set_threshold(50_000, 20, 100)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_gone()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    sys.exit(code)
