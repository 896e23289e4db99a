"""Slurm's commands on dgpu: what they send, what they print, and what they refuse by name."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from dgpu.cli.main import run as dgpu_run
from dgpu.cli.slurm.__main__ import COMMANDS, run

from .conftest import SUBMITTED, task

SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:2 -J night\nsrun python train.py\n"
NODES = {
    "total": 2,
    "nodes": [
        {"id": "n1", "status": "online", "gpus": 4, "gpus_free": 1, "gpu_models": ["NVIDIA A100"], "cpus": 8},
        {"id": "n2", "status": "online", "gpus": 4, "gpus_free": 4, "gpu_models": ["V100"], "draining": True},
    ],
}
TASKS = [
    task(9, "running", name="train", labels={"user": "ann"}, allocated_nodes=["n1"], node="n1", timeout_seconds=7200,
         started_at="2026-05-04T10:00:00.000Z"),
    task(8, name="wait", labels={"user": "bob"}, waiting="4/4 GPUs busy", array_id="task-7", array_index=1,
         array_count=2),
]  # fmt: skip


@pytest.fixture
def slurm(server, monkeypatch, tmp_path, capfd):
    """Runs a command of Slurm in its own process state; returns exit code, stdout and stderr."""
    for name in [name for name in os.environ if name.startswith(("DGPU", "SLURM"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DGPU_SERVER", server.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["POST", "/api/v1/tasks/cancel"] = (200, {"cancelled": 1})
    server.answers["GET", "/api/v1/tasks"] = (200, {"tasks": TASKS, "total": 2})
    server.answers["GET", "/api/v1/tasks/task-9"] = (200, TASKS[0])
    server.answers["GET", "/api/v1/nodes"] = (200, NODES)

    def call(name, *arguments):
        capfd.readouterr()
        code = run(name, arguments)
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return int(code), out, err

    return call


def sent(server):
    return server.sent("POST", "/api/v1/tasks")[-1]


def test_sbatch_sends_the_script_with_all_variables_and_its_options_win(
    slurm, server, tmp_path, monkeypatch
) -> None:
    (tmp_path / "job.sh").write_text(SCRIPT)
    monkeypatch.setenv("ANY_OTHER", "here")
    code, out, err = slurm("sbatch", "-J", "day", "--time=5", "job.sh", "-n", "x")
    assert (code, out) == (0, "Submitted batch job 7\n"), err
    body = sent(server)
    assert (body["name"], body["gpu_count"], body["timeout_seconds"]) == ("day", 2, 300)
    assert (body["command"], body["script"]) == (["job.sh", "-n", "x"], SCRIPT)
    assert body["env"]["ANY_OTHER"] == "here"
    assert slurm("sbatch", "--parsable", "--export=NONE", "job.sh")[1] == "7\n"
    assert "ANY_OTHER" not in sent(server)["env"]


def test_sbatch_wraps_a_command(slurm, server) -> None:
    assert slurm("sbatch", "--wrap", "echo $HOME", "-c", "2")[0] == 0
    assert (sent(server)["script"], sent(server)["cpus"]) == ("#!/bin/sh\necho $HOME\n", 2)
    assert sent(server)["slurm_env"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--exclusive", "job.sh"], "--exclusive: not supported"),
        (["--frobnicate", "job.sh"], "--frobnicate is not known"),
        (["none.sh"], "none.sh cannot be read"),
        (["bad.sh"], "bad.sh:2:16: --time"),
        (["plain.txt"], "must begin with #!"),
        (["--wrap", "x", "job.sh"], "--wrap excludes a script"),
        (["-N", "2", "plain.sh"], "does not call srun"),
        (["--time"], "--time needs a value"),
    ],
)
def test_sbatch_refuses_by_name_and_sends_nothing(slurm, server, tmp_path, arguments, words) -> None:
    (tmp_path / "job.sh").write_text(SCRIPT)
    (tmp_path / "bad.sh").write_text("#!/bin/sh\n#SBATCH --time=soon\n")
    (tmp_path / "plain.txt").write_text("echo\n")
    (tmp_path / "plain.sh").write_text("#!/bin/sh\necho\n")
    code, out, err = slurm("sbatch", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("sbatch: error: ")
    assert words in err
    assert not server.requests


def test_squeue_shows_the_columns_of_slurm(slurm) -> None:
    code, out, err = slurm("squeue", "-o", "%.6i %.5P %.6j %.4u %.2t %.9l %R")
    assert code == 0, err
    assert out.splitlines() == [
        " JOBID PARTI   NAME USER ST TIME_LIMI NODELIST(REASON)",
        "   7_1 batch   wait  bob PD UNLIMITED (4/4 GPUs busy)",
        "     9 batch  train  ann  R   2:00:00 n1",
    ]


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["-u", "ann"], ["9"]),
        (["-t", "PD"], ["7_1"]),
        (["-j", "9,7_1"], ["7_1", "9"]),
        (["-j", "7"], ["7_1"]),
        (["-n", "train", "-w", "n1"], ["9"]),
        (["-w", "n2"], []),
        (["--me", "-p", "batch"], []),
    ],
)
def test_squeue_filters(slurm, arguments, ids) -> None:
    _, out, err = slurm("squeue", "-h", "-o", "%i", *arguments)
    assert out.split() == ids, err


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("squeue", ["-o", "%i %Y"], "%Y of the format is not supported"),
        ("squeue", ["--iterate=5"], "--iterate is not known"),
        ("squeue", ["-t", "LOST"], "state LOST is not known"),
        ("scancel", [], "a job id"),
        ("scancel", ["--signal=USR1", "9"], "--signal is not known"),
        ("sacct", ["--format=JobID,MaxRSS"], "MaxRSS of the format is not supported"),
        ("sacct", ["-S", "yesterday"], "--starttime"),
        ("scontrol", ["update", "JobId=9"], "update JobId=9: not supported"),
        ("scontrol", ["show", "hostnames", "n[1-"], "n[1-4]"),
        ("scontrol", ["show", "node", "n9"], "node n9 not found"),
        ("srun", [], "a command is missing"),
        ("srun", ["--pty", "bash"], "Leave out --pty"),
        ("srun", ["-n", "4", "hostname"], "use sbatch with a script"),
        ("salloc", ["--reservation=x"], "--reservation: not supported"),
        ("sinfo", ["--json"], "--json is not known"),
    ],
)
def test_what_is_not_supported_is_named(slurm, server, command, arguments, words) -> None:
    code, out, err = slurm(command, *arguments)
    assert (code, out) == (1, "")
    assert words in err
    assert err.startswith(f"{command}: error: ")
    assert not [path for method, path, _ in server.requests if method == "POST"]


def test_scancel_cancels_by_id_and_by_filter(slurm, server) -> None:
    assert slurm("scancel", "9", "7_1")[0] == 0
    assert slurm("scancel", "-u", "ann")[0] == 0
    assert slurm("scancel", "-t", "PENDING", "-n", "train")[0] == 0
    bodies = server.sent("POST", "/api/v1/tasks/cancel")
    assert [body["task_ids"] for body in bodies] == [["task-9", "task-7_1"], ["task-9"]]


def test_sinfo_groups_nodes_by_state(slurm) -> None:
    assert slurm("sinfo", "-h")[1].split("\n")[:2] == [
        "dgpu*        up   infinite      1  drain n2",
        "dgpu*        up   infinite      1    mix n1",
    ]
    assert slurm("sinfo", "-N", "-o", "%n %G %T")[1].splitlines() == [
        "HOSTNAMES GRES STATE",
        "n2 gpu:V100:4 drained",
        "n1 gpu:NVIDIA_A100:4 mixed",
    ]


def test_sacct_prints_results(slurm, server) -> None:
    ended = task(9, "failed", name="t", reason="timeout", exit_code=-9, started_at="2026-05-04T10:00:00.000Z",
                 finished_at="2026-05-05T11:02:03.000Z")  # fmt: skip
    server.answers["GET", "/api/v1/tasks/task-9"] = (200, ended)
    _, out, err = slurm("sacct", "-j", "9", "-P", "--format=JobID,JobName,State,ExitCode,Elapsed")
    assert out == "JobID|JobName|State|ExitCode|Elapsed\n9|t|TIMEOUT|0:9|1-01:02:03\n", err


def test_scontrol_shows_jobs_nodes_and_names_of_nodes(slurm, monkeypatch) -> None:
    assert "JobId=9 JobName=train" in slurm("scontrol", "show", "job", "9")[1]
    assert "NodeName=n2" in slurm("scontrol", "show", "node", "n2")[1]
    assert slurm("scontrol", "show", "hostnames", "n[1-2],m")[1] == "n1\nn2\nm\n"
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a,b")
    assert slurm("scontrol", "show", "hostnames")[1] == "a\nb\n"


def step(*arguments, **env):
    """`srun` in a job, as its own process."""
    inside = {
        "PATH": os.environ["PATH"], "DGPU_TASK_ID": "task-9", "SLURM_JOB_ID": "9", "SLURM_NNODES": "1",
        "SLURM_NODEID": "0", "SLURM_NTASKS": "1", **env,
    }  # fmt: skip
    command = [sys.executable, "-m", "dgpu.cli.slurm", "srun", *arguments]
    return subprocess.run(command, env=inside, capture_output=True, text=True, timeout=60, check=False)


def test_srun_in_a_job_starts_the_processes_of_its_node() -> None:
    show = 'echo "$SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $CUDA_VISIBLE_DEVICES $RANK/$WORLD_SIZE"'
    many = step(
        "-l", "--gpus-per-task=1", "--mpi=pmix", "--cpu_bind=v", "sh", "-c", show,
        SLURM_NNODES="2", SLURM_NODEID="1", SLURM_NTASKS="4", CUDA_VISIBLE_DEVICES="a,b", RANK="1", WORLD_SIZE="2",
    )  # fmt: skip
    assert sorted(many.stdout.splitlines()) == ["2: 2/4 0 a 2/4", "3: 3/4 1 b 3/4"], many
    one = step("--", "sh", "-c", "echo $SLURM_PROCID; exit 3")
    assert (one.stdout, one.returncode) == ("0\n", 3)
    assert step("-n", "2", "sh", "-c", "exit $SLURM_PROCID").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-N", "1", "x"], "on every node"),
        (["-w", "n1", "x"], "-w: not supported in a job"),
        (["-n", "3", "x"], "cannot be divided"),
        (["--gpus-per-task=2", "x"], "the task has 0 GPUs"),
        (["/no/such/program"], "No such file"),
    ],
)
def test_srun_in_a_job_refuses_what_it_cannot_do(arguments, words) -> None:
    nodes = {} if words == "No such file" or "GPUs" in words else {"SLURM_NNODES": "2", "SLURM_NTASKS": "2"}
    refused = step(*arguments, **nodes)
    assert refused.returncode == 1
    assert words in refused.stderr


def test_the_commands_are_installed_once_and_replace_no_other_program(tmp_path, capfd) -> None:
    directory = tmp_path / "two words"
    assert dgpu_run(["slurm-shims", "--install", str(directory)]) == 0
    assert dgpu_run(["slurm-shims", "--install", str(directory)]) == 0
    assert sorted(path.name for path in directory.iterdir()) == sorted(COMMANDS)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o755 for path in directory.iterdir())
    shown = subprocess.run(
        [directory / "squeue", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert shown.stdout.startswith("squeue ")
    (directory / "sinfo").write_text("#!/bin/sh\necho another\n")
    capfd.readouterr()
    assert dgpu_run(["slurm-shims", "--install", str(directory)]) == 1
    assert "sinfo: not of dgpu" in capfd.readouterr().err
    assert dgpu_run(["slurm-shims", "--install", str(directory), "--force"]) == 0


def test_salloc_holds_gpus_while_a_command_runs_here(slurm, server) -> None:
    held = task(7, "running", allocation=True, allocated_nodes=["n1"], allocated_gpus=["GPU-1"], node="n1")
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, held)
    code, out, err = slurm("salloc", "-G", "1", "sh", "-c", "echo $SLURM_JOB_ID $SLURM_JOB_NODELIST; exit 4")
    assert (code, out) == (4, "7 n1\n"), err
    assert (sent(server)["allocation"], sent(server)["gpu_count"]) == (True, 1)
    assert "env" not in json.dumps(sent(server))
    assert server.sent("POST", "/api/v1/tasks/cancel") == [{"task_ids": ["task-7"]}]
