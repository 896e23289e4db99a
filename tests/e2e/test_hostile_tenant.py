"""A hostile tenant on a shared machine: over the API with its own token, and from inside its own tasks."""

from __future__ import annotations

import base64
import collections
import os
import pathlib
import shlex
import shutil
import signal
import stat
import subprocess

import pytest

from .conftest import eventually, files_in
from .hostile_site import (
    KEY,
    SECRET,
    TASK,
    VARIABLE,
    WORD,
    hostile,
    needs_two_users,
    python_line,
)
from .test_isolation import pids_of
from .test_secrets import secrets_dir

__all__ = ["hostile"]
pytestmark = needs_two_users

# method, path, body, code of the refusal, action in the audit log
REFUSED_CALLS = [
    ("GET", "/api/v1/tasks/{task}", None, "unknown_task", "task.read"),
    ("GET", "/api/tasks/{task}", None, "unknown_task", "task.read"),
    ("GET", "/api/v1/tasks/{task}/events", None, "unknown_task", "task.read"),
    ("GET", "/api/v1/tasks/{task}/why", None, "unknown_task", "task.read"),
    ("GET", "/api/v1/tasks/{task}/logs", None, "unknown_task", "task.output"),
    ("GET", "/api/v1/tasks/{task}/output", None, "unknown_task", "task.output"),
    ("GET", "/api/v1/tasks/{task}/files", None, "unknown_task", "task.output"),
    ("GET", "/api/v1/tasks/{task}/files/file", None, "unknown_task", "task.output"),
    ("DELETE", "/api/v1/tasks/{task}", None, "unknown_task", "task.change"),
    ("POST", "/api/v1/tasks/cancel", {"task_ids": ["{task}"]}, "unknown_task", "task.change"),
    ("POST", "/api/v1/tasks/{task}/hold", None, "unknown_task", "task.change"),
    ("POST", "/api/v1/tasks/{task}/release", None, "unknown_task", "task.change"),
    ("POST", "/api/v1/tasks/{task}/priority", {"priority": 90}, "unknown_task", "task.change"),
    ("POST", "/api/v1/tasks/{task}/retry", None, "unknown_task", "task.submit"),
    ("POST", "/api/v1/tasks/{task}/channels", {"command": ["id"]}, "unknown_task", "task.enter"),
    ("POST", "/api/v1/tasks/{task}/channels", {"size": [24, 80]}, "unknown_task", "task.enter"),
    ("POST", "/api/v1/tasks/{task}/channels", {"port": 8888}, "unknown_task", "task.enter"),
    ("POST", "/api/v1/tasks/{task}/links", {"port": 8888}, "unknown_task", "task.enter"),
    ("GET", "/api/v1/tasks/{task}/result", None, "unknown_task", "task.output"),
    ("GET", f"/api/v1/uploads/{'0' * 64}?tenant=a", None, "tenant_not_allowed", "task.submit"),
    ("POST", "/api/v1/tasks", {**TASK, "tenant_id": "a"}, "tenant_not_allowed", "task.submit"),
    ("POST", "/api/tasks", {"command": "id", "tenant_id": "a"}, "tenant_not_allowed", "task.submit"),
    (
        "POST",
        "/api/v1/tokens",
        {"name": "x", "user": "ann", "tenants": ["a"]},
        "not_permitted",
        "token.change",
    ),
    ("DELETE", "/api/v1/tokens/{token_id}", None, "not_permitted", "token.change"),
    ("GET", "/api/v1/tokens", None, "not_permitted", "token.read"),
    ("GET", "/api/v1/audit", None, "not_permitted", "audit.read"),
    ("GET", "/api/v1/audit?tenant=a", None, "not_permitted", "audit.read"),
    ("GET", "/api/v1/audit/export", None, "not_permitted", "audit.read"),
    ("GET", "/api/v1/tenants/a", None, "unknown_tenant", "tenant.read"),
    ("PUT", "/api/v1/tenants/a/secrets/KEY", {"value": "eA=="}, "unknown_tenant", "secret.change"),
    ("DELETE", "/api/v1/tenants/a/secrets/KEY", None, "unknown_tenant", "secret.change"),
    ("POST", "/api/v1/secrets/rotate", None, "not_permitted", "secret.rotate"),
    ("POST", "/api/v1/nodes/{node}/drain", {}, "not_permitted", "cluster.change"),
    ("POST", "/api/v1/nodes/{node}/lost", {}, "not_permitted", "cluster.change"),
    ("POST", "/api/v1/tenants", {"id": "c"}, "not_permitted", "tenant.change"),
]
# Allowed calls, whose answers must hold nothing of ann.
ANSWERED_CALLS = [
    "/api/v1/tasks",
    "/api/v1/tasks?tenant=a",
    f"/api/v1/tasks?q={WORD}",
    f"/api/v1/tasks?q=project:{WORD}",
    "/api/v1/queue",
    "/api/v1/secrets",
    "/api/v1/board",
    "/api/v1/nodes",
    "/api/v1/gpus",
    "/api/v1/history/timeline",
    "/api/v1/history/usage",
    "/api/v1/estimates",
    "/api/v1/tenants",
    "/api/v1/alerts",
    "/metrics",
]


