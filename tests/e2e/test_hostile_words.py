"""A hostile tenant: paths that leave its directory, guessed tokens, a false agent, and signs that harm a terminal."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import pty
import re
import subprocess
import threading

import grpc
import pytest

from dgpu.service.grpc.server import SERVICE
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import register, reports

from .conftest import eventually, files_in
from .hostile_site import WORD, hostile, needs_two_users, python_line

__all__ = ["hostile"]
pytestmark = needs_two_users

GUESSES, GUESSERS = 10_000, 4
PATHS = [
    "shadow",
    "theirs",
    "there/file",
    "root/etc/shadow",
    "up/../../file",
    "../{name}/file",
    "../../../../../../../../etc/shadow",
    "%2e%2e/{name}/file",
    "..%2f{name}%2ffile",
    "%2fetc%2fshadow",
    "//etc/shadow",
    "own/..%5c..%5cetc%5cshadow",
    "%252e%252e/{name}/file",
    "file%00.txt",
]


def test_no_path_of_a_hostile_task_leaves_its_directory(hostile):
    theirs = hostile.site.task(hostile.task)["workdir"]
    task = hostile.bob.submit(
        f"ln -s /etc/shadow shadow; ln -s {theirs}/file theirs; ln -s {theirs} there; ln -s / root; ln -s .. up;"
        f"ln {theirs}/file hard; ln /etc/shadow hard; mkdir own; echo done"
    )
    eventually(lambda: "done" in hostile.bob.output(task), "the links")
    shadow = pathlib.Path("/etc/shadow").read_bytes().split(b":")[0]
    for path in PATHS:
        named = path.format(name=pathlib.Path(theirs).name)
        for call in (f"files/{named}", f"files?path={named}"):
            answer = hostile.bob.ask("GET", f"/api/v1/tasks/{task}/{call}")
            assert answer.status in {400, 403, 404, 409}, (call, answer)
            assert WORD.encode() not in answer.body
            assert shadow + b":" not in answer.body


SWAP = """
import os, sys
theirs = sys.argv[1]
os.mkdir("real")
for name in ("real/file", "plain"):
    with open(name, "w") as file:
        file.write("of bob")
print("ready", flush=True)
while True:
    for source in (theirs + "/file", "/etc/shadow"):
        os.link("plain", "next")
        os.rename("next", "swapped")
        os.symlink(source, "next")
        os.rename("next", "swapped")
    os.rename("real", "folder")
    os.rename("folder", "real")
    os.symlink(theirs, "folder")
    os.unlink("folder")
