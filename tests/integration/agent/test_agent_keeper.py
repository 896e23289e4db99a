"""The real keeper with real processes. Nothing is assumed about how fast anything is."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from pathlib import Path

import pytest

from dgpu.agent.frames import Decoder
from dgpu.agent.keeper_link import connect, launch
from integration.agent.keeping import (
    Kept,
    children_of,
    cpu_ticks,
    is_alive,
    pid_in,
    process_state,
    wait_for,
    word,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def kept(tmp_path):
    keeper = Kept(tmp_path)
    yield keeper
    keeper.close()


def test_exit_codes_and_output_come_back(kept) -> None:
    kept.spawn(1, "echo out; echo err >&2; exit 3")
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"], end["signal"]) == ("exited", 3, 0)
    assert kept.output(1) == b"out\nerr\n"
    assert end["output_bytes"] == 8


def test_output_that_finds_no_room_is_counted(kept, tmp_path) -> None:
    (tmp_path / "output").mkdir(exist_ok=True)
    (tmp_path / "output" / "1").touch()  # where its directory would be
    kept.spawn(1, "echo out; exit 3")
    end = kept.wait_ended(1)
    assert (end["exit_code"], end["output_bytes"], end["output_lost"]) == (3, 0, 4)


def test_a_batch_is_started_once_even_if_it_is_ordered_twice(kept, tmp_path) -> None:
    orders = [kept.order(lease, f"echo x >> {tmp_path}/ran") for lease in range(1, 41)]
    kept.send({"spawn": orders})
    kept.send({"spawn": orders})
    for lease in range(1, 41):
        assert kept.wait_ended(lease)["exit_code"] == 0
    kept.send({"spawn": orders})
    kept.spawn(50, "true")
    kept.wait_ended(50)
    assert (tmp_path / "ran").read_text() == "x\n" * 40


def test_a_task_finds_its_environment_an_empty_stdin_and_a_directory_of_its_own(kept, tmp_path) -> None:
    kept.spawn(7, "pwd; cat; echo $A; ls /proc/self/fd | tr '\\n' ' '; umask", env={"A": "a b"})
    kept.wait_ended(7)
    mask = os.umask(0)
    os.umask(mask)
    lines = kept.output(7).decode().split("\n")
    assert lines[0] == str(tmp_path / "tasks" / "7")
    assert lines[1] == "a b"
    assert lines[2].split()[:4] == ["0", "1", "2", "3"]  # 3: the directory that ls reads
    assert int(lines[2].split()[4], 8) == mask


def test_a_directory_is_kept_with_its_files_and_an_empty_one_goes_to_the_next_task(kept, tmp_path) -> None:
    for lease, command in ((1, "pwd"), (2, "pwd; touch mine"), (3, "pwd; ls")):
        kept.spawn(lease, command, dir=f"task-{lease}.1")
        kept.wait_ended(lease)
        assert kept.output(lease).decode() == f"{tmp_path}/tasks/task-{lease}.1\n"
    assert sorted(entry.name for entry in (tmp_path / "tasks").iterdir()) == ["task-2.1", "task-3.1"]
    assert (tmp_path / "tasks" / "task-2.1" / "mine").exists()


def test_a_signal_from_elsewhere_is_not_taken_for_ours(kept) -> None:
    kept.spawn(1, "kill -KILL $$")
    end = kept.wait_ended(1)
    assert (end["outcome"], end["signal"], end["exit_code"]) == ("signaled", 9, 137)


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        ({"command": ["no-such-program"]}, 127, "no-such-program: command not found"),
        ({"command": ["/no/such/file"]}, 127, "/no/such/file: command not found"),
        ({"command": ["/etc/passwd"]}, 126, "/etc/passwd: not executable"),
        ({"command": "true", "cwd": "/no"}, 126, "workdir /no: No such file or directory. It must exist"),
        ({"command": "true", "cwd": "here"}, 126, "workdir here is not an absolute path"),
        (
            {"command": ["true", "x" * 200_000]},
            126,
            "true: command and environment are too large for the system",
        ),
        ({"command": ["true", "a\0b"]}, 126, "true: embedded null byte"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(kept, facts, code, words) -> None:
    kept.spawn(1, **facts)
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"], end["error"][: len(words)]) == ("cannot_start", code, words)


def test_a_script_without_an_interpreter_line_is_run_by_the_shell(kept, tmp_path) -> None:
    script = tmp_path / "script"
    script.write_text("echo by shell $1\n")
    script.chmod(0o755)
    kept.spawn(1, [str(script), "it"])
    assert kept.wait_ended(1)["exit_code"] == 0
    assert kept.output(1) == b"by shell it\n"


def test_an_environment_of_64_kib_arrives_whole(kept) -> None:
    kept.spawn(1, "echo ${#BIG}", env={"BIG": "x" * 65_536})
    kept.wait_ended(1)
    assert kept.output(1) == b"65536\n"


def test_tasks_and_exit_codes_survive_the_agent(kept) -> None:
    """A killed agent's socket closes its socket; nothing else reaches the keeper."""
    kept.spawn(1, "while [ ! -e go ]; do sleep 0.05; done; exit 5")
    kept.spawn(2, "exit 6")
    kept.wait_started(1)
    kept.wait_ended(2)
    kept.disconnect()
    kept.connect_again()
    assert "end" not in kept.known[1]
    assert kept.known[1]["started_ms"] > 0
    assert kept.known[2]["end"]["exit_code"] == 6
    kept.disconnect()
    (kept.directory / "tasks" / "1" / "go").touch()

    def ended() -> bool:
        kept.connect_again()
        if "end" in kept.known[1]:
            return True
        kept.disconnect()
        return False

    wait_for(ended)
    assert kept.known[1]["end"]["exit_code"] == 5
    kept.send({"forget": [1, 2]})
    kept.spawn(3, "true")
    kept.wait_ended(3)
    kept.disconnect()
    kept.connect_again()
    assert set(kept.known) == {3}


