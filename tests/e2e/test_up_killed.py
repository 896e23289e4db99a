"""`dgpu up` is killed at every stage of its start: the next `up` takes over, and `down` leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time

import pytest

from dgpu.entry.processes import holders, process_ref

from .conftest import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.slow


def processes_of(site):
    """Every living process that names the state directory, or holds a file in it open."""
    mark = str(site.data_dir)
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            files = [str(entry.readlink()) for entry in (process / "fd").iterdir()]
        except OSError:
            continue
        is_ours = mark in command or any(file.startswith(mark) for file in files)
        if is_ours and int(process.name) != os.getpid() and process_ref(int(process.name)):
            found[int(process.name)] = command
    return found


def record_names(site, part):
    try:
        return site.record.get(part) is not None
    except (OSError, ValueError):
        return False


def held(site, name):
    return bool(holders(site.data_dir / f"{name}.hold"))


# In the order in which a start passes them.
STAGES = {
    "locked": lambda site: (site.data_dir / "up.lock").exists(),
    "recorded": lambda site: (site.data_dir / "up.json").exists(),
    "scheduler_started": lambda site: held(site, "scheduler"),
    "scheduler_has_the_journal": lambda site: (site.data_dir / "scheduler" / "journal").exists(),
    "scheduler_recorded": lambda site: record_names(site, "scheduler"),
    "agent_started": lambda site: held(site, "agent"),
    "keeper_starting": lambda site: (site.data_dir / "agent" / "keeper.lock").exists(),
    "keeper_started": lambda site: (site.data_dir / "agent" / "keeper.json").exists(),
    "agent_recorded": lambda site: record_names(site, "agent"),
}


def kill_up_at(site, stage):
    process = site.start("up", "--fake", "2xV100", "--http-port", "0", "--grpc-port", "0")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not STAGES[stage](site) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("stage", STAGES)
def test_down_ends_everything_that_an_up_killed_at_this_stage_has_left(site, stage):
    kill_up_at(site, stage)
    down = site.good("down")
    assert "Traceback" not in down.err
    eventually(lambda: not processes_of(site), f"the processes to end: {processes_of(site)}")
    assert not (site.data_dir / "up.json").exists()


def test_the_next_up_takes_over_from_one_that_was_killed_at_any_stage(site):
    for stage in STAGES:
        kill_up_at(site, stage)
        site.up()
        assert site.dgpu("run", "--", "echo", stage).out == f"{stage}\n"
        code, said = site.interrupt()
        assert code == 0, said
        eventually(lambda: not processes_of(site), f"the processes to end: {processes_of(site)}")
        for left in ("up.json", "agent/keeper.json", "agent/keeper.lock"):
            (site.data_dir / left).unlink(
                missing_ok=True
            )  # so that the next start is seen to pass its stages


def test_down_leaves_a_running_task_alone_when_up_was_killed_at_its_start(site):
    site.up()
    task_id = site.submit("--", "sleep", "600")
    site.started(task_id)
    site.interrupt()
    kill_up_at(site, "agent_started")
    site.good("down")
    assert site.keepers(), "the keeper holds the task"
    site.up()
    assert (site.task(task_id)["status"], site.task(task_id)["attempt"]) == ("running", 1)
    assert "still running" not in site.good("down", "--stop-tasks").err
    site.supervisor.communicate(timeout=PATIENCE_SECONDS)
    site.supervisor = None
    eventually(lambda: not processes_of(site), "the processes to end")


def started_by(up, site, name):
    """`up` itself has the file open for a moment, until its child has it."""
    return [ref for ref in holders(site.data_dir / f"{name}.hold") if ref.pid != up.pid]


def stopped_agent(up, site):
    """The agent of a starting `up`, stopped before it can register. Its scheduler is ready."""
    found = eventually(lambda: started_by(up, site, "agent"), "the agent to be started")
    os.kill(found[0].pid, signal.SIGSTOP)
    return found[0].pid


def test_a_scheduler_that_dies_while_up_waits_for_the_agent_is_started_again(site):
    starting = site.start("up", "--fake", "2xV100", "--http-port", "0", "--grpc-port", "0")
    agent = stopped_agent(starting, site)
    (scheduler,) = started_by(starting, site, "scheduler")
    os.kill(scheduler.pid, signal.SIGKILL)
    eventually(
        lambda: [ref for ref in started_by(starting, site, "scheduler") if ref != scheduler],
        "the scheduler to be started again while the agent is still starting",
    )
    os.kill(agent, signal.SIGCONT)
    site.supervisor = starting
    told = starting.stdout.readline()
    assert "dgpu is up at" in told, starting.communicate(timeout=PATIENCE_SECONDS)
    assert site.dgpu("run", "--", "echo", "works").out == "works\n"
    code, said = site.interrupt()
    assert code == 0
    assert "The scheduler ended unexpectedly (signal 9)" in said


def test_a_scheduler_that_keeps_dying_while_up_waits_is_reported_with_its_log(site):
    starting = site.start("up", "--fake", "2xV100", "--http-port", "0", "--grpc-port", "0")
    agent = stopped_agent(starting, site)
    log = site.data_dir / "scheduler.log"
    for kill in range(1, 4):
        # In this order: a scheduler that is ready holds the file, so it is found. `up` may end before the third kill:
        # it has not seen the second one's readiness if that is killed at once.
        eventually(
            lambda kill=kill: log.read_text().count("scheduler_ready") >= kill or starting.poll() is not None,
            f"start {kill} to be ready",
        )
        for ref in started_by(starting, site, "scheduler"):
            with contextlib.suppress(
                ProcessLookupError
            ):  # a child of the one before held the file for a moment
                os.kill(ref.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(agent, signal.SIGCONT)  # so that it can be ended
    _, said = starting.communicate(timeout=PATIENCE_SECONDS)
    assert starting.returncode == 1
    assert "The scheduler ended with code -9" in said
    assert "scheduler_ready" in said, "the end of its log"
    eventually(lambda: not processes_of(site), "the processes to end")
