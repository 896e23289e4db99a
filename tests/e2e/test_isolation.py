"""Two tenants on one machine, as different Unix users: neither reads, signals or poses as the other."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import tempfile
import urllib.parse
import urllib.request

import pytest

from .conftest import Site, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root runs tasks as other users"),
]
UIDS = "70000-70009"


@contextlib.contextmanager
def isolated_site(*arguments: str, **settings: str):
    """`arguments`: of `dgpu up`; without any, it simulates GPUs."""
    place = Site()
    tasks_dir = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-tasks-"))
    tasks_dir.chmod(0o755)
    place.env |= {
        "DGPU__ISOLATION__USERS": UIDS,
        "DGPU__EXECUTOR__TASKS_DIR": str(tasks_dir),
        **settings,
    }
    try:
        place.up(*arguments)
        yield place
    finally:
        place.close()
        shutil.rmtree(tasks_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def shared():
    with isolated_site() as place:
        yield place


def submit(site, tenant: str, script: str, **fields) -> str:
    """Without a workdir, which the command line would add."""
    task = {"tenant_id": tenant, "gpu_count": 0, "command": ["sh", "-c", script], **fields}
    url, kind = f"{site.record['url']}/api/v1/tasks", {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(task).encode(), kind)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["task_id"]


def run(site, tenant: str, script: str, **fields) -> str:
    """The output of a task of a tenant."""
    task = submit(site, tenant, script, **fields)
    site.dgpu("wait", task)
    return site.good("logs", task).out


def running(site, tenant: str, script: str, **fields) -> tuple[str, int]:
    """A task that goes on, and the pid of its first process."""
    task = submit(site, tenant, f"echo pid $$; {script}", **fields)
    out = eventually(
        lambda: (told := site.good("logs", task).out).startswith("pid") and told, f"output of {task}"
    )
    return task, int(out.split()[1])


def test_a_task_runs_as_a_user_of_its_own_with_nothing_of_the_agent(shared):
    told = run(
        shared,
        "a",
        "id -u; id -G; umask; grep NoNewPrivs /proc/self/status; ulimit -c; grep processes /proc/self/limits;"
        "ls /proc/self/fd | wc -l;"
        "stat -c '%a %u' . $TMPDIR; echo $HOME $USER; touch made $TMPDIR/made && echo writable",
    ).splitlines()
    uid = told[0]
    assert 70000 <= int(uid) <= 70009
    assert told[1:4] == [uid, "0077", "NoNewPrivs:\t1"]
    assert told[4] == "0"
    assert told[5].split()[2] == "16384"
    assert int(told[6]) == 4  # 0 to 2, and the one of ls
    assert told[7:9] == [f"700 {uid}", f"700 {uid}"]
    assert told[9].endswith(f"dgpu-{uid}")
    assert told[10] == "writable"


def test_a_task_cannot_read_or_signal_anything_of_another_tenant(shared):
    task, pid = running(shared, "a", "echo mine > secret; sleep 1000", env={"TOKEN": "of-a"})
    directory = shared.task(task)["workdir"]
    hostile = (
        f"cat {directory}/secret; ls {directory}; cat /proc/{pid}/environ; kill -9 {pid}; ls {directory}/..;"
        f"cat {shared.data_dir}/agent/output/*/*; cat /proc/{pid}/cwd/secret; echo tried"
    )
    told = run(shared, "b", hostile)
    assert told.strip().endswith("tried")
    assert "mine" not in told
    assert "of-a" not in told
    assert told.count("denied") + told.count("not permitted") == 7, told
    assert pathlib.Path(f"/proc/{pid}").exists()
    # The tenant itself can.
    assert "mine" in run(shared, "a", f"cat {directory}/secret")
    shared.good("cancel", task)


def test_a_task_cannot_gain_rights_or_pose_as_the_scheduler(shared):
    """A task on the scheduler's machine must not be trusted by its Unix user; a setuid program must not help it."""
    trap = shared.home / "become-root"
    shutil.copy("/usr/bin/id", trap)
    trap.chmod(0o4755)
    shared.home.chmod(0o711)
    host, port = urllib.parse.urlsplit(shared.record["url"]).netloc.split(":")
    ask = f"exec 3<>/dev/tcp/{host}/{port}; printf 'GET /api/v1/whoami HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n' >&3"
    told = run(shared, "a", f'{trap}; bash -c "{ask}; head -1 <&3"').splitlines()
    assert "euid=0" not in told[0]
    assert told[0].startswith("uid=70")
    assert told[1].strip() == "HTTP/1.1 401 Unauthorized"


def test_a_workdir_is_entered_and_read_as_the_tasks_user(shared):
    """Root would follow a path of the user into any directory."""
    secret = shared.home / "private"
    secret.mkdir(mode=0o700)
    (secret / "file").write_text("of root")
    for path in (str(secret), "/etc/ssl/private", "/root"):
        task = submit(shared, "a", "ls", workdir=path)
        shared.dgpu("wait", task)
        assert "Permission denied" in shared.task(task)["error"], path
        assert shared.dgpu("fetch", task, "-o", "-").code != 0
    link = submit(shared, "a", f"ln -s {secret} way; ln {secret}/file hard; ln -s {secret}/file soft")
    shared.dgpu("wait", link)
    for name in ("way/file", "soft", "hard"):
        answer = shared.dgpu("fetch", link, name, "-o", "-")
        assert answer.code != 0, name
        assert "of root" not in answer.out


