"""A real keeper that starts tasks as another Unix user."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from dgpu.agent import deletion
from dgpu.agent.as_user import files_as
from dgpu.agent.corral import Corral
from dgpu.agent.fences import Fences
from dgpu.agent.held import Held, Trees
from dgpu.agent.launch_as import Launcher
from integration.agent.keeping import Kept, cpu_ticks, is_alive, wait_for, word
from integration.agent.terminal_lines import run_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root runs tasks as other users"),
]
UID = 70_009
ACCOUNT = [UID, UID, [], 1_000]


@pytest.fixture
def place():
    """Other users can enter it, unlike the directories of pytest."""
    found = Path(tempfile.mkdtemp(prefix="dgpu-users-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def kept(place):
    keeper = Kept(place)
    (place / "tasks").chmod(0o711)
    yield keeper
    keeper.close()


def run(kept: Kept, lease: int, command: str | list[str], **facts: object) -> tuple[dict, str]:
    kept.spawn(lease, command, account=ACCOUNT, **facts)
    return kept.wait_ended(lease), kept.output(lease).decode()


def first_pid(kept: Kept, lease: int) -> int:
    return int(wait_for(lambda: kept.output(lease)).split()[0])


def test_reasons_why_a_program_does_not_start_are_the_same_as_for_the_own_user(kept, place) -> None:
    script = place / "script"
    script.write_text("echo from a script\n")
    script.chmod(0o755)
    (place / "plain").write_text("")
    orphan = place / "orphan"
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    cases = [
        (["no-such-program"], {}, "cannot_start", 127, "no-such-program: command not found"),
        ([f"{place}/plain"], {}, "cannot_start", 126, "not executable"),
        (
            ["true"],
            {"cwd": "/no/such"},
            "cannot_start",
            126,
            "workdir /no/such: No such file or directory. It must exist on the node",
        ),
        (["true"], {"cwd": "there"}, "cannot_start", 126, "is not an absolute path"),
        (["a\0b"], {}, "cannot_start", 127, "contains a NUL"),
        ([""], {}, "cannot_start", 127, "is empty"),
        ([str(orphan)], {}, "cannot_start", 127, "its interpreter was not found"),
        (["plain"], {"env": {"PATH": f"{place}:/no/such"}}, "cannot_start", 126, "plain: not executable"),
        (["true", "x" * 200_000], {}, "cannot_start", 126, "too large for the system"),
        (["true"], {"account": [0, 0, [], 0]}, "node_fault", 126, "never as root"),
    ]
    for lease, (command, facts, outcome, code, error) in enumerate(cases, 1):
        kept.spawn(lease, command, **{"account": ACCOUNT, **facts})
        end = kept.wait_ended(lease)
        assert (end["outcome"], end["exit_code"]) == (outcome, code), command
        assert error in end["error"]
    assert run(kept, 20, [str(script)])[1] == "from a script\n"


def test_a_task_gets_its_arguments_and_variables_and_no_others(kept, place) -> None:
    """The program that changes the user is started with them, and with its own order in front."""
    env = {"EMPTY": "", "TEXT": "a=b\nc", "LD_PRELOAD": "", "Z": "ü" * 50_000}
    _, out = run(kept, 1, ["env", "-0"], env=env)
    told = dict(entry.split("=", 1) for entry in out.split("\0") if entry)
    mark = {"DGPU_LEASE_ID": "1", "DGPU_KEEPER": kept.hello["keeper"]}
    assert told == {"PATH": "/usr/bin:/bin", **mark, **env}
    arguments = ["", "a b", "ü\n", "x" * 100_000]
    _, out = run(kept, 2, ["printf", "%s\\0", *arguments])
    assert out.split("\0")[:-1] == arguments
    script = place / "say"
    script.write_text('printf "%s," "$@"')
    script.chmod(0o755)
    _, out = run(kept, 3, ["say", "1", "", "3"], env={"PATH": f"/no/such::{place}/script/x:{place}:/bin"})
    assert out == "1,,3,"


def test_variables_of_a_task_do_not_affect_the_program_that_changes_its_user(kept, place) -> None:
    """It is still root: a library that it loaded for a task would give the task all rights."""
    _, out = run(kept, 1, "id -u", env={"LD_DEBUG": "files"})
    programs = re.findall(r"transferring control: (\S+)", out)
    if not programs:
        pytest.skip("the C library of this machine does not say which programs it starts")
    assert programs == ["/bin/sh", "id"]


def test_a_variable_of_a_task_cannot_replace_a_word_of_the_order(kept) -> None:
    """The words of the order are variables, too: one of them is the uid."""
    if not Launcher().usable:
        pytest.skip("launch_as.c is not compiled: there are no such variables")
    for number in range(20):
        end, out = run(kept, number + 1, ["id", "-u"], env={f"DGPU_LAUNCH_{number}": "0"})
        assert out in {"", f"{UID}\n"}
        assert ("DGPU_LAUNCH_ are reserved" in end["error"]) == (not out)
    assert out  # a name that is not used is not refused


def test_commands_and_terminals_of_a_task_belong_to_its_user_and_its_groups(kept) -> None:
    kept.spawn(1, "tty; stat -c %u $(tty); sleep 1000", account=ACCOUNT, terminal=True)
    kept.wait_started(1)
    assert wait_for(lambda: len(kept.output(1).splitlines()) > 1 and kept.output(1)).split()[1] == b"%d" % UID
    line = run_in(kept, 1, "id -u; setsid env -i sleep 1000 & echo $!")
    assert line.wait_closed()["exit_code"] == 0
    uid, escaped = map(int, line.text.split())
    assert uid == UID
    assert is_alive(escaped)
    kept.send({"stop": [[1, 0, "stopped"]]})
    kept.wait_ended(1)
    assert not is_alive(escaped), "its group tells whose it is, although it has no mark and another session"


def test_a_task_of_another_user_is_frozen_and_thawed(kept) -> None:
    kept.spawn(1, "echo $$; while :; do :; done", account=ACCOUNT)
    busy = first_pid(kept, 1)
    kept.send(word(lease_ms=100, action="freeze"))
    kept.wait_frozen(1)

    def still() -> bool:
        before = cpu_ticks(busy)
        time.sleep(0.3)
        return cpu_ticks(busy) == before

    wait_for(still)
    kept.send(word(lease_ms=3_600_000, action="freeze"))
    kept.send({"thaw": [1]})
    before = cpu_ticks(busy)
    wait_for(lambda: cpu_ticks(busy) > before)
    kept.send({"stop": [[1, 0, "stopped"]]})
    kept.wait_ended(1)
    assert not is_alive(busy)


def test_a_killed_keeper_leaves_no_process_and_no_group_of_another_user(kept) -> None:
    """Not even a process without a mark, whose guard was killed as well."""
    probe = Corral("probe")
    probe.close()
    if not probe.usable:
        pytest.skip("this machine has no control groups for tasks")
    kept.spawn(1, "setsid env -i sleep 1000 & echo $!; wait", account=ACCOUNT, ram_mb=512, cpus_milli=1_000)
    sleeper = first_pid(kept, 1)
    groups = [
        line.partition("::")[2]
        for line in Path(f"/proc/{sleeper}/cgroup").read_text().split()
        if "::" in line
    ]
    assert any(group.endswith("/1") for group in groups)
    for pid in (kept.guard_pid, kept.scribe_pid, kept.pid):
        os.kill(pid, signal.SIGKILL)
    kept.disconnect()
    kept.launch(kept.settings)
    wait_for(lambda: not is_alive(sleeper))
    kept.connect()
    assert kept.known[1]["uid"] == UID
    assert not list(Path("/sys/fs/cgroup").rglob(f"dgpu-{groups[0].split('dgpu-')[-1].split('/')[0]}"))


def test_a_process_without_a_mark_ends_before_its_task_is_reported_as_ended(kept) -> None:
    kept.spawn(1, "setsid env -i sleep 1000 & echo $!", account=ACCOUNT, grace_ms=0)
    kept.wait_ended(1)
    assert not is_alive(first_pid(kept, 1))


@pytest.mark.parametrize("ram_mb", [0, 64])
def test_the_group_of_an_ended_task_stays_until_its_use_of_memory_is_read(ram_mb) -> None:
    """Otherwise nobody could say that the task was killed because it used too much."""
    corral = Corral("reading")
    fences = Fences(corral, "reading")
    try:
        if not corral.usable or "memory" not in fences.enforced:
            pytest.skip("this machine has no control groups that limit the memory of tasks")
        order = {
            "lease": 1,
            "node": "n",
            "grace_ms": 0,
            "timeout_ms": 0,
            "account": ACCOUNT,
            "ram_mb": ram_mb,
        }
        with fences.made(order):
            pass
        held = Held(order, pid=os.getpid(), now_ms=0, ticks=0)
        held.grouped = held.fenced = True
        trees = Trees(keeper_id="reading", mains={}, live={1: held}, corral=corral, fences=fences)
        assert not trees.may_have_left(held)
        assert Path(corral.path, "1").exists() == bool(ram_mb)
        trees.release(held)
        assert not Path(corral.path, "1").exists()
    finally:
        fences.close()
        corral.close()


def test_nothing_is_added_to_a_directory_while_it_is_deleted(place, monkeypatch) -> None:
    """Another task of the same user may have it open, and could otherwise add files for ever."""
    (place / "task-1.1").mkdir()
    os.chown(place / "task-1.1", UID, UID)
    held = os.open(place / "task-1.1", os.O_RDONLY | os.O_DIRECTORY)
    refused = []
    listed = deletion._some_names

    def add_and_list(fd: int) -> list[str]:
        if os.fstat(fd).st_ino == os.fstat(held).st_ino:
            try:
                with files_as(UID, UID):
                    os.close(os.open("more", os.O_WRONLY | os.O_CREAT, dir_fd=held))
            except OSError as error:
                refused.append(error)
        return listed(fd)

    monkeypatch.setattr(deletion, "_some_names", add_and_list)
    root = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert deletion.throw_away(root, "task-1.1")
        assert deletion.empty_trash(root) == 0
    finally:
        os.close(root)
        os.close(held)
    assert [type(error) for error in refused] == [PermissionError]


def test_output_files_are_opened_with_the_rights_of_the_task(kept, place) -> None:
    own, private = place / "own", place / "private"
    own.mkdir()
    os.chown(own, UID, UID)
    private.mkdir(mode=0o700)
    wanted = {"output": "log", "anew": True}
    end, _ = run(kept, 1, "echo out; echo err >&2; id -u", cwd=str(own), files=wanted)
    assert end["exit_code"] == 0
    assert sorted((own / "log").read_text().split()) == sorted(["out", "err", str(UID)])
    found = (own / "log").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (UID, UID, 0o600)
    (private / "log").write_text("of root")
    (own / "link").symlink_to(private / "log")
    for lease, path in ((2, "link"), (3, str(private / "new"))):
        end, _ = run(kept, lease, "touch ran", cwd=str(own), files={"output": path, "anew": True})
        assert end["outcome"] == "cannot_start"
        assert end["error"].startswith(f"output file {path}: Permission denied. ")
    assert (private / "log").read_text() == "of root"
    assert not (own / "ran").exists()