def test_every_call_on_another_tenants_task_is_refused_and_recorded(hostile):
    (node,) = hostile.site.json("nodes")["nodes"]
    names = {"task": hostile.task, "node": node["id"], "token_id": hostile.ann.token.split("_")[1]}
    before = hostile.refusals(user="bob")
    expected: collections.Counter[tuple[str, str]] = collections.Counter()
    for method, path, body, code, action in REFUSED_CALLS:
        ids = {"task_ids": [hostile.task]} if path.endswith("/cancel") else body
        answer = hostile.bob.ask(method, path.format(**names), ids)
        assert (answer.code, answer.status in {403, 404}) == (code, True), (method, path, answer)
        assert WORD.encode() not in answer.body, (method, path)
        expected[action, code] += 1
    eventually(lambda: hostile.refusals(user="bob") - before == expected, f"in the audit log: {expected}")
    hostile.unharmed()


def test_allowed_answers_hold_nothing_of_another_tenant(hostile):
    for path in ANSWERED_CALLS:
        answer = hostile.bob.ask("GET", path)
        assert answer.status == 200, (path, answer)
        for foreign in (WORD, f'"{hostile.task}"', "ann"):
            assert foreign.encode() not in answer.body, (path, foreign)
        assert WORD.encode() in hostile.ann.ask("GET", "/api/v1/tasks").body


def test_filters_and_keys_of_another_tenant_reach_nothing(hostile):
    for filters in ({"tenant_id": "a"}, {"status": "running"}):
        assert hostile.bob.ask("POST", "/api/v1/tasks/cancel", filters).json == {"cancelled": 0}
    # The same key and the same body, but for the tenant: it must not be answered with ann's task.
    same = {name: value for name, value in TASK.items() if name != "secrets"}
    own = hostile.bob.submit(key=KEY, **{**same, "command": ["true"]})
    assert own != hostile.task
    for body in ({"secrets": ["KEY"]}, {"after": [hostile.task]}):
        answer = hostile.bob.ask("POST", "/api/v1/tasks", {"tenant_id": "b", "command": ["true"], **body})
        assert answer.status in {400, 404, 409, 422}, answer
        assert WORD.encode() not in answer.body
    hostile.unharmed()


PTRACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, int(sys.argv[1]), None, None):
    sys.exit(os.strerror(ctypes.get_errno()))
"""
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def attempts(hostile) -> dict[str, str]:
    """Lines of shell of bob's tasks. Each must fail for want of rights."""
    pid, state = hostile.pid, hostile.site.data_dir
    directory, own = hostile.site.task(hostile.task)["workdir"], hostile.environ
    record, (keeper,) = hostile.site.record, hostile.site.keepers()
    lines = [
        f"cat {directory}/file",
        f"ls {directory}",
        f"touch {directory}/planted",
        f"rm {directory}/file",
        f"ls {hostile.tasks_dir}",
        f"mkdir {hostile.tasks_dir}/task-999.1",
        f"ls {own['TMPDIR']}",
        f"cat {own['DGPU_SECRETS_DIR']}/key",
        f"ls {pathlib.Path(own['DGPU_SECRETS_DIR']).parent}",
        f"cat /proc/{pid}/environ",
        f"cat /proc/{pid}/cwd/file",
        f"cat /proc/{pid}/maps",
        f"head -c1 /proc/{pid}/mem",
        f"ls /proc/{pid}/fd",
        python_line(PTRACE, pid),
        python_line(CONNECT, state / "agent" / "keeper.sock"),
        f"renice 19 {pid}",
    ]
    processes = {
        "ann": pid,
        "keeper": keeper.pid,
        "agent": record["agent"]["pid"],
        "scheduler": record["scheduler"]["pid"],
    }
    for number in processes.values():
        lines += [f"/bin/kill -9 {number}", f"/bin/kill -STOP {number}", f"cat /proc/{number}/environ"]
    lines += [f"cat {path}" for path, _ in sorted(files_in(state))]
    lines += [f"echo 1 > {path}/cgroup.procs" for path in groups_of(pid) if (path / "cgroup.procs").exists()]
    return {f"try-{number}": line for number, line in enumerate(lines)}


def groups_of(pid: int) -> list[pathlib.Path]:
    """Of version 2, wherever it is mounted."""
    lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().split()
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    roots = [target for _, target, kind, *_ in mounts if kind == "cgroup2"]
    return [
        pathlib.Path(root + line[3:])
        for root in roots
        for line in lines
        if "/dgpu-" in line and line[:3] == "0::"
    ]


def test_a_task_reaches_nothing_of_another_tenant_or_of_dgpu(hostile):
    tried = attempts(hostile)
    script = "\n".join(
        f"echo; echo {mark}; bash -c {shlex.quote(line)} 2>&1; echo; echo exit $?"
        for mark, line in tried.items()
    )
    told = hostile.bob.run(script)
    assert WORD not in told
    assert str(hostile.site.record["token_file"]) in " ".join(tried.values())
    if "cgroup" in hostile.site.json("nodes")["nodes"][0]["enforced"]:
        assert any("cgroup.procs" in line for line in tried.values())
    for mark, line in tried.items():
        said = told.split(f"\n{mark}\n")[1].split("\nexit ")[0]
        refusal = [word for word in ("ermission denied", "not permitted") if word in said]
        assert refusal, (line, said)
    hostile.unharmed()


