"""Files that a task leaves in a directory of its own: kept, shown, fetched; and nothing beside them."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
from urllib.parse import urlsplit

import pytest

from dgpu.client import AsyncClient, Client, Unreachable
from dgpu.entry.processes import process_ref

from .conftest import eventually

pytestmark = pytest.mark.slow

CHECKPOINT = bytes(range(256)) * 8_192  # 2 MiB
SCRIPT = (
    "mkdir -p ckpt/empty && for i in 1 2 3 4; do head -c 2097152 $SOURCE > ckpt/step-$i.pt; done; "
    "ln -s ckpt/step-4.pt latest; ln -s /etc/passwd outside; mkfifo pipe; echo done > 'a b%20é.txt'"
)


def ask(site, method, path, body=None):
    """As curl does, without a directory and with the path as it is."""
    parts = urlsplit(site.record["url"])
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def submitted(site, command, **fields):
    status, answer = ask(site, "POST", "/api/v1/tasks", {"command": command, **fields})
    assert status == 201, answer
    return json.loads(answer)["task_id"]


def with_checkpoints(site):
    source = site.home / "source"
    source.write_bytes(CHECKPOINT)
    task_id = submitted(site, SCRIPT, env={"SOURCE": str(source)})
    assert site.dgpu("wait", task_id).code == 0
    return task_id


def test_a_task_without_a_directory_keeps_its_files_and_they_can_be_fetched(running_site):
    site = running_site
    task_id = with_checkpoints(site)
    task = site.task(task_id)
    assert task["workdir"] == f"{site.data_dir}/agent/tasks/{task_id}.1"
    assert task["own_workdir"]
    assert f"{task['node']}:{task['workdir']}" in site.good("show", task_id).out
    fetched = site.good("fetch", task_id)
    copy = site.home / task_id
    assert "5 files, 8.0 MiB" in fetched.err
    assert "Skipped outside: it is a link to /etc/passwd" in fetched.err
    assert "Skipped pipe" in fetched.err
    assert (copy / "ckpt" / "step-3.pt").read_bytes() == CHECKPOINT
    assert (copy / "a b%20é.txt").read_text() == "done\n"
    assert (copy / "ckpt" / "empty").is_dir()
    assert sorted(entry.name for entry in copy.iterdir()) == ["a b%20é.txt", "ckpt"]
    listed = site.good("fetch", task_id, "ckpt", "--list", "--json")
    assert [entry["path"] for entry in json.loads(listed.out)["files"]][:2] == [
        "ckpt/empty",
        "ckpt/step-1.pt",
    ]


def test_one_file_is_fetched_and_replaces_another_only_when_told_to(running_site):
    site = running_site
    task_id = with_checkpoints(site)
    into = site.home / "into"
    site.good("fetch", task_id, "latest", "-o", into)  # a link that stays below the directory
    assert (into / "latest").read_bytes() == CHECKPOINT
    (into / "latest").write_text("mine")
    refused = site.dgpu("fetch", task_id, "latest", "-o", into)
    assert refused.code == 6, refused
    assert "--force" in refused.err
    assert (into / "latest").read_text() == "mine"
    site.good("fetch", task_id, "latest", "-o", into, "--force")
    assert (into / "latest").read_bytes() == CHECKPOINT
    assert [entry.name for entry in into.iterdir()] == ["latest"]


def test_a_directory_that_has_only_files_is_fetched(running_site):
    task_id = submitted(running_site, "mkdir -p only/files; echo x > only/files/one")
    assert running_site.dgpu("wait", task_id).code == 0
    into = running_site.home / "only-files"
    running_site.good("fetch", task_id, "only/files", "-o", into)
    assert (into / "files" / "one").read_text() == "x\n"


def test_files_of_a_running_task_and_of_a_directory_that_it_brought_can_be_fetched(running_site):
    site = running_site
    project = site.home / "brought"
    project.mkdir()
    release = site.home / "release-brought"
    script = f"echo half > result.txt; while [ ! -e {release} ]; do sleep 0.05; done"
    task_id = site.good("submit", "-w", project, "--", "sh", "-c", script).out.strip()
    eventually((project / "result.txt").exists, "the task to write")
    site.good("fetch", task_id, "result.txt", "-o", site.home / "fetched")
    assert (site.home / "fetched" / "result.txt").read_text() == "half\n"
    assert not site.task(task_id)["own_workdir"]
    release.touch()
    site.good("wait", task_id)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../../../../etc/passwd", 2),
        ("/etc/passwd", 2),
        ("outside", 6),
        ("outside/x", 6),
        ("pipe", 6),
        ("nothing", 5),
        ("ckpt/step-1.pt/x", 5),
    ],
)
def test_the_wrong_paths_are_refused(running_site, path, code):
    task_id = getattr(running_site, "files_task", None) or with_checkpoints(running_site)
    running_site.files_task = task_id
    refused = running_site.dgpu("fetch", task_id, path, "-o", running_site.home / "never")
    assert refused.code == code, refused
    assert "root:" not in refused.out + refused.err
    assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    "path",
    [
        "../../../../../../../../etc/passwd",
        "%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "ckpt/../../../../../../../../etc/passwd",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        "//etc/passwd",
        "outside",
        "ckpt/%00",
        "%252e%252e/%252e%252e/etc/passwd",
        "..%5c..%5cetc%5cpasswd",
        "%ff%fe",
        "x" * 5_000,
    ],
)
def test_no_form_of_a_path_leaves_the_directory(running_site, path):
    task_id = getattr(running_site, "files_task", None) or with_checkpoints(running_site)
    running_site.files_task = task_id
    for call in (f"/api/v1/tasks/{task_id}/files/{path}", f"/api/v1/tasks/{task_id}/files?path={path}"):
        status, answer = ask(running_site, "GET", call)
        assert status in {400, 404, 409}, (call, status, answer)
        assert b"root:" not in answer
        assert json.loads(answer)["code"]


def test_a_list_of_files_comes_in_pages(running_site):
    task_id = submitted(running_site, "for i in $(seq 1 25); do touch f$i; done")
    assert running_site.dgpu("wait", task_id).code == 0
    names, cursor = [], ""
    while cursor is not None:
        status, answer = ask(
            running_site,
            "GET",
            f"/api/v1/tasks/{task_id}/files?limit=10" + (f"&cursor={cursor}" if cursor else ""),
        )
        assert status == 200, answer
        page = json.loads(answer)
        assert len(page["files"]) <= 10
        names += [entry["path"] for entry in page["files"]]
        cursor = page["next_cursor"]
    assert names == sorted(f"f{number}" for number in range(1, 26))


def test_both_clients_read_files(running_site):
    task_id = with_checkpoints(running_site)
    url = running_site.record["url"]
    with Client(url) as client:
        names = [entry.path for entry in client.files(task_id, "ckpt")]
        assert b"".join(client.download(task_id, "ckpt/step-1.pt")) == CHECKPOINT

    async def read():
        async with AsyncClient(url) as client:
            assert [entry.path async for entry in client.files(task_id, "ckpt")] == names
            return b"".join([piece async for piece in client.download(task_id, "ckpt/step-1.pt")])

    assert asyncio.run(read()) == CHECKPOINT


def test_a_task_that_waits_and_one_that_left_nothing_have_no_files(running_site):
    held = running_site.good("submit", "--hold", "--", "true").out.strip()
    refused = running_site.dgpu("fetch", held)
    assert refused.code == 6
    assert "has not started yet" in refused.err
    assert running_site.dgpu("fetch", "999999").code == 5
    running_site.good("cancel", held)


@pytest.fixture
def small_disk(running_site):
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    place = running_site.home / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_here_leaves_no_half_file(running_site, small_disk):
    task_id = with_checkpoints(running_site)
    failed = running_site.dgpu("fetch", task_id, "-o", small_disk)
    assert failed.code == 1, failed
    assert "No room for" in failed.err
    assert "Traceback" not in failed.err
    left = [entry for entry in small_disk.rglob("*") if entry.is_file() and entry.suffix in {".pt", ".part"}]
    assert all(entry.read_bytes() == CHECKPOINT for entry in left)
    assert len(left) < 4


def test_a_node_that_is_gone_is_named_and_files_outlive_every_restart(site):
    site.up()
    task_id = with_checkpoints(site)
    record = site.record
    client = Client(record["url"], retries=0)
    pieces = client.download(task_id, "ckpt/step-1.pt")
    first = next(pieces)
    os.kill(record["supervisor"]["pid"], signal.SIGSTOP)  # otherwise it starts another agent
    os.kill(record["agent"]["pid"], signal.SIGKILL)
    eventually(lambda: process_ref(record["agent"]["pid"]) is None, "the agent to be gone")
    try:
        got = len(first) + sum(map(len, pieces))
    except Unreachable as error:
        assert "of 2,097,152 bytes" in str(error)
    else:
        assert got == len(CHECKPOINT)  # it was on its way already
    gone = eventually(
        lambda: (found := site.dgpu("fetch", task_id)).code and found, "the scheduler to notice"
    )
    assert gone.code == 1
    assert "is not connected, and the files are on that node" in gone.err
    assert f"{task_id}.1" in site.good("show", task_id).out  # where they are is known all the same
    os.kill(record["supervisor"]["pid"], signal.SIGCONT)
    eventually(
        lambda: site.dgpu("fetch", task_id, "-o", site.home / "again").code == 0, "the agent to be back"
    )
    site.interrupt()
    site.up()
    site.good("fetch", task_id, "ckpt", "-o", site.home / "later")
    assert (site.home / "later" / "ckpt" / "step-2.pt").read_bytes() == CHECKPOINT


def project(site, **files):
    folder = site.home / "project"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_an_uploaded_project_is_the_directory_of_the_task(running_site):
    site = running_site
    folder = project(site, data="hello")
    ran = site.good("submit", "--wait", "--upload", "--", "sh", "-c", "cat data.txt > result", cwd=folder)
    site.good("fetch", ran.out.strip(), "result")
    assert (site.home / "result").read_text() == "hello"
    assert not (folder / "result").exists()
    again = site.dgpu("run", "--upload", folder, "--", "cat", "data.txt")
    assert (again.out, "Uploaded" in ran.err, "Uploaded" in again.err) == ("hello", True, False)


def test_an_upload_survives_kill_9_of_scheduler_and_agent(running_site):
    """The task waits for the GPUs of the first one: its upload is fetched after both were killed."""
    site = running_site
    holder = site.submit("-G", "2", "--", "sleep", "600")
    site.started(holder)
    task_id = site.submit("-G", "2", "--upload", project(site, data="kept"), "--", "cat", "data.txt")
    for name in ("scheduler", "agent"):
        os.kill(site.record[name]["pid"], signal.SIGKILL)
    eventually(lambda: site.dgpu("cancel", holder).code == 0, "the scheduler to be back")
    assert site.dgpu("wait", task_id).code == 0
    assert site.good("logs", task_id).out == "kept"


def test_a_task_whose_upload_is_gone_fails_and_says_so(running_site):
    site = running_site
    held = site.submit("--hold", "--upload", project(site, data="x"), "--", "cat", "data.txt")
    for stored in (site.data_dir / "scheduler").glob("content/tenant-*/*"):
        stored.unlink()
    site.good("release", held)
    assert site.dgpu("wait", held).code == 125
    assert "is no longer at the scheduler; submit it again with --upload" in site.task(held)["error"]


def test_lines_of_output_are_chosen_by_stream_text_and_time(running_site):
    """Of a task that runs, from its node, and of one that has ended, from the scheduler."""
    site = running_site
    task_id = site.submit("echo out; echo err >&2; until [ -e go ]; do sleep 0.1; done")
    eventually(lambda: "err" in site.good("logs", task_id).out, "its output")
    for _ in range(2):
        assert site.good("logs", task_id, "--stderr").out == "err\n"
        assert site.good("logs", task_id, "--grep", "^o").out == "out\n"
        assert site.good("logs", task_id, "--head", "1").out == "out\n"
        assert site.good("logs", task_id, "--since", "2020-01-01T00:00:00Z", "--tail", "1").out == "err\n"
        assert "No line" in site.good("logs", task_id, "--since", "2200-01-01T00:00:00Z").err
        timed = site.good("logs", task_id, "-T").out.splitlines()
        assert [line.split("Z ")[1] for line in timed] == ["out", "err"]
        (site.home / "go").touch()
        assert site.dgpu("wait", task_id).code == 0


def test_output_is_also_written_to_files_of_the_node(running_site):
    site = running_site
    logs = site.home / "logs"
    logs.mkdir()
    command = ("sh", "-c", "echo out $DGPU_ARRAY_INDEX; echo err >&2")
    names = ("--output", "logs/%x-%A_%a.out", "--error", f"{logs}/%j-%N.err")
    array = site.submit(*names, "-J", "a/b", "--array", "3-4", "-w", site.home, "--", *command)
    assert site.dgpu("wait", array).code == 0
    number = int(array.removeprefix("task-"))
    node = site.task(array)["node"]
    assert {path.name: path.read_text() for path in logs.iterdir()} == {
        f"a_b-{number}_3.out": "out 3\n",
        f"a_b-{number}_4.out": "out 4\n",
        f"{number}-{node}.err": "err\n",
        f"{number + 1}-{node}.err": "err\n",
    }
    assert site.task(array)["output_file"] == "logs/%x-%A_%a.out"
    missing = site.dgpu("run", "--output", "missing/%j", "-w", site.home, "--", "true")
    assert missing.code != 0
    assert (
        f"output file missing/{number + 2}: No such file or directory. Its directory must exist"
        in missing.err
    )
