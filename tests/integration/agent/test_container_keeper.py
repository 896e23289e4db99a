"""The real keeper with real containers of a real engine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from dgpu.agent.store import read_leases
from integration.agent.keeping import Kept, children_of, is_alive, process_state, wait_for, word
from integration.agent.podman import IMAGE, podman  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow


class KeptContainers(Kept):
    def __init__(self, directory, engine) -> None:
        super().__init__(directory)
        self.engine = engine

    def contain(self, lease, command, *, limits=None, **facts) -> None:
        """`facts`: of the container or of the order."""
        of_order = {
            name: facts.pop(name)
            for name in ("timeout_ms", "grace_ms", "cwd", "env", "secrets")
            if name in facts
        }
        container = {
            "socket": self.engine.socket,
            "image": IMAGE,
            "pull": "missing",
            "auth_file": "",
            "user": "65534:65534",
            "groups": [],
            "mounts": [],
            "allowed": [],
            "hidden": [str(self.directory / "keeper")],
            "read_only": False,
            "network": "none",
            "gpus": [],
            "gpu_method": "gpus",
            "limits": {"memory_mb": 0, "cpus_milli": 0, "pids": 100, "shm_mb": 16, **(limits or {})},
            **facts,
        }
        self.spawn(lease, command, container=container, account=[65534, 65534, [], 0], **of_order)

    def root(self, lease) -> int:
        """The container's first process, as an agent that connects now is told."""
        self.disconnect()
        self.connect_again()
        return self.known[lease].get("inner", [0])[0]

    def wait_root(self, lease) -> int:
        return wait_for(lambda: self.root(lease))

    def wait_output(self, lease, text) -> None:
        wait_for(lambda: text in self.output(lease))


@pytest.fixture
def kept(tmp_path, podman):  # noqa: F811
    keeper = KeptContainers(tmp_path, podman)
    processes = [keeper.guard_pid, keeper.pid]
    yield keeper
    try:
        keeper.close()
    finally:
        for pid in filter(is_alive, processes):  # a broken test must not leave them behind
            os.kill(pid, signal.SIGKILL)


def test_exit_code_output_environment_and_files_come_back(kept, tmp_path) -> None:
    kept.contain(
        1, "echo out; echo err >&2; echo $A $FROM_IMAGE; pwd; echo kept > file; exit 3", env={"A": "b"}
    )
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"], end["error"]) == ("exited", 3, "")
    directory = tmp_path / "tasks" / "1"
    assert sorted(kept.output(1).decode().splitlines()) == sorted(["out", "err", "b yes", str(directory)])
    assert (directory / "file").read_text() == "kept\n"
    assert kept.engine.containers() == []


def test_a_container_has_no_rights_that_a_process_lacks(kept) -> None:
    kept.contain(
        1,
        "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; echo $$; ls /proc | grep -c '^[0-9]*$'; "
        "touch /x; touch /tmp/ok && echo wrote; ls /sys/class/net",
        read_only=True,
    )
    kept.wait_ended(1)
    lines = kept.output(1).decode().splitlines()
    assert lines[0] == "65534"
    assert lines[1:4] == ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"]
    assert lines[4] == "1"  # its own processes only
    assert "touch: /x: Read-only file system" in lines
    assert "wrote" in lines


@pytest.mark.parametrize(
    ("facts", "outcome", "code", "words"),
    [
        ({"image": "localhost/nope:1", "pull": "never"}, "cannot_start", 125, "not on this node"),
        ({"image": "127.0.0.1:1/nope:1"}, "node_fault", 125, "127.0.0.1:1/nope:1"),
        ({"mounts": [["/etc", "/data", False]]}, "cannot_start", 125, "/etc is outside"),
        ({"mounts": [["/nope", "/data", False]]}, "cannot_start", 125, "mount /nope: No such file"),
        ({"cwd": "/etc"}, "cannot_start", 125, "/etc is outside"),
        ({"command": ["nope"]}, "cannot_start", 127, "nope"),
        ({"command": ["/bin/not-executable"]}, "cannot_start", 126, "not-executable"),
        ({"socket": "/nope/sock"}, "node_fault", 125, "the container engine at /nope/sock does not answer"),
    ],
)
def test_a_container_that_cannot_start_says_why(kept, facts, outcome, code, words) -> None:
    facts = dict(facts)
    kept.contain(1, facts.pop("command", "true"), **facts)
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == (outcome, code)
    assert words in end["error"]
    assert kept.engine.containers() == []


