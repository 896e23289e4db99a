"""`dgpu up` and `dgpu down`: start, supervise, find and stop a scheduler and an agent for this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dgpu.entry.ask import ask, dashboard_url, running_tasks
from dgpu.entry.keepers import end_idle_keepers, end_keepers, find_keepers, kept_tasks
from dgpu.entry.processes import ProcessRef, processes_of, set_aside, stop_process, tail
from dgpu.entry.stack import (
    GRPC_PORT,
    HTTP_PORT,
    READY_SECONDS,
    Stack,
    StartFailed,
    StartStopped,
    choose_cards,
)
from dgpu.entry.state_dir import StateDir, UpRecord
from dgpu.entry.supervisor import DRAINED_BY_DOWN, StopSignals, Supervisor

_START_SECONDS = 2 * READY_SECONDS + 5
_STOP_TASKS_SECONDS = 60.0
_STOP_SECONDS = 45.0  # more than the supervisor gives its services
_MAX_LISTED = 5


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    fake: str | None = None
    nodes: int = 1
    data_dir: Path | None = None
    http_port: int = HTTP_PORT
    grpc_port: int = GRPC_PORT
    accept_lost_tail: bool = False


def say(message: str) -> None:
    with contextlib.suppress(OSError):  # a full disk or a closed terminal is no reason to end
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()


def up(options: UpOptions) -> int:
    """Runs in the foreground, until Ctrl-C or SIGTERM. ValueError: invalid options."""
    cards = choose_cards(options.fake, options.nodes)
    state_dir = StateDir(options.data_dir)
    state_dir.create()
    lock = state_dir.lock()
    if lock is None:
        say(f"dgpu: {_already_up(state_dir)}")
        return 1
    signals = StopSignals()
    try:
        _end_leftovers(state_dir)
        if cards.why_simulated:
            say(f"No GPU was found ({cards.why_simulated}).")
            words = cards.words.removesuffix(", simulated")
            say(f"Simulating {words}: tasks are real processes, only the GPUs are simulated.")
        if (doubt := _doubt_of_heartbeats()) is not None:
            say(f"Note: {doubt}")
        stack = Stack(state_dir, cards, http_port=options.http_port, grpc_port=options.grpc_port)
        if options.accept_lost_tail:
            stack.accept_lost_tail()
        return _serve(Supervisor(stack, signals, say), state_dir)
    finally:
        os.close(lock)


def _doubt_of_heartbeats() -> str | None:
    """Only the environment can change these values."""
    if not any("HEARTBEAT" in name.upper() for name in os.environ):
        return None
    from dgpu.entry.config import ConfigError, load_agent_config, load_scheduler_config
    from dgpu.entry.config_checks import heartbeat_doubt

    try:
        timeout = load_scheduler_config(None).agent.heartbeat_timeout
        interval = load_agent_config(None).agent.heartbeat_interval
    except ConfigError:
        return None  # the service itself reports the error
    return heartbeat_doubt(interval, timeout)


def _serve(supervisor: Supervisor, state_dir: StateDir) -> int:
    stack = supervisor.stack
    began = datetime.now(UTC)
    try:
        supervisor.start()
        _announce(state_dir, stack, began)
        supervisor.tell_ready()
        code = supervisor.watch()
        running = running_tasks(stack.url)
    except StartFailed as failure:
        say(f"dgpu: {failure}")
        return 1
    except StartStopped:
        code, running = 0, None
    finally:
        stack.stop()
        state_dir.remove_record()
    if running == []:
        end_keepers(state_dir.tasks_dir)
    say(_what_remains(running, state_dir))
    return code


def _listed(names: list[str]) -> str:
    left = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {left:,} more: dgpu ps" if left > 0 else "")


def _announce(state_dir: StateDir, stack: Stack, began: datetime) -> None:
    sys.stdout.write(f"dgpu is up at {stack.url} with {stack.cards.words}.\n")
    sys.stdout.flush()
    if sys.stderr.isatty():  # a code must not be in a log
        say(f"Dashboard: {dashboard_url(stack.url)}    (again: dgpu dashboard)")
    else:
        say(f"Dashboard: {stack.url}/    (from another user's browser: dgpu dashboard)")
    if not state_dir.is_default:
        say(f"In another terminal: export DGPU_SERVER={stack.url}")
    # Tasks that waited may have started by now; they are not listed.
    kept = running_tasks(stack.url, started_before=began)
    if kept:
        say(f"{_count(len(kept))} continued while dgpu was down: {_listed(kept)}.")
    first = "sleep 60" if stack.cards.simulated else "nvidia-smi"
    say(f"Try: dgpu submit -- {first}    dgpu ps    dgpu gpus    dgpu why 1")
    ends = "Ctrl-C stops" if sys.stdin.isatty() else f"To stop: {_down_command(state_dir)}. It ends"
    say(f"{ends} the scheduler and the agent; running tasks continue.")


def _what_remains(running: list[str] | None, state_dir: StateDir) -> str:
    again = "dgpu up" if state_dir.is_default else f"dgpu up --data-dir {state_dir.path}"
    if not running:
        return f"dgpu is down. The queue is kept; {again} continues with it."
    shown = ", ".join(running[:5]) + (" and more" if len(running) > 5 else "")
    return f"dgpu is down. {_count(len(running))} still running ({shown}); {again} adopts them."


def _count(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _already_up(state_dir: StateDir) -> str:
    record = state_dir.read_record()
    if record is None:
        return f"Another dgpu up is starting or ending in {state_dir.path}."
    return (
        f"Already up at {record.url} (pid {record.pid}, since {record.started_at}, {record.gpus}).\n"
        f"Use it, or end it: {_down_command(state_dir)}"
    )


def _down_command(state_dir: StateDir) -> str:
    return "dgpu down" if state_dir.is_default else f"dgpu down --data-dir {state_dir.path}"


def _end_leftovers(state_dir: StateDir) -> None:
    """Ends the services of an `up` that was killed. They hold the locks and the ports."""
    record = state_dir.read_record()
    for name in ("agent", "scheduler"):
        for ref in _services(state_dir, record, name):
            if stop_process(ref):
                say(f"Ended the {name} (pid {ref.pid}) of an earlier dgpu up.")
    state_dir.remove_record()


def _services(state_dir: StateDir, record: UpRecord | None, name: str) -> list[ProcessRef]:
    """Living processes of this service, from the record and from the file that each holds open."""
    return processes_of(state_dir.hold_file(name), getattr(record, name, None))


def up_detached(options: UpOptions) -> int:
    choose_cards(options.fake, options.nodes)
    state_dir = StateDir(options.data_dir)
    state_dir.create()
    deadline = time.monotonic() + _START_SECONDS
    starting = state_dir.lock_start()
    if starting is None:
        say(f"Another dgpu up is starting in {state_dir.path}; waiting for it.")
    while starting is None and time.monotonic() < deadline:
        time.sleep(0.05)
        starting = state_dir.lock_start()
    if starting is None:
        say(f"dgpu: {_already_up(state_dir)}")
        return 1
    try:
        return _start_detached(options, state_dir)
    finally:
        os.close(starting)


def _start_detached(options: UpOptions, state_dir: StateDir) -> int:
    if state_dir.is_locked():
        say(f"dgpu: {_already_up(state_dir)}")
        return 0 if state_dir.read_record() is not None else 1  # 0: another `up` has started it
    log_file = state_dir.log_file("up")
    set_aside(log_file)
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            _foreground_command(options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        record = state_dir.read_record()
        if record is not None and record.ready and record.pid == process.pid:
            sys.stdout.write(tail(log_file, 20) + "\n")
            return 0
        time.sleep(0.05)
    say(f"dgpu: It did not start. Its log ({log_file}) ends with:\n{tail(log_file, 20)}")
    return 1


def _foreground_command(options: UpOptions) -> list[str]:
    command = [sys.executable, "-m", "dgpu", "up", "--nodes", str(options.nodes)]
    command += ["--http-port", str(options.http_port), "--grpc-port", str(options.grpc_port)]
    if options.fake is not None:
        command += ["--fake", options.fake]
    if options.accept_lost_tail:
        command += ["--accept-lost-tail"]
    if options.data_dir is not None:
        command += ["--data-dir", str(options.data_dir.absolute())]
    return command


def down(data_dir: Path | None, *, stop_tasks: bool) -> int:
    state_dir = StateDir(data_dir)
    record = state_dir.read_record()
    found = _all_processes(state_dir, record)
    if not found:
        state_dir.remove_record()
        return _down_already(state_dir, stop_tasks=stop_tasks)
    running = running_tasks(record.url) if record and _services(state_dir, record, "scheduler") else None
    if record and stop_tasks and running is not None:
        running = _stop_tasks(state_dir, record)
    if left := _end(state_dir, record):
        pids = ", ".join(str(ref.pid) for ref in left)
        say(f"dgpu: Process {pids} does not end. Its log: {state_dir.log_file('up')}")
        return 1
    state_dir.remove_record()
    if stop_tasks:
        if not _end_tasks(state_dir):
            return 1
        running = []
    elif running == []:
        end_keepers(state_dir.tasks_dir)
    elif running is None:
        end_idle_keepers(state_dir.tasks_dir)
    say(_what_remains(running, state_dir))
    if running is None and find_keepers(state_dir.tasks_dir):
        say("Tasks may still be running. To end them: add --stop-tasks")
    return 0


def _down_already(state_dir: StateDir, *, stop_tasks: bool) -> int:
    end_idle_keepers(state_dir.tasks_dir)
    left = find_keepers(state_dir.tasks_dir)
    if left and stop_tasks:
        if not _end_tasks(state_dir):
            return 1
        say("The running tasks have ended.")
    elif left:
        say(
            f"dgpu is not running in {state_dir.path}; tasks may still be running. To end them: add --stop-tasks"
        )
    else:
        say(f"dgpu is not running in {state_dir.path}.")
    return 0


def _end_tasks(state_dir: StateDir) -> bool:
    """Ends the keepers. Tasks that no scheduler has cancelled are recorded first: without the record, the next `up`
    would treat them as interrupted and start them again.
    """
    try:
        if tasks := kept_tasks(state_dir.tasks_dir):
            state_dir.note_stopped(tasks)
    except OSError as error:
        say(f"dgpu: The tasks were not ended: {state_dir.path} cannot be written ({error.strerror}).")
        return False
    end_keepers(state_dir.tasks_dir)
    return True


def _stop_tasks(state_dir: StateDir, record: UpRecord) -> list[str] | None:
    """Drains first: otherwise the next tasks of the queue would start on the freed GPUs.

    Without an agent no end can be reported, so nothing waits: the keepers are ended later in any case.
    """
    answer = ask(record.url, "/api/v1/nodes")
    for node in (answer.body or {}).get("nodes", ()) if answer else ():
        if not node.get("draining"):
            ask(
                record.url,
                f"/api/v1/nodes/{node['id']}/drain",
                method="POST",
                body={"reason": DRAINED_BY_DOWN},
            )
    ask(record.url, "/api/v1/tasks/cancel", method="POST", body={"status": "running"})
    deadline = time.monotonic() + _STOP_TASKS_SECONDS
    running = running_tasks(record.url)
    while running and time.monotonic() < deadline and _may_report(state_dir, record):
        time.sleep(0.1)
        running = running_tasks(record.url)
    return running


def _may_report(state_dir: StateDir, record: UpRecord) -> bool:
    """Whether an agent runs, or a supervisor that restarts it."""
    return bool(_services(state_dir, record, "agent") or _supervisors(state_dir, record))


def _supervisors(state_dir: StateDir, record: UpRecord | None) -> list[ProcessRef]:
    return processes_of(state_dir.lock_file, record.supervisor if record else None)


def _all_processes(state_dir: StateDir, record: UpRecord | None) -> list[ProcessRef]:
    services = [_services(state_dir, record, name) for name in ("agent", "scheduler")]
    return [*_supervisors(state_dir, record), *(ref for refs in services for ref in refs)]


def _end(state_dir: StateDir, record: UpRecord | None) -> list[ProcessRef]:
    """Ends the supervisor first, because it would restart its services. Returns the processes that do not end."""
    for ref in _supervisors(state_dir, record):
        stop_process(ref, _STOP_SECONDS)
    for name in ("agent", "scheduler"):
        for ref in _services(state_dir, record, name):
            stop_process(ref)
    return _all_processes(state_dir, record)
