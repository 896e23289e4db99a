"""`dgpu demo`: a scheduler, four simulated nodes, sixty real processes, two kills, and a summary.

It writes only to a temporary directory and ends every process that it started.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dgpu.client.errors import DgpuError, Refused
from dgpu.client.sync import Client
from dgpu.entry import demo_load as load
from dgpu.entry.ask import dashboard_url
from dgpu.entry.demo_load import Ledger, Planned
from dgpu.entry.demo_stage import Stage
from dgpu.entry.keepers import end_keepers
from dgpu.entry.stack import Stack, StartFailed, choose_cards, free_port
from dgpu.entry.state_dir import StateDir
from dgpu.wire.answers import TaskAnswer

_ORDINARY = 51
_LONG = 4
_OUTAGE_SECONDS = 1.5
_READING_SECONDS = 1.0  # on a terminal, between the steps
_END_SECONDS = 150.0
_STEP_SECONDS = 60.0


def demo() -> int:
    """0: all checks passed."""
    interrupted = _Interrupted()
    home = Path(tempfile.mkdtemp(prefix="dgpu-demo-"))
    http_port = free_port(0)
    stack = Stack(
        StateDir(home / "state"),
        choose_cards(load.CARDS, load.NODES),
        http_port=http_port,
        grpc_port=free_port(0, taken=http_port),
        storage={"segment_mb": 4},
    )
    stage = Stage()
    try:
        code = _Demo(stack, stage, home).play()
    except (StartFailed, DgpuError, DemoFailed) as failure:
        stage.close_bar()
        sys.stderr.write(f"dgpu: The demo failed: {failure}\n")
        return 1
    except KeyboardInterrupt:
        stage.close_bar()
        sys.stderr.write("\nStopped; cleaning up.\n")
        return 130
    else:
        return 130 if interrupted.by_somebody else code
    finally:
        stage.close_bar()
        _clean_up(stack, home)


class _Interrupted:
    """Remembers a Ctrl-C that Python swallows (in a destructor), so that it still counts at the end."""

    def __init__(self) -> None:
        self.by_somebody = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.by_somebody = True
        raise KeyboardInterrupt


def _clean_up(stack: Stack, home: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the clean-up
    stack.stop()
    end_keepers(stack.state_dir.tasks_dir)
    shutil.rmtree(home, ignore_errors=True)


class DemoFailed(Exception):  # noqa: N818  it says what happened
    pass


class _Demo:
    def __init__(self, stack: Stack, stage: Stage, home: Path) -> None:
        self.stack = stack
        self.stage = stage
        self.say = stage.say
        self.client = Client(stack.url, retries=8)
        self.ledger = Ledger(home / "ledger")
        self.release = home / "release"
        self.planned: dict[str, Planned] = {}
        self.names: dict[str, str] = {}
        self.checks: list[tuple[str, bool]] = []

    def play(self) -> int:
        steps = (
            self.start,
            self.submit,
            self.refuse,
            self.explain,
            self.cancel,
            self.kill_scheduler,
            self.kill_agent,
        )
        for step in steps:
            step()
            if self.stage.live:
                time.sleep(_READING_SECONDS)
        tasks = self.finish()
        self.judge(tasks)
        held = all(good for _, good in self.checks)
        self.account(tasks, held=held)
        if self.stage.live and sys.stdin.isatty():
            self.stay()
        return 0 if held else 1

    def start(self) -> None:
        self.say(
            "A scheduler starts, and an agent with 4 simulated nodes of 2 GPUs each. Tasks are real processes."
        )
        self.stack.prepare()
        self.stack.start_scheduler()
        self.stack.start_agent()
        self.say(f"Ready: {self.stack.url}")
        if self.stage.live:
            self.say(f"Watch it in a browser: {dashboard_url(self.stack.url)}")

    def submit(self) -> None:
        """The long tasks first, so that they run during the kills."""
        troubled = load.troubled_tasks(self.ledger)
        plan = [
            *load.long_tasks(self.ledger, _LONG, self.release),
            *troubled.values(),
            *load.ordinary_tasks(self.ledger, _ORDINARY),
        ]
        ids = self.client.submit_many([planned.task for planned in plan])
        self.planned = dict(zip(ids, plan, strict=True))
        self.names = {planned.task["name"]: task_id for task_id, planned in self.planned.items()}
        self.say(
            f"{len(ids)} tasks submitted in one call: 4 levels of priority, 1 or 2 GPUs each. One will fail, one is\n"
            "too slow for its time limit, one succeeds at its second attempt, one will be cancelled."
        )
        self.stage.open_bar(len(ids))
        self.until(lambda: self.running(self.planned) >= load.GPUS - 1, "tasks to run on nearly all GPUs")

    def refuse(self) -> None:
        try:
            self.client.submit(**load.IMPOSSIBLE)
        except Refused as refused:
            self.check("what can never run is refused at once", refused.code == "never_fits")
            self.say(f"A task for 16 GPUs on one node is refused at once: {refused}")
        else:
            self.check("what can never run is refused at once", good=False)

    def explain(self) -> None:
        task_id = self.names["patient"]
        why = self.client.why(task_id)
        self.check("a waiting task says why it waits", why.status == "pending" and bool(why.blockers))
        lines = [f"- {blocker.get('detail') or blocker.get('code')}" for blocker in why.blockers[:4]]
        place = f"position {why.position} in the queue" if why.position else "waiting"
        self.say("\n".join([f"dgpu why {task_id}: {place}, because", *lines]))

    def cancel(self) -> None:
        task_id = self.names["changed-mind"]
        self.until(
            lambda: self.client.get(task_id).started_at is not None, "the task to be cancelled to start"
        )
        self.client.cancel(task_id)
        self.until(lambda: self.client.get(task_id).status == "cancelled", "the cancelled task to end")
        self.say(f"dgpu cancel {task_id}: it was running, and its processes are gone.")

    def kill_scheduler(self) -> None:
        long_ids = self.long_ids()
        self.until(lambda: self.running(long_ids) == _LONG and self.over() >= 10, "the long tasks to run")
        running = [task.task_id for task in self.tasks() if task.status == "running"]
        ended_before = self.ledger.ends()
        self.stack.scheduler.signal(signal.SIGKILL)
        self.stack.scheduler.reap()
        self.say(f"kill -9 of the scheduler, with {len(running)} tasks running.")
        time.sleep(_OUTAGE_SECONDS)
        meanwhile = self.ledger.ends() - ended_before
        began = time.monotonic()
        self.stack.start_scheduler()
        known = {task.task_id for task in self.tasks()}
        self.check("no task is lost with the scheduler", set(self.planned) <= known)
        self.say(
            f"It is back after {time.monotonic() - began:.1f} s and knows all {len(known)} tasks. "
            f"Running tasks continued without it: {meanwhile} ended meanwhile."
        )

    def kill_agent(self) -> None:
        long_ids = self.long_ids()
        self.until(
            lambda: self.running(long_ids) == _LONG and self.over() >= 25,
            "the long tasks to be found running",
        )
        running = sum(1 for task in self.tasks() if task.status == "running")
        self.stack.agent.signal(signal.SIGKILL)
        self.stack.agent.reap()
        self.say(f"kill -9 of the agent of all four nodes, with {running} tasks running.")
        time.sleep(_OUTAGE_SECONDS)
        self.stack.start_agent()
        self.until(lambda: self.running(long_ids) == _LONG, "the long tasks to be adopted")
        self.say(
            "It is back and has adopted them: the keeper, a small separate process, kept the tasks running."
        )
        self.release.touch()

    def long_ids(self) -> list[str]:
        return [self.names[f"training-{place}"] for place in range(1, _LONG + 1)]

    def finish(self) -> list[TaskAnswer]:
        self.until(
            lambda: all(task.status not in {"pending", "running"} for task in self.tasks()),
            "all tasks to end",
            _END_SECONDS,
        )
        self.stage.close_bar()
        return self.tasks()

    def judge(self, tasks: Sequence[TaskAnswer]) -> None:
        wrong = [text for task in tasks for text in _differences(task, self.planned[task.task_id])]
        self.check(
            f"all {len(self.planned)} tasks ended as they should",
            not wrong and len(tasks) == len(self.planned),
        )
        for text in wrong:
            self.say(f"Not as expected: {text}")
        self.check("no attempt was started twice", not self.ledger.twice())
        survivors = [self.client.get(task_id) for task_id in self.long_ids()]
        good = all(task.attempt == 1 and task.exit_code == 0 for task in survivors)
        self.check(f"the {_LONG} long tasks outlived both kills, in their first attempt", good)
        idle = self.client.gpus()
        self.check("all GPUs are free again", idle.idle == load.GPUS)

    def account(self, tasks: Sequence[TaskAnswer], *, held: bool) -> None:
        ended = {
            status: sum(1 for task in tasks if task.status == status)
            for status in ("success", "failed", "cancelled")
        }
        waits = sorted(_waited(task) for task in tasks if task.started_at)
        rows = [
            (
                "tasks",
                f"{len(tasks)}: {ended['success']} success, {ended['failed']} failed, {ended['cancelled']} cancelled",
            ),
            (
                "processes started",
                f"{sum(self.ledger.starts().values())}, {len(self.ledger.twice()) or 'none'} of them twice",
            ),
            (
                "waited for a GPU",
                f"{statistics.median(waits):.1f} s median, {waits[-1]:.1f} s at most",
            ),
            ("kill -9", "scheduler once, agent once"),
            *(("ok" if good else "NOT SO", text) for text, good in self.checks),
        ]
        if not held:
            rows.append(("logs", f"{self.stack.scheduler.tail(5)}\n{self.stack.agent.tail(5)}"))
        self.stage.table("What happened", rows)

    def stay(self) -> None:
        program = _program()
        self.client.submit_many(load.lively_tasks())
        self.stage.table(
            "The demo keeps running, with more tasks for some minutes. Look around:",
            [
                ("in a browser", dashboard_url(self.stack.url)),
                ("", "Open a waiting task: the page shows why it waits and when it will start."),
                ("in a terminal", f"export DGPU_SERVER={self.stack.url}"),
                (
                    "",
                    (
                        f"{program} top        {program} ps        {program} why ID        "
                        f"{program} run 'echo on $CUDA_VISIBLE_DEVICES'"
                    ),
                ),
                ("", f"{self.stack.url}/docs lists the REST API."),
            ],
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C is the normal end
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            input("Enter or Ctrl-C ends it. ")

    # looking

    def tasks(self) -> list[TaskAnswer]:
        """The tasks of the demo, ordered by id."""
        found = [task for task in self.client.list() if task.task_id in self.planned]
        return sorted(found, key=lambda task: int(task.task_id.removeprefix("task-")))

    def running(self, ids: Sequence[str] | dict[str, Planned]) -> int:
        """Counts tasks with a process; a placement alone is not enough."""
        return sum(
            1 for task in self.tasks() if task.task_id in ids and task.status == "running" and task.started_at
        )

    def over(self) -> int:
        return sum(1 for task in self.tasks() if task.status not in {"pending", "running"})

    def check(self, text: str, good: bool) -> None:
        self.checks.append((text, good))

    def until(self, condition: Callable[[], bool], what: str, seconds: float = _STEP_SECONDS) -> None:
        for _ in _ticks(seconds):
            if condition():
                return
            self.stage.show(self.tasks(), self.client.gpus().gpus)
        raise DemoFailed(
            f"timed out after {seconds:.0f} s waiting for {what}\n{self.stack.scheduler.tail(6)}"
        )


def _program() -> str:
    """The program as the user can type it: that of a clone is rarely in PATH."""
    beside = Path(sys.executable).with_name("dgpu")
    found = shutil.which("dgpu")
    return "dgpu" if not beside.exists() or (found and Path(found).samefile(beside)) else str(beside)


def _ticks(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.15)


def _differences(task: TaskAnswer, planned: Planned) -> list[str]:
    found = [
        ("status", task.status, planned.status),
        ("reason", task.reason, planned.reason or task.reason),
        ("exit code", task.exit_code, task.exit_code if planned.exit_code is None else planned.exit_code),
        ("attempts", task.attempt, planned.attempts),
    ]
    return [
        f"{task.name} ({task.task_id}): {what} is {seen!r}, not {wanted!r} {task.error}".rstrip()
        for what, seen, wanted in found
        if seen != wanted
    ]


def _waited(task: TaskAnswer) -> float:
    from datetime import datetime

    start = datetime.fromisoformat(task.started_at or task.created_at)
    return max(0.0, (start - datetime.fromisoformat(task.created_at)).total_seconds())