def test_secrets_are_files_in_the_container(kept) -> None:
    kept.contain(1, "cat $DGPU_SECRETS_DIR/key; touch $DGPU_SECRETS_DIR/x", secrets={"key": "czNjcmV0Cg=="})
    assert kept.wait_ended(1)["outcome"] == "exited"
    assert kept.output(1) == b"s3cret\ntouch: /run/secrets/x: Read-only file system\n"


def test_the_exit_code_125_of_a_program_is_its_own(kept) -> None:
    kept.contain(1, "exit 125")
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"], end["error"]) == ("exited", 125, "")


def test_mounts_follow_the_list_after_links_are_resolved(kept, tmp_path) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret"
    for directory in (data / "sub", secret):
        directory.mkdir(parents=True)
        (directory / "file").write_text(f"{directory.name}\n")
    (data / "link").symlink_to(secret)
    allowed = [f"{data}:ro"]
    kept.contain(1, "cat /in/file; touch /in/x", mounts=[[f"{data}/sub", "/in", False]], allowed=allowed)
    assert kept.wait_ended(1)["outcome"] == "exited"
    assert kept.output(1) == b"sub\ntouch: /in/x: Read-only file system\n"
    kept.contain(2, "cat /in/file", mounts=[[f"{data}/link", "/in", False]], allowed=allowed)
    end = kept.wait_ended(2)
    assert end["outcome"] == "cannot_start"
    assert f"{data}/link ({secret}) is outside" in end["error"]
    kept.contain(3, "true", mounts=[[str(tmp_path), "/in", False]], allowed=[str(tmp_path)])
    assert "would show" in kept.wait_ended(3)["error"]  # the keeper's own files are in there


def test_more_memory_than_its_limit_ends_it_and_says_so(kept) -> None:
    kept.contain(1, "exec dd if=/dev/zero of=/dev/null bs=200M count=1", limits={"memory_mb": 32})
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("exited", 137)
    assert end["error"].endswith("too much memory: its memory limit is 32 MB")
    assert kept.engine.containers() == []


def test_a_stop_reaches_the_program_and_a_stubborn_one_is_killed(kept) -> None:
    kept.contain(1, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    kept.wait_output(1, b"ready")
    kept.send({"stop": [[1, 60_000, "stopped"]]})
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("stopped", 5)
    assert kept.output(1) == b"ready\nbye\n"
    kept.contain(2, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    kept.wait_output(2, b"ready")
    kept.send({"stop": [[2, 100, "stopped"]]})
    assert kept.wait_ended(2)["outcome"] == "stopped"
    assert kept.engine.containers() == []


def test_the_time_limit_holds_without_an_agent(kept) -> None:
    kept.contain(1, "echo ready; while :; do sleep 0.05; done", timeout_ms=1_500, grace_ms=100)
    kept.wait_started(1)
    kept.disconnect()
    wait_for(lambda: "end" in read_leases(kept.directory / "keeper").get(1, {}))
    kept.connect_again()
    assert kept.known[1]["end"]["outcome"] == "timeout"
    assert kept.engine.containers() == []


def test_the_end_of_the_lease_freezes_the_container_and_contact_thaws_it(kept, tmp_path) -> None:
    """Also a program that has dropped the mark from its environment."""
    kept.contain(1, "exec env -i /bin/sh -c 'while :; do echo x >> ticks; sleep 0.02; done'")
    root = kept.wait_root(1)
    ticks = tmp_path / "tasks" / "1" / "ticks"
    wait_for(ticks.exists)
    kept.send(word(lease_ms=500, action="freeze"))
    kept.wait_frozen(1)
    wait_for(lambda: is_frozen(root))  # the kernel freezes a process when it next runs
    frozen = ticks.stat().st_size
    kept.send(word(lease_ms=60_000, action="freeze"))
    assert ticks.stat().st_size == frozen
    kept.send({"thaw": [1]})
    wait_for(lambda: ticks.stat().st_size > frozen)
    kept.send({"stop": [[1, 0, "stopped"]]})
    assert kept.wait_ended(1)["outcome"] == "stopped"


def test_a_frozen_container_can_be_stopped(kept) -> None:
    kept.contain(1, "while :; do sleep 0.02; done")
    root = kept.wait_root(1)
    kept.send(word(lease_ms=300, action="freeze"))
    kept.wait_frozen(1)
    kept.send({"stop": [[1, 60_000, "stopped"]]})
    assert kept.wait_ended(1)["outcome"] == "stopped"
    assert not is_alive(root)
    assert kept.engine.containers() == []


def test_a_killed_runner_takes_its_container_along(kept) -> None:
    kept.contain(1, "exec env -i /bin/sh -c 'while :; do sleep 0.05; done'", grace_ms=200)
    root = kept.wait_root(1)
    os.kill(kept.known[1]["pid"], signal.SIGKILL)
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("node_fault", 125)
    assert not is_alive(root)
    wait_for(lambda: kept.engine.containers() == [])


def test_a_killed_keeper_leaves_no_container(kept, tmp_path) -> None:
    kept.contain(1, "exec env -i /bin/sh -c 'while :; do sleep 0.05; done'")
    root, guard = kept.wait_root(1), kept.guard_pid
    os.kill(kept.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(guard))
    assert not is_alive(root)
    assert kept.engine.containers() == []
    kept.launch(kept.settings)
    kept.connect_again()
    assert kept.known[1]["end"]["outcome"] == "node_fault"


def test_the_next_keeper_ends_containers_of_one_whose_guard_was_killed_too(kept) -> None:
    kept.contain(1, "exec env -i /bin/sh -c 'while :; do sleep 0.05; done'")
    root, guard, keeper = kept.wait_root(1), kept.guard_pid, kept.pid
    everyone = [guard, keeper, *children_of(guard)]
    os.kill(guard, signal.SIGSTOP)
    for pid in everyone:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, everyone)))
    assert is_alive(root)
    kept.launch(kept.settings)
    assert not is_alive(root)
    assert kept.engine.containers() == []
    kept.connect_again()