def test_a_forged_mark_does_not_harm_another_tenant(shared):
    """The marks in the environment are a hint. With them, a process of b must not be taken for one of a."""
    theirs, pid = running(shared, "a", "sleep 1000")
    environ = dict(
        entry.split("=", 1) for entry in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") if entry
    )
    mark = f"DGPU_LEASE_ID={environ['DGPU_LEASE_ID']} DGPU_KEEPER={environ['DGPU_KEEPER']}"
    forged, _ = running(shared, "b", f"setsid env {mark} sleep 1234 & sleep 1000")
    (sleeper,) = eventually(lambda: pids_of("1234"), "the forged process")
    shared.good("cancel", theirs)
    eventually(lambda: shared.task(theirs)["status"] == "cancelled", "the end of a's task")
    assert not pathlib.Path(f"/proc/{pid}").exists()
    assert pathlib.Path(f"/proc/{sleeper}").exists()
    shared.good("cancel", forged)
    eventually(
        lambda: not pathlib.Path(f"/proc/{sleeper}").exists(), "the end of the forged process with its task"
    )


def test_stop_time_limit_and_adoption_work_for_other_users(shared):
    late = submit(shared, "a", "trap '' TERM; while :; do sleep 1; done", timeout_seconds=1)
    kept, pid = running(shared, "b", "sleep 2; echo done; sleep 1000")
    os.kill(shared.record["agent"]["pid"], signal.SIGKILL)
    eventually(lambda: "done" in shared.dgpu("logs", kept).out, "output after the agent was killed")
    assert pathlib.Path(f"/proc/{pid}").exists()
    shared.good("cancel", kept)
    eventually(lambda: shared.task(kept)["status"] == "cancelled", "the stop of an adopted task")
    assert not pathlib.Path(f"/proc/{pid}").exists()
    eventually(lambda: shared.task(late)["status"] == "failed", "the time limit")
    assert shared.task(late)["reason"] == "timeout"


def pids_of(argument: str) -> list[int]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", argument.encode()]:
                found.append(int(path.parent.name))
    return found


def enforced(site) -> list[str]:
    (node,) = site.json("nodes")["nodes"]
    return node["enforced"]


def needs(site, feature: str) -> None:
    if feature not in enforced(site):
        pytest.skip(f"this machine does not enforce {feature}: no control group or no eBPF for it")


def test_a_node_says_what_it_enforces(shared):
    (node,) = shared.json("nodes")["nodes"]
    assert "users" in node["enforced"]
    assert sorted(node["enforced"] + node["not_enforced"]) == sorted(
        ["users", "cgroup", "memory", "pids", "cpus", "devices"]
    )
    checks = {check["name"]: check for check in shared.json("doctor")["checks"]}
    assert "Unix users of their tenants" in checks["users"]["detail"]
    assert "enforced: users" in checks["isolation"]["detail"]
    assert "users, " in shared.good("nodes", "-o", "wide").out


def test_a_task_has_its_own_group_and_a_process_cannot_leave_it(shared):
    """Without a mark, a session or a parent, a process is still known by its group."""
    needs(shared, "cgroup")
    task, pid = running(shared, "a", "setsid env -i sleep 1235 & sleep 1000")
    (sleeper,) = eventually(lambda: pids_of("1235"), "the daemon")
    group = next(
        line for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().split() if line[:3] == "0::"
    )
    assert group in pathlib.Path(f"/proc/{sleeper}/cgroup").read_text()
    assert re.fullmatch(r"0::.*/dgpu-[0-9a-f]+/\d+", group)
    shared.good("cancel", task)
    eventually(lambda: not pathlib.Path(f"/proc/{sleeper}").exists(), "the end of the daemon")
    eventually(lambda: shared.task(task)["status"] == "cancelled", "the end of the task")


def test_a_task_gets_no_more_memory_than_it_asked_for(shared):
    needs(shared, "memory")
    task = submit(
        shared, "a", "head -c 400000000 /dev/zero | tail >/dev/null; exit $?", ram_mb=64, max_retries=0
    )
    shared.dgpu("wait", task)
    ended = shared.task(task)
    assert ended["status"] == "failed"
    assert "more memory than its ram_mb" in ended["error"]


def test_a_task_opens_only_granted_gpus(shared):
    """A device file of a GPU that no task got: here without a driver, so opening it can only fail in two ways."""
    needs(shared, "devices")
    device = shared.home / "nvidia0"
    os.mknod(device, 0o20666, os.makedev(195, 0))
    device.chmod(0o666)
    shared.home.chmod(0o711)
    told = run(shared, "a", f"cat {device}; head -c1 /dev/zero | wc -c")
    assert "Operation not permitted" in told
    assert told.split()[-1] == "1"


def test_a_range_below_the_nodes_limit_starts_nothing():
    """The scheduler may be wrong or taken over: the node has the last word."""
    with isolated_site(DGPU__ISOLATION__USERS="500-599") as site:
        task = submit(site, "a", "id")
        site.dgpu("wait", task)
        assert "below isolation.min_uid of this node (1000)" in site.task(task)["error"]


def test_a_node_whose_directories_others_cannot_enter_gets_no_tasks():
    closed = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-closed-"))
    with isolated_site(DGPU__EXECUTOR__TASKS_DIR=str(closed / "tasks")) as site:
        (node,) = site.json("nodes")["nodes"]
        assert node["status"] == "draining"
        assert "executor.tasks_dir" in node["drain_reason"]
        assert node["enforced"] == []
    shutil.rmtree(closed)


def test_doctor_names_uids_that_two_agents_of_one_machine_gave(shared):
    """Neither agent knows of the other one; both begin with the first uid of the range."""
    run(shared, "a", "true")
    with isolated_site() as second:
        run(second, "other", "true")
        told = second.dgpu("doctor", "--json")
    (check,) = [each for each in json.loads(told.out)["checks"] if each["name"] == "uids"]
    assert check["status"] == "warn"
    assert f"tenant a of {shared.data_dir}/agent" in check["detail"]
    assert f"tenant other of {second.data_dir}/agent" in check["detail"]
