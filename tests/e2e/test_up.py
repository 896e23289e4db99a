"""`dgpu up` and `dgpu down`: processes that they start, leave running, and find again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import time

import pytest

from dgpu.entry.processes import process_ref
from dgpu.entry.up import _STOP_TASKS_SECONDS

from .conftest import PATIENCE_SECONDS, Site, eventually

pytestmark = pytest.mark.slow


def test_ctrl_c_leaves_tasks_running_and_the_next_up_takes_them_back(site):
    site.up()
    release = site.home / "release"
    script = f"while [ ! -e {release} ]; do sleep 0.05; done; exit 5"
    task_id = site.submit("--", "sh", "-c", script)
    site.started(task_id)
    url = site.record["url"]
    code, said = site.interrupt()
    assert code == 0, said
    assert task_id in said
    assert "still running" in said
    assert not (site.data_dir / "up.json").exists()
    assert site.dgpu("ps", "--server", url).code == 3
    site.up()
    assert site.task(task_id)["status"] == "running"
    release.touch()
    assert site.dgpu("wait", task_id).code == 5
    assert site.task(task_id)["attempt"] == 1


def test_a_task_that_ends_while_dgpu_is_down_has_its_own_exit_code(site):
    site.up()
    release = site.home / "release"
    script = f"while [ ! -e {release} ]; do sleep 0.05; done; touch {release}.seen; exit 7"
    task_id = site.submit("--", "sh", "-c", script)
    site.started(task_id)
    site.interrupt()
    release.touch()
    eventually((site.home / "release.seen").exists, "the task to end")
    site.up()
    assert site.dgpu("wait", task_id).code == 7


def test_a_second_up_says_where_the_first_one_runs(site):
    site.up()
    url = site.record["url"]
    second = site.dgpu("up", "--fake", "2xV100")
    assert (second.code, second.out) == (1, "")
    assert url in second.err
    detached = site.dgpu("up", "--fake", "2xV100", "--detach")
    assert detached.code == 0
    assert url in detached.err


def test_of_two_in_the_background_at_once_the_second_waits_and_says_where_the_first_one_runs(site):
    """The log of the first stays unchanged: the second must not write to it."""
    wanted = ("up", "--fake", "2xV100", "--http-port", "0", "--grpc-port", "0", "--detach")
    starting = [site.start(*wanted) for _ in range(3)]
    said = [process.communicate(timeout=PATIENCE_SECONDS) for process in starting]
    assert [process.returncode for process in starting] == [0, 0, 0], said
    url = site.record["url"]
    assert sorted(bool(out) for out, _ in said) == [False, False, True]  # one has started it
    for out, err in said:
        assert f"dgpu is up at {url}" in out or f"Already up at {url}" in err, said
    log = site.data_dir / "up.log"
    assert f"dgpu is up at {url}" in log.read_text()
    assert not log.with_name("up.log.1").exists()
    assert "Already up" not in log.read_text()


def test_a_taken_port_gives_a_free_one(site):
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        http, grpc = first.getsockname()[1], second.getsockname()[1]
        site.up("--fake", "1xT4", "--http-port", str(http), "--grpc-port", str(grpc))
        assert f":{http}" not in site.record["url"]
        assert site.good("nodes", "-o", "name").out.strip()


def test_two_that_want_the_same_ports_at_once_get_one_each(site):
    """The slower one must not use the other's scheduler."""
    other = Site()
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as first,
            socket.create_server(("127.0.0.1", 0)) as second,
        ):
            ports = ("--http-port", str(first.getsockname()[1]), "--grpc-port", str(second.getsockname()[1]))
        starting = [
            each.start("up", "--fake", cards, *ports, "--detach")
            for each, cards in ((site, "1xT4"), (other, "3xT4"))
        ]
        for process in starting:
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, out + err
        assert site.record["url"] != other.record["url"]
        assert [site.json("gpus")["total"], other.json("gpus")["total"]] == [1, 3]
    finally:
        other.close()


def test_detached_up_returns_when_ready_and_down_ends_it(site):
    answer = site.good(
        "up", "--fake", "2xV100", "--nodes", "3", "--http-port", "0", "--grpc-port", "0", "--detach"
    )
    assert "dgpu is up at" in answer.out
    record = site.record
    assert len(site.json("nodes")["nodes"]) == 3
    down = site.good("down")
    assert "dgpu is down" in down.err
    for part in ("supervisor", "scheduler", "agent"):
        assert process_ref(record[part]["pid"]) is None
    assert site.keepers() == []
    assert "dgpu is not running" in site.good("down").err


