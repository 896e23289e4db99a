"""The parts of `up` that need no running service."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dgpu.entry import service_unit
from dgpu.entry.ask import running_tasks
from dgpu.entry.processes import ProcessRef, bound_log, is_alive, process_ref, stop_process, tail
from dgpu.entry.stack import Stack, choose_cards, free_port
from dgpu.entry.state_dir import StateDir, UpRecord, default_state_dir
from dgpu.entry.up import _doubt_of_heartbeats

from .conftest import task


def sleeper():
    return subprocess.Popen(["sleep", "600"])


def test_a_process_is_named_by_its_start_and_not_by_its_pid_alone():
    """A pid is used again; signalling the new owner would end a stranger's work."""
    process = sleeper()
    try:
        ref = process_ref(process.pid)
        assert is_alive(ref)
        stranger = ProcessRef(pid=ref.pid, start_ticks=ref.start_ticks + 1, boot_id=ref.boot_id)
        assert not is_alive(stranger)
        assert stop_process(stranger) is False
        assert process.poll() is None
        rebooted = ProcessRef(pid=ref.pid, start_ticks=ref.start_ticks, boot_id="another")
        assert not is_alive(rebooted)
    finally:
        process.kill()
        process.wait()


def test_the_remains_of_a_process_are_not_alive():
    process = sleeper()
    ref = process_ref(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(ref)
    process.wait()


def test_a_process_that_ignores_sigterm_is_killed():
    script = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    assert stop_process(process_ref(process.pid), grace_seconds=0.3)
    assert process.wait() == -9
    process.stdout.close()


def test_a_taken_port_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(0) > 0


def test_only_one_holds_the_lock(tmp_path):
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    assert first.is_locked() is False
    descriptor = first.lock()
    assert second.lock() is None
    assert second.is_locked() is True
    os.close(descriptor)
    assert second.is_locked() is False


def test_the_record_is_private_and_read_back_and_a_broken_one_is_no_record(tmp_path):
    state_dir = StateDir(tmp_path)
    record = UpRecord(url="http://x", token_file="t", grpc_address="g", version="1", started_at="now")
    state_dir.write_record(record)
    assert state_dir.read_record() == record
    assert stat.S_IMODE(state_dir.record_file.stat().st_mode) == 0o600
    state_dir.record_file.write_text("{half")
    assert state_dir.read_record() is None


def test_the_state_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("DGPU_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "dgpu"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state_dir().is_absolute()
    monkeypatch.setenv("DGPU_DATA_DIR", str(tmp_path / "own"))
    assert default_state_dir() == tmp_path / "own"


def test_the_settings_of_up_are_ones_that_the_services_accept(tmp_path):
    """And those of a small machine: nothing is cut off, no GPU idles, no lease runs out."""
    from dgpu.entry.config import load_agent_config, load_scheduler_config

    state_dir = StateDir(tmp_path)
    stack = Stack(state_dir, choose_cards("2xV100,1xT4", 3), http_port=18080, grpc_port=19090)
    stack.prepare()
    scheduler = load_scheduler_config(state_dir.config_file("scheduler"), {})
    assert scheduler.scheduler.default_task_timeout_seconds == 0
    assert scheduler.scheduler.max_task_timeout_seconds == 0
    assert (scheduler.quota.mode, scheduler.quota.reclaim) == ("borrow", "wait")
    assert scheduler.agent.lease_action == "never"
    agent = load_agent_config(state_dir.config_file("agent"), {})
    assert agent.agent.simulated_nodes == 3
    assert [(cards.model, cards.count) for cards in agent.gpu.simulated] == [("V100", 2), ("T4", 1)]
    assert agent.scheduler.master_address == "127.0.0.1:19090"


def test_overrides_pass_through_but_not_the_addresses_that_up_decides(tmp_path, monkeypatch):
    monkeypatch.setenv("DGPU__SCHEDULER__SCHEDULE_INTERVAL", "1")
    monkeypatch.setenv("DGPU__SERVER__HTTP_ADDRESS", "0.0.0.0:1")
    stack = Stack(StateDir(tmp_path), choose_cards("1xT4", 1), http_port=1, grpc_port=2)
    assert stack.scheduler.environ["DGPU__SCHEDULER__SCHEDULE_INTERVAL"] == "1"
    assert "DGPU__SERVER__HTTP_ADDRESS" not in stack.scheduler.environ


def test_a_log_is_cut_while_its_writer_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("dgpu.entry.processes.LOG_BYTES", 1_000)
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 400)
        bound_log(log)
        writer.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "x.log.1").read_bytes().endswith(b"old\n")
    assert tail(log, 5) == "new"