def test_a_restarted_engine_does_not_lose_the_run(kept, podman) -> None:  # noqa: F811
    kept.contain(1, "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo done; exit 4")
    kept.wait_root(1)
    kept.wait_output(1, b"ready")
    podman.kill()
    podman.start()
    wait_for(lambda: b"engine was restarted" in kept.output(1))
    Path(kept.directory, "tasks", "1", "go").touch()
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("exited", 4)
    assert b"done\n" in kept.output(1)
    assert kept.engine.containers() == []


def test_a_run_ends_only_when_the_engine_has_no_such_container(kept, podman) -> None:  # noqa: F811
    """Its runner died before the container's first process was known: only the engine knows whether there is one."""
    with hung_engine(kept.directory / "hung") as (path, calls):
        before = pipes_of(kept.pid)
        kept.contain(1, "true", socket=path)
        wait_for(lambda: calls and "/containers/create" in calls[-1])
        os.kill(children_of(kept.pid)[0], signal.SIGKILL)
        wait_for(lambda: any(call.startswith("DELETE") for call in calls))
        kept.disconnect()
        kept.connect_again()
        assert "end" not in kept.known[1]
        assert pipes_of(kept.pid) == before  # the end of a pipe would wake the keeper for ever
    Path(path).symlink_to(podman.socket)  # now an engine answers there: no such container
    assert kept.wait_ended(1)["outcome"] == "node_fault"


def pipes_of(pid: int) -> set[str]:
    return {
        link for fd in Path(f"/proc/{pid}/fd").iterdir() if (link := str(fd.readlink())).startswith("pipe:")
    }


@contextlib.contextmanager
def hung_engine(path):
    """An engine that has every image and then never answers: its calls, as they arrive."""
    calls: list[str] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(16)
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listening.accept()
                    calls.append(link.recv(65_536).decode().split("\r\n")[0])
                    held.append(link)
                    if "/images/" in calls[-1]:
                        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield str(path), calls
        listening.shutdown(socket.SHUT_RDWR)
        for link in held:
            link.close()
    path.unlink()


def is_frozen(pid: int) -> bool:
    """By a signal, or by its control group."""
    groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    path = next(line[3:] for line in groups if line.startswith("0::"))
    for mount in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        events = Path(f"{mount}{path}/cgroup.events")
        if events.exists() and "frozen 1" in events.read_text():
            return True
    return process_state(pid) == "T"