def test_secrets_are_for_the_owner_only(site):
    site.up()
    for name in ("up.json", "scheduler/token", "scheduler.yaml", "scheduler.log"):
        mode = stat.S_IMODE((site.data_dir / name).stat().st_mode)
        assert mode == 0o600, name
    assert stat.S_IMODE(site.data_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("service", ["scheduler", "agent"])
def test_a_service_that_dies_is_started_again_and_its_tasks_go_on(site, service):
    site.up()
    release = site.home / "release"
    task_id = site.submit("--", "sh", "-c", f"while [ ! -e {release} ]; do sleep 0.05; done")
    site.started(task_id)
    before = site.record[service]["pid"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: site.record[service]["pid"] != before, f"the {service} to be started again")
    eventually(lambda: site.dgpu("ps").code == 0, "the scheduler to answer")
    release.touch()
    assert site.dgpu("wait", task_id).code == 0
    assert site.task(task_id)["attempt"] == 1
    _, said = site.interrupt()
    assert f"The {service} ended unexpectedly" in said


def test_down_ends_services_whose_supervisor_was_killed(site):
    site.up()
    record = site.record
    os.kill(site.supervisor.pid, signal.SIGKILL)
    site.supervisor.communicate(timeout=PATIENCE_SECONDS)
    site.supervisor = None
    assert site.good("ps").out == "", "the services live on"
    site.good("down")
    for part in ("scheduler", "agent"):
        assert process_ref(record[part]["pid"]) is None


def test_up_takes_over_from_a_supervisor_that_was_killed(site):
    site.up()
    task_id = site.submit("--", "sleep", "600")
    site.started(task_id)
    os.kill(site.supervisor.pid, signal.SIGKILL)
    site.supervisor.communicate(timeout=PATIENCE_SECONDS)
    site.up()
    assert site.task(task_id)["status"] == "running"
    assert site.task(task_id)["attempt"] == 1


def test_down_with_stop_tasks_ends_them_and_keeps_the_queue(site):
    site.up()
    running = site.submit("-G", "2", "--", "sleep", "600")
    waiting = site.submit("-G", "2", "--", "true")
    site.started(running)
    said = site.good("down", "--stop-tasks").err
    assert "still running" not in said
    site.supervisor.communicate(timeout=PATIENCE_SECONDS)
    assert site.keepers() == []
    site.up()
    assert site.task(running)["status"] == "cancelled"
    assert site.dgpu("wait", waiting).code == 0


@pytest.mark.parametrize("restart", ["never", "always"])
def test_tasks_stopped_while_nothing_is_up_do_not_start_again(site, restart):
    """Ctrl-C leaves tasks running; `down --stop-tasks` ends them without a scheduler that could record it."""
    site.up()
    running = site.submit("-G", "2", "--restart", restart, "--", "sleep", "600")
    waiting = site.submit("-G", "2", "--", "true")
    site.started(running)
    site.interrupt()
    site.good("down", "--stop-tasks")
    assert site.keepers() == []
    site.up()
    assert site.dgpu("wait", running, waiting).code == 130
    task = site.task(running)
    assert (task["status"], task["attempt"]) == ("cancelled", 1)
    assert site.task(waiting)["status"] == "success"
    assert not (site.data_dir / "stopped-tasks.json").exists()


def test_tasks_stopped_after_the_scheduler_was_killed_do_not_start_again(site):
    site.up()
    running = site.submit("--", "sleep", "600")
    site.started(running)
    record = site.record
    for part in ("supervisor", "scheduler"):
        os.kill(record[part]["pid"], signal.SIGKILL)
    site.supervisor.communicate(timeout=PATIENCE_SECONDS)
    site.supervisor = None
    site.good("down", "--stop-tasks")
    site.up()
    assert site.dgpu("wait", running).code == 130
    assert (site.task(running)["status"], site.task(running)["attempt"]) == ("cancelled", 1)


def test_tasks_are_stopped_without_a_wait_for_an_agent_that_was_killed(site):
    """No end can be reported then, so the time that is given to reports is not spent."""
    site.up()
    running = site.submit("--", "sleep", "600")
    site.started(running)
    record = site.record
    for part in ("supervisor", "agent"):
        os.kill(record[part]["pid"], signal.SIGKILL)
    site.supervisor.communicate(timeout=PATIENCE_SECONDS)
    site.supervisor = None
    begun_s = time.monotonic()
    site.good("down", "--stop-tasks")
    assert time.monotonic() - begun_s < _STOP_TASKS_SECONDS
    assert site.keepers() == []
    site.up()
    assert site.dgpu("wait", running).code == 130
    assert (site.task(running)["status"], site.task(running)["attempt"]) == ("cancelled", 1)


def test_a_task_without_gpus_holds_one_cpu(site):
    site.up()
    cpus = int(site.json("nodes")["nodes"][0]["cpus"])
    release = site.home / "release"
    script = f"while [ ! -e {release} ]; do sleep 0.05; done"
    tasks = [site.submit("-G", "0", "--", "sh", "-c", script) for _ in range(cpus + 1)]
    for task_id in tasks[:cpus]:
        site.started(task_id)
    uncounted = site.submit("-G", "0", "--cpus", "0", "--", "true")
    assert site.dgpu("wait", uncounted).code == 0
    told = site.good("why", tasks[-1]).out
    assert "needs 0 GPUs and 1 CPU" in told, told
    assert "needs 1 cpu on one node; at most 0 free" in told, told
    release.touch()
    assert site.dgpu("wait", *tasks).code == 0


def test_a_start_that_fails_shows_the_end_of_the_log(site):
    failed = site.dgpu("up", "--fake", "2xV100", env={"DGPU__SCHEDULER__SCHEDULE_INTERVAL": "often"})
    assert failed.code == 1
    assert "schedule_interval" in failed.err
    assert "Traceback" not in failed.err
    assert failed.out == ""


def test_without_a_gpu_it_says_so_and_simulates(site):
    """On a machine with a GPU, it uses that GPU."""
    line = site.up("--http-port", "0")
    gpus = site.json("gpus")["gpus"]
    assert gpus
    if "simulated" in line:
        code, said = site.interrupt()
        assert code == 0
        assert "No GPU was found" in said


def test_run_outlives_the_scheduler_and_shows_every_line_once(site):
    site.up()
    release = site.home / "release"
    script = f"echo one; while [ ! -e {release} ]; do sleep 0.05; done; echo two; exit 9"
    runner = site.start("run", "--", "sh", "-c", script)
    assert runner.stdout.readline() == "one\n"
    before = site.record["scheduler"]["pid"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: site.record["scheduler"]["pid"] != before, "the scheduler to be started again")
    eventually(lambda: site.dgpu("ps").code == 0, "the scheduler to answer")
    release.touch()
    out, err = runner.communicate(timeout=PATIENCE_SECONDS)
    assert (runner.returncode, out) == (9, "two\n"), err


@pytest.fixture
def small_disk(site):
    """The state directory on a file system of its own, with room for the journal and little else."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    site.data_dir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(site.data_dir)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield site.data_dir
    site.dgpu("down", "--stop-tasks")
    subprocess.run(["umount", "-l", str(site.data_dir)], check=True)


def test_a_full_disk_does_not_end_up_when_a_service_dies(site, small_disk):
    site.up()
    before = site.record["scheduler"]["pid"]
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.kill(before, signal.SIGKILL)
    eventually(lambda: process_ref(before) is None, "the scheduler to be gone")
    eventually(lambda: site.dgpu("ps").code == 0, "the scheduler to be back on a full disk")
    assert site.supervisor.poll() is None
    ballast.unlink()
    eventually(lambda: site.record["scheduler"]["pid"] != before, "the record to be written again")
    assert site.dgpu("run", "--", "echo", "goes on").out == "goes on\n"


def test_a_full_disk_makes_tasks_wait_and_fails_none(site, small_disk):
    site.up("--fake", "2xV100")
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    task_ids = site.good("submit", "--count", "12", "-o", "name", "--", "true").out.split()
    (node,) = eventually(
        lambda: [node for node in site.json("nodes")["nodes"] if node["status"] == "draining"],
        "the node to take no tasks",
    )
    assert "is full" in node["drain_reason"]
    told = site.good("why", task_ids[-1]).out
    assert "drain" in told, told
    assert all(task["attempt"] <= 1 for task in map(site.task, task_ids))
    ballast.unlink()
    assert site.dgpu("wait", *task_ids).code == 0
    assert {(task["status"], task["attempt"]) for task in map(site.task, task_ids)} == {("success", 1)}