"""


def test_no_race_of_a_hostile_task_leaves_its_directory(hostile):
    """A file and a directory become links while they are read."""
    theirs = hostile.site.task(hostile.task)["workdir"]
    task = hostile.bob.submit(python_line(SWAP, theirs))
    eventually(lambda: "ready" in hostile.bob.output(task), "the race to begin")
    answers = collections.Counter()
    for number in range(200):
        path = "swapped" if number % 2 else "folder/file"
        answer = hostile.bob.ask("GET", f"/api/v1/tasks/{task}/files/{path}")
        if answer.status == 200:
            assert answer.body == b"of bob"
        else:
            assert answer.status < 500, answer
            assert WORD.encode() not in answer.body
        answers[path, answer.status] += 1
    assert answers["swapped", 200], answers  # the race was not won by refusals alone
    hostile.bob.ask("DELETE", f"/api/v1/tasks/{task}")


GUESS = """
import collections, http.client, json, secrets, sys, threading
address, known, number, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
told = collections.Counter()
def guess_many():
    connection, own = http.client.HTTPConnection(address), collections.Counter()
    for guess in range(number // threads):
        middle = known if guess % 2 else secrets.token_hex(6)
        token = "dgpu_" + middle + "_guess" + "word" + secrets.token_urlsafe(25)
        connection.request("GET", "/api/v1/tasks", headers={"authorization": "Bearer " + token})
        answer = connection.getresponse()
        own[str(answer.status) + " " + json.loads(answer.read())["code"]] += 1
    told.update(own)
guessers = [threading.Thread(target=guess_many) for _ in range(threads)]
for each in guessers:
    each.start()
for each in guessers:
    each.join()
print(json.dumps(told))
"""


def test_guessed_tokens_are_refused_counted_and_kept_nowhere(hostile):
    uid = hostile.bob.run("id -u").strip()
    address, known = hostile.site.record["url"].removeprefix("http://"), hostile.ann.token.split("_")[1]
    told = json.loads(hostile.bob.run(python_line(GUESS, address, known, GUESSES, GUESSERS)))
    assert sum(told.values()) == GUESSES
    assert {answer.split()[0] for answer in told} <= {"403", "429"}, told
    assert told["429 too_many_failures"] >= GUESSES * 3 // 4, told  # ten are looked at per minute
    found = eventually(
        lambda: (seen := hostile.refusals(origin=f"uid {uid}")).total() >= GUESSES and seen,
        "all guesses in the audit log",
    )
    assert found.total() == GUESSES
    assert len(hostile.entries(origin=f"uid {uid}")) < 40
    holders = [path for path, content in files_in(hostile.site.home) if b"guessword" in content]
    assert holders == []
    assert hostile.ann.ask("GET", f"/api/v1/tasks/{hostile.task}").status == 200


FORWARD = """
import socket, sys, threading
def copy(source, target):
    while piece := source.recv(65536):
        target.sendall(piece)
    target.shutdown(socket.SHUT_WR)
door = socket.create_server(("127.0.0.1", 0))
print("port", door.getsockname()[1], flush=True)
while True:
    near, _ = door.accept()
    host, port = sys.argv[1].split(":")
    far = socket.create_connection((host, int(port)))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


def call(address: str, method: str, *messages, patient: bool = False) -> tuple[str, list[bytes]]:
    """The status of a call of an agent, and its answers. `patient`: it sends more only after an answer."""
    answers: list[bytes] = []
    answered = threading.Event()

    def sent():
        for number, message in enumerate(messages):
            if number and patient:
                answered.wait(60)
            yield message.SerializeToString()

    with grpc.insecure_channel(address) as channel:
        try:
            for answer in channel.stream_stream(f"/{SERVICE}/{method}")(sent(), timeout=60):
                answers.append(answer)
                answered.set()
        except grpc.RpcError as error:
            return f"{error.code().name} {error.details()}", answers
        finally:
            answered.set()
    return "OK", answers


def test_a_task_cannot_pose_as_an_agent(hostile):
    """The calls come from a process of bob's task, which forwards them to the agents' port."""
    uid = int(hostile.bob.run("id -u"))
    (node,) = hostile.site.json("nodes")["nodes"]
    lease = int(hostile.environ["DGPU_LEASE_ID"])
    task = hostile.bob.submit(python_line(FORWARD, hostile.site.record["grpc_address"]))
    told = eventually(lambda: hostile.bob.output(task).split(), "the forwarder")
    address = f"127.0.0.1:{told[1]}"
    chunk = pb.OutputChunk(lease_id=lease, task_id=1, attempt=1, data=b"EVIL", last=True)
    tries = [
        ("Connect", register("invented")),
        ("Connect", register(node["id"]), reports(1, finished=(lease,))),
        (
            "Output",
            pb.FromAgentOutput(hello=pb.OutputHello(node_id=node["id"], session_id="s")),
            pb.FromAgentOutput(chunk=chunk),
        ),
        ("Files", pb.FromAgentFiles(hello=pb.FilesHello(node_id=node["id"], session_id="s"))),
    ]
    before = hostile.refusals(action="agent.connect").total()
    for each in tries:
        status, answers = call(address, *each)
        assert (status.split()[0] in {"PERMISSION_DENIED", "UNAVAILABLE"}, answers) == (True, []), (
            each,
            status,
        )
    eventually(
        lambda: hostile.refusals(action="agent.connect")["agent.connect", "not_our_user"] > before,
        f"the false agent of uid {uid} in the audit log",
    )
    assert [each["id"] for each in hostile.site.json("nodes")["nodes"]] == [node["id"]]
    assert "EVIL" not in hostile.ann.output(hostile.task)
    hostile.bob.ask("DELETE", f"/api/v1/tasks/{task}")
    hostile.unharmed()


def test_the_lease_of_another_node_is_refused_and_recorded(hostile):
    """A second machine with all rights of an agent reports the end of a task that runs on the first one."""
    lease = int(hostile.environ["DGPU_LEASE_ID"])
    address, finished = hostile.site.record["grpc_address"], reports(1, finished=(lease,))
    status, answers = call(address, "Connect", register("second"), finished, patient=True)
    assert answers, status
    eventually(
        lambda: hostile.refusals()["agent.report", "foreign_lease"], "the foreign lease in the audit log"
    )
    hostile.unharmed()


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2J<img src=x onerror=alert(1)>"
RAW = re.compile(r"\x1b\]0;|\x1b\[2J|\x9b|\x07")


@pytest.fixture(scope="module")
def evil_task(hostile):
    """With such signs wherever a task may have them; a name and a label with them are refused."""
    for field in ({"name": EVIL}, {"labels": {"x": EVIL}}, {"labels": {EVIL: "x"}}):
        body = {"tenant_id": "b", "gpu_count": 0, "command": ["true"], **field}
        assert hostile.bob.ask("POST", "/api/v1/tasks", body).status == 400, field
    script = f"printf '%s' '{EVIL}'; printf %s '{EVIL}' > \"$(printf '\\033[2Jfile')\"; exit 3"
    failed = hostile.bob.submit("", command=["/" + EVIL.replace("/", "")], max_retries=0)
    task = hostile.bob.submit(script, name="<img src=x onerror=alert(1)>", max_retries=0)
    held = hostile.bob.submit(script, held=True)
    for each in (failed, task):
        eventually(lambda each=each: hostile.site.task(each)["status"] == "failed", "the end of an evil task")
    hostile.bob.ask("GET", "/api/v1/tasks/%1b%5b2J")
    return failed, task, held


def on_terminal(site, *arguments: str) -> str:
    """The output of a verb that believes to write to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        site.command(*arguments),
        env={**site.env, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    told = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        told += piece
    os.close(ours)
    process.wait(60)
    return told.decode(errors="replace")


def test_no_view_sends_signs_of_a_task_to_the_terminal(hostile, evil_task):
    failed, task, held = evil_task
    views = [
        ("ps", "-a"),
        ("ps", "-a", "-o", "wide"),
        ("show", failed),
        ("show", task),
        ("show", task, "--json"),
        ("show", task, "-o", "yaml"),
        ("why", held),
        ("queue",),
        ("top", "--once"),
        ("audit",),
        ("fetch", task, "--list"),
        ("history", task),
        ("logs", task),
    ]
    for view in views:
        told = on_terminal(hostile.site, *view)
        assert told, view
        assert not RAW.search(told), (view, told)
        if view[0] != "logs":
            assert "\x1b" not in hostile.site.dgpu(*view).out, view
    assert "?[2J" in on_terminal(hostile.site, "show", task)


def test_output_and_files_are_never_a_page(hostile, evil_task):
    _, task, _ = evil_task
    for path in ("logs", "files/%1b%5b2Jfile", "output"):
        answer = hostile.bob.ask("GET", f"/api/v1/tasks/{task}/{path}")
        assert answer.status == 200, (path, answer)
        assert answer.kind.split(";")[0] in {"text/plain", "application/octet-stream", "application/json"}
        assert answer.is_not_sniffed, path
    # In a pipe, the output is what the task wrote.
    done = subprocess.run(
        hostile.site.command("logs", task), env=hostile.site.env, capture_output=True, check=True
    )
    assert done.stdout == EVIL.encode()