ASK = """
import http.client, sys
for method, path in (("GET", "/api/v1/tasks"), ("GET", "/api/v1/whoami"), ("DELETE", "/api/v1/tasks/" + sys.argv[2])):
    connection = http.client.HTTPConnection(sys.argv[1])
    connection.request(method, path)
    print(connection.getresponse().status)
"""


def test_a_task_is_nobody_at_the_api_without_a_token(hostile):
    uid = hostile.bob.run("id -u").strip()
    address = hostile.site.record["url"].removeprefix("http://")
    assert hostile.bob.python(ASK, address, hostile.task).split() == ["401"] * 3
    seen = eventually(
        lambda: len(found := hostile.refusals(origin=f"uid {uid}")) >= 3 and found,
        "the calls in the audit log",
    )
    assert {action for action, _ in seen} >= {"task.list", "self.read", "task.change"}
    hostile.unharmed()


def test_a_forged_mark_books_nothing_and_ends_nothing(hostile):
    """A process of bob that claims to be of ann's lease ends with bob's task. Ann's task does not."""
    own = hostile.environ
    mark = shlex.join(f"{name}={own[name]}" for name in ("DGPU_LEASE_ID", "DGPU_KEEPER"))
    task = hostile.bob.submit(f"setsid env {mark} sleep 4321 & exec env {mark} sleep 4322")
    (sleeper,) = eventually(lambda: pids_of("4321"), "the forged process")
    eventually(lambda: pids_of("4322"), "the forged task")
    assert hostile.bob.ask("DELETE", f"/api/v1/tasks/{task}").status == 200
    eventually(lambda: not pids_of("4321") + pids_of("4322"), "the end of both processes")
    eventually(lambda: not pathlib.Path(f"/proc/{sleeper}").exists(), "its new parent to reap it")
    hostile.unharmed()


def test_a_directory_in_the_place_of_the_secrets_stops_no_other_task(hostile):
    """/dev/shm is open to all users: a tenant may take the name before the agent does."""
    place = pathlib.Path(hostile.environ["DGPU_SECRETS_DIR"]).parent
    if not place.is_relative_to("/dev/shm"):
        pytest.skip("this machine has no /dev/shm in memory: secrets are below the agent's own directory")
    hostile.site.good("cancel", hostile.task)
    eventually(lambda: not place.exists(), "the end of the directory with its last task")
    hostile.bob.run(f"mkdir -m 777 {place} {place}/x")
    assert place.exists()
    line = "cat $DGPU_SECRETS_DIR/key; stat -c %u $(dirname $DGPU_SECRETS_DIR)"
    assert hostile.ann.run(line, secrets=TASK["secrets"]) == f"{SECRET}0\n"
    for moved in place.parent.glob(f"{place.name}.*"):
        shutil.rmtree(moved)


def test_directories_of_any_depth_stop_no_other_task(hostile):
    """The agent deletes the temporary directory of a task, and its secrets, which the task can only read."""
    deep = "p=$(printf 'd/%.0s' $(seq 500)); for i in 1 2 3; do mkdir -p $p && cd -P $p || exit 1; done"
    assert hostile.bob.ask("PUT", "/api/v1/tenants/b/secrets/OWN", {"value": "x"}).status == 200
    script = f"(cd $DGPU_SECRETS_DIR && {deep}) 2>&1; (cd $TMPDIR && {deep}); ({deep}); pwd; cat $DGPU_SECRETS_DIR/*"
    refused, directory, own = hostile.bob.run(script, secrets={"OWN": {"file": "own"}}).splitlines()
    try:
        assert "Permission denied" in refused
        assert own == "x"
        assert hostile.ann.run("cat $DGPU_SECRETS_DIR/key", secrets=TASK["secrets"]) == SECRET
        os.kill(
            hostile.site.record["agent"]["pid"], signal.SIGKILL
        )  # the next agent deletes them at its start
        eventually(
            lambda: (
                not pathlib.Path(f"{directory}.tmp").exists() and not any(hostile.tasks_dir.glob(".trash/*"))
            ),
            "the end of temporary directories",
        )
    finally:
        subprocess.run(["rm", "-rf", directory, f"{directory}.tmp"], check=True)  # too deep for Python


def test_secrets_are_in_private_files_only(hostile):
    """The last test: after all attempts."""
    words = [
        form for word in (SECRET, VARIABLE) for form in (word.encode(), base64.b64encode(word.encode())[:-4])
    ]
    places = [hostile.site.home, hostile.tasks_dir, secrets_dir(hostile.site)]
    files = [found for place in places for found in files_in(place)]
    assert len(files) > 20
    open_files = [
        path
        for path, content in files
        if any(word in content for word in words) and stat.S_IMODE(path.lstat().st_mode) & 0o077
    ]
    assert open_files == []