def test_a_successor_is_welcome_at_once_and_the_last_orders_of_the_dead_are_carried_out(kept) -> None:
    """Both sockets become readable in the same moment; the order in which they are looked at must not matter."""
    for lease in range(1, 21):
        os.kill(kept.pid, signal.SIGSTOP)
        kept.spawn(lease, f"exit {lease}")
        kept.disconnect()
        successor = connect(kept.directory / "keeper")
        os.kill(kept.pid, signal.SIGCONT)
        kept.connect(successor)
        assert lease in kept.known
        end = kept.known[lease].get("end") or kept.wait_ended(lease)
        assert end["exit_code"] == lease


def test_only_one_agent_at_a_time_and_only_we_may_open_the_socket(kept) -> None:
    second = connect(kept.directory / "keeper")
    second.settimeout(60)
    frames = []
    decoder = Decoder()
    while not frames:
        frames = decoder.feed(second.recv(4096))
    assert frames == [{"refused": "another agent is connected"}]
    second.close()
    mode = (kept.directory / "keeper" / "keeper.sock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_with_the_keeper_its_tasks_die_and_the_next_one_tells(kept, tmp_path) -> None:
    kept.spawn(1, f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' & exec sleep 1000")
    kept.spawn(2, "exit 4")
    kept.wait_started(1)
    kept.wait_ended(2)
    stray = pid_in(tmp_path / "pid")
    before = kept.processes()
    assert stray in before
    os.kill(kept.pid, signal.SIGKILL)
    kept.disconnect()
    launch(kept.settings)  # listens only when everything of the dead keeper has gone
    assert not any(is_alive(pid) for pid in before)
    kept.connect()
    assert kept.known[1]["end"]["outcome"] == "node_fault"
    assert "keeper died" in kept.known[1]["end"]["error"]
    assert kept.known[2]["end"]["exit_code"] == 4


def test_with_keeper_and_guard_killed_together_the_next_keeper_ends_what_is_left(kept, tmp_path) -> None:
    kept.spawn(1, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    task = pid_in(tmp_path / "pid")
    keeper = kept.pid
    os.kill(_parent(keeper), signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    kept.disconnect()
    launch(kept.settings)
    assert not is_alive(task)
    kept.connect()


@pytest.mark.parametrize(
    "escape",
    [
        "setsid sh -c '(trap \"\" TERM HUP; echo $$ > PID; while :; do sleep 0.1; done) & wait' &",
        "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > PID; while :; do sleep 0.1; done' &) &",
        "(env -i setsid sh -c 'trap \"\" TERM; echo $$ > PID; while :; do sleep 0.1; done' &) &",
    ],
    ids=["setsid", "double-fork", "no-mark"],
)
def test_a_stop_reaches_whoever_tried_to_leave(kept, tmp_path, escape) -> None:
    kept.spawn(1, escape.replace("PID", f"{tmp_path}/pid") + " sleep 1000")
    stray = pid_in(tmp_path / "pid")
    kept.send({"stop": [[1, 200, "stopped"]]})
    end = kept.wait_ended(1)
    assert end["outcome"] == "stopped"
    assert not is_alive(stray)
    assert not any(is_alive(pid) for pid in children_of(kept.pid))


def test_processes_left_behind_are_ended_before_the_end_is_told(kept, tmp_path) -> None:
    kept.spawn(
        1,
        f"(setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' >/dev/null 2>&1 &); "
        f"while [ ! -s {tmp_path}/pid ]; do sleep 0.02; done; exit 9",
    )
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("exited", 9)
    assert not is_alive(pid_in(tmp_path / "pid"))


def test_a_left_over_of_one_task_does_not_take_another_task_with_it(kept, tmp_path) -> None:
    kept.spawn(1, "exec sleep 1000")
    kept.spawn(2, "(setsid sleep 1000 >/dev/null 2>&1 &); exit 0")
    kept.wait_started(1)
    kept.wait_ended(2)
    assert len(kept.processes(1)) == 1
    assert kept.processes(2) == set()
    kept.send({"stop": [[1, 0, "stopped"]]})
    assert kept.wait_ended(1)["outcome"] == "stopped"


def test_a_tree_that_keeps_forking_is_ended(kept) -> None:
    bomb = "f() { while :; do (setsid sleep 0.3 &) ; sleep 0.01; done; }; trap '' TERM; f & f & wait"
    kept.spawn(1, bomb)
    wait_for(lambda: len(kept.processes(1)) > 10)
    kept.send({"stop": [[1, 0, "stopped"]]})
    kept.wait_ended(1)
    assert kept.processes(1) == set()


def test_a_time_limit_sends_term_and_lets_the_task_tidy_up(kept, tmp_path) -> None:
    kept.spawn(1, "trap 'echo tidy; exit 0' TERM; while :; do sleep 0.05; done", timeout_ms=300)
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("timeout", 0)
    assert kept.output(1).endswith(b"tidy\n")  # the shell may speak of its own child first


def test_after_the_grace_period_a_deaf_task_is_killed(kept) -> None:
    kept.spawn(1, "trap '' TERM; while :; do sleep 0.05; done", timeout_ms=200, grace_ms=200)
    end = kept.wait_ended(1)
    assert (end["outcome"], end["signal"]) == ("timeout", 9)


def test_time_limits_hold_without_an_agent(kept) -> None:
    kept.spawn(1, "exec sleep 1000", timeout_ms=500)
    kept.wait_started(1)
    kept.disconnect()
    wait_for(lambda: not kept.processes(1))
    kept.connect()
    end = kept.known[1].get("end") or kept.wait_ended(1)
    assert end["outcome"] == "timeout"


def test_only_the_first_and_the_last_bytes_of_long_output_are_kept(tmp_path) -> None:
    kept = Kept(tmp_path, output_cap_bytes=80_000)
    try:
        kept.spawn(1, "i=0; while [ $i -lt 40000 ]; do echo $i; i=$((i+1)); done")
        end = kept.wait_ended(1)
        whole = "".join(f"{i}\n" for i in range(40_000)).encode()
        assert end["output_bytes"] == len(whole)
        files = sorted((tmp_path / "output" / "1").glob("[0-9]*"))
        assert files[0].read_bytes() == whole[:5_000]
        assert b"".join(file.read_bytes() for file in files[1:]) == whole[int(files[1].name) :]
        assert 60_000 <= len(kept.output(1)) <= 80_000
        assert len(files) > 1
    finally:
        kept.close()


def test_a_lease_that_is_over_freezes_the_tree_until_it_is_thawed(kept, tmp_path) -> None:
    kept.spawn(1, f"sh -c 'echo $$ > {tmp_path}/pid; while :; do :; done' & wait")
    busy = pid_in(tmp_path / "pid")
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
    assert process_state(busy) == "R"
    kept.send({"stop": [[1, 0, "stopped"]]})
    kept.wait_ended(1)
    assert not is_alive(busy)


def test_a_frozen_task_whose_lease_was_given_away_never_wakes(kept, tmp_path) -> None:
    kept.spawn(1, f"trap 'touch {tmp_path}/woke' TERM; touch {tmp_path}/set; while :; do sleep 0.05; done")
    wait_for((tmp_path / "set").exists)
    kept.send(word(lease_ms=100, action="freeze"))
    kept.wait_frozen(1)
    kept.send({"stop": [[1, 3_600_000, "stopped"]]})  # grace is for those who are awake
    assert kept.wait_ended(1)["signal"] == signal.SIGKILL
    assert not (tmp_path / "woke").exists()


def test_a_lease_that_is_over_can_stop_the_tree_instead(kept) -> None:
    kept.spawn(1, "exec sleep 1000")
    kept.wait_started(1)
    kept.send(word(lease_ms=100, action="stop"))
    end = kept.wait_ended(1)
    assert (end["outcome"], end["signal"]) == ("node_fault", 9)


def test_an_order_read_after_the_lease_is_over_is_not_started(kept, tmp_path) -> None:
    kept.send(word(lease_ms=1, action="freeze", at_ms=1))
    kept.spawn(1, f"touch {tmp_path}/ran")
    assert kept.wait_ended(1)["outcome"] == "node_fault"
    assert not (tmp_path / "ran").exists()


def test_leases_of_another_node_and_leases_without_an_end_go_on(kept) -> None:
    kept.send(word("n2", lease_ms=100, action="stop"))
    kept.send(word("n1", lease_ms=100, action="never"))
    kept.spawn(1, "sleep 0.5; exit 2")
    kept.spawn(2, "exec sleep 1000", node="n2")
    assert kept.wait_ended(2)["outcome"] == "node_fault"
    assert kept.wait_ended(1)["exit_code"] == 2


def test_a_keeper_that_holds_nothing_and_hears_nobody_leaves(tmp_path) -> None:
    kept = Kept(tmp_path, idle_exit_ms=3_000)
    kept.spawn(1, "sleep 0.6; exit 8")
    kept.wait_started(1)
    keeper = kept.pid
    kept.disconnect()
    wait_for(lambda: not is_alive(keeper))
    launch(kept.settings)
    kept.connect()
    assert kept.known[1]["end"]["exit_code"] == 8
    kept.close()


def test_sigterm_ends_the_keeper_with_its_tasks_and_leaves_a_record(kept, tmp_path) -> None:
    script = (
        f"trap 'echo bye > {tmp_path}/bye; exit 3' TERM; touch {tmp_path}/set; while :; do sleep 0.05; done"
    )
    kept.spawn(1, script)
    kept.wait_started(1)
    wait_for((tmp_path / "set").exists)
    keeper = kept.pid
    os.kill(keeper, signal.SIGTERM)
    assert kept.wait_ended(1)["outcome"] == "stopped"
    wait_for(lambda: not is_alive(keeper))
    with pytest.raises((OSError, AssertionError)):
        kept.connect()
    launch(kept.settings)
    kept.connect()
    assert kept.known[1]["end"]["outcome"] == "stopped"


def test_a_directory_with_a_very_long_name_works(tmp_path) -> None:
    kept = Kept(tmp_path / ("d" * 120))
    kept.spawn(1, "exit 1")
    assert kept.wait_ended(1)["exit_code"] == 1
    kept.close()


def test_an_agent_that_sends_nonsense_is_hung_up_on_and_nothing_is_lost(kept) -> None:
    kept.spawn(1, "sleep 0.3; exit 7")
    kept.wait_started(1)
    kept.disconnect()
    rude = wait_for(lambda: _greeted(kept))
    rude.sendall(b"\xff\xff\xff\xff garbage")
    assert rude.recv(1024) == b""
    rude.close()
    kept.connect()
    if "end" not in kept.known[1]:
        assert kept.wait_ended(1)["exit_code"] == 7
    else:
        assert kept.known[1]["end"]["exit_code"] == 7


def _greeted(kept: Kept) -> socket.socket | None:
    link = connect(kept.directory / "keeper")
    link.settimeout(60)
    decoder = Decoder()
    while not (frames := decoder.feed(link.recv(65_536))):
        pass
    return link if "hello" in frames[0] else None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_search_path_that_no_system_call_takes_harms_that_task_alone(kept) -> None:
    kept.spawn(1, "sleep 1000")
    kept.wait_started(1)
    kept.spawn(2, ["true"], env={"PATH": "/bin\0/usr/bin"})
    assert kept.wait_ended(2)["outcome"] == "cannot_start"
    assert kept.processes(1)


def test_no_end_is_told_before_its_start(kept) -> None:
    kept.send({"spawn": [kept.order(lease, ["true"]) for lease in range(1, 21)]})
    for lease in range(1, 21):
        kept.wait_ended(lease)
        assert lease in kept.started


def test_what_a_task_may_hold_is_known_to_the_agent_that_adopts_it(kept) -> None:
    kept.spawn(1, "sleep 1000", most_mb=4_096)
    kept.wait_started(1)
    kept.connect_again()
    assert kept.known[1]["most_mb"] == 4_096


def test_a_task_gets_the_limit_of_open_files_that_the_agent_was_given(tmp_path) -> None:
    """Agent and keeper raise theirs. A program that uses select() breaks beyond 1,024."""
    kept = Kept(tmp_path, soft_files=333)
    try:
        kept.spawn(1, ["/bin/sh", "-c", "ulimit -Sn; /bin/sh -c 'ulimit -Sn'"])
        kept.wait_ended(1)
        assert kept.output(1) == b"333\n333\n"
        limits = Path(f"/proc/{kept.pid}/limits").read_text()
        soft, hard = next(line for line in limits.splitlines() if "open files" in line).split()[3:5]
        assert int(soft) == min(int(hard), 65_536) > 333
    finally:
        kept.close()