def test_a_unit_leaves_tasks_alone_when_it_stops():
    text = service_unit.unit_text(service_unit.UnitOptions())
    assert "KillMode=process" in text
    assert "ExecStart=" in text
    assert text.endswith("WantedBy=default.target\n")


def test_a_unit_names_its_directory_in_full():
    """What systemd starts does not run in this directory."""
    text = service_unit.unit_text(service_unit.UnitOptions(data_dir=Path("state")))
    assert f"--data-dir {Path.cwd()}/state" in text


def test_a_system_unit_of_an_agent_names_its_configuration(tmp_path):
    config = tmp_path / "my agent 100%.yaml"
    config.touch()
    options = service_unit.UnitOptions(role="agent", system=True, config=config, run_as="gpu")
    text = service_unit.unit_text(options)
    assert f'"{tmp_path}/my agent 100%%.yaml"' in text
    assert "User=gpu" in text
    assert "WantedBy=multi-user.target" in text
    with pytest.raises(ValueError, match="--config"):
        service_unit.unit_text(service_unit.UnitOptions(role="agent"))


def test_a_unit_that_differs_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    options = service_unit.UnitOptions()
    path = service_unit.write_unit(options, force=False)
    assert service_unit.write_unit(options, force=False) == path
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        service_unit.write_unit(options, force=False)
    service_unit.write_unit(options, force=True)
    assert path.read_text() == service_unit.unit_text(options)


@pytest.mark.parametrize(
    ("interval", "timeout", "told"),
    [("5", "15", None), ("6", "15", "every 5 s"), ("30", "15", "every 5 s"), ("1", "2", "every 0.667 s")],
)
def test_an_agent_that_would_beat_too_seldom_is_told_of_where_both_are_known(
    monkeypatch, interval, timeout, told
):
    monkeypatch.setenv("DGPU__AGENT__HEARTBEAT_INTERVAL", interval)
    monkeypatch.setenv("DGPU__AGENT__HEARTBEAT_TIMEOUT", timeout)
    doubt = _doubt_of_heartbeats()
    assert (doubt is None) == (told is None)
    assert told is None or told in doubt


def test_heartbeats_that_cannot_be_read_are_left_to_the_service_that_refuses_them(monkeypatch):
    monkeypatch.setenv("DGPU__AGENT__HEARTBEAT_INTERVAL", "often")
    assert _doubt_of_heartbeats() is None


def test_only_tasks_that_ran_before_up_are_said_to_have_gone_on(server):
    tasks = [
        task(1, "running", started_at="2026-05-04T09:59:59.999Z"),
        task(2, "running", started_at="2026-05-04T10:00:00.001Z"),  # waited, and found a GPU after the start
        task(3, "running", started_at=None),
    ]
    server.answers["GET", "/api/v1/tasks"] = (200, {"tasks": tasks, "total": 3, "next_cursor": None})
    began = datetime(2026, 5, 4, 10, tzinfo=UTC)
    assert running_tasks(server.url, started_before=began) == ["task-1"]
    assert running_tasks(server.url) == ["task-1", "task-2", "task-3"]
    server.answers["GET", "/api/v1/tasks"] = (503, {})
    assert running_tasks(server.url, started_before=began) is None
