"""A person's day at the command line, against real services and real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from .conftest import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.slow


def test_submit_ps_logs_and_show_tell_one_story(running_site):
    task_id = running_site.submit("-J", "greeting", "--", "sh", "-c", "echo hello; echo sorry >&2")
    assert running_site.good("wait", task_id).out.count(task_id) == 1
    assert sorted(running_site.good("logs", task_id).out.splitlines()) == ["hello", "sorry"]
    assert task_id in running_site.good("ps", "-a").out
    shown = running_site.task(task_id)
    assert (shown["status"], shown["exit_code"], shown["name"]) == ("success", 0, "greeting")
    assert shown["node"]
    assert len(shown["allocated_gpus"]) == 1


def test_a_task_runs_in_this_directory_with_this_path_and_sees_its_gpus(running_site):
    """`dgpu submit -- python train.py` must run the same program as the shell."""
    directory = running_site.home / "project"
    directory.mkdir()
    tool = directory / "mytool"
    tool.write_text("#!/bin/sh\npwd\necho $CUDA_VISIBLE_DEVICES $DGPU_TASK_ID $EXTRA\n")
    tool.chmod(0o755)
    answer = running_site.dgpu(
        "run", "-G", "2", "-e", "EXTRA=yes", "mytool",
        cwd=directory, env={"PATH": f"{directory}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert answer.code == 0, answer
    where, what = answer.out.splitlines()
    assert where == str(directory)
    gpus, task_id, extra = what.split()
    assert len(gpus.split(",")) == 2
    assert all(gpu.startswith("GPU-") for gpu in gpus.split(","))
    assert task_id.removeprefix("task-").isdigit()
    assert extra == "yes"


def test_a_script_runs_as_it_was_at_submit_with_the_variables_of_slurm(running_site):
    script = running_site.home / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:2 --array=3-4\n#SBATCH -c 1 -J night\n"
        'echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_GPUS_ON_NODE $SLURM_JOB_NAME $1 ${BASH_SOURCE##*/}"\n'
    )
    first = running_site.good("submit", "--hold", str(script), "word").out.split()[0]
    script.write_text("#!/bin/bash\nexit 3\n")
    running_site.good("release", first, "--array")
    running_site.good("wait", first)
    number = first.removeprefix("task-")
    assert running_site.good("logs", f"{number}_3").out == f"{number} 3 2 night word .script\n"
    assert "sent at submit" in running_site.good("show", first).out


def test_a_small_memory_without_a_unit_is_refused(running_site):
    refused = running_site.dgpu("submit", "--gpu-mem", "16", "--", "true")
    assert refused.code == 2, refused
    assert "write 16G, or 16M if you mean it" in " ".join(refused.err.split())


def test_values_of_env_are_never_shown(running_site):
    task_id = running_site.submit("-e", "SECRET=hunter2", "--", "true")
    running_site.good("wait", task_id)
    shown = running_site.good("show", task_id, "--json").out
    assert "SECRET" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("command", "flags", "code"),
    [
        (["true"], [], 0),
        (["sh", "-c", "exit 3"], [], 3),
        (["sh", "-c", "kill -9 $$"], [], 137),
        (["sleep", "600"], ["-t", "1s"], 124),
    ],
)
def test_run_returns_the_tasks_own_code(running_site, command, flags, code):
    assert running_site.dgpu("run", *flags, "--", *command).code == code


def test_what_can_never_fit_is_refused_with_6_and_by_run_with_125(running_site):
    submitted = running_site.dgpu("submit", "-G", "64", "--", "true")
    assert (submitted.code, submitted.out) == (6, "")
    assert "64" in submitted.err
    ran = running_site.dgpu("run", "-G", "64", "--", "true")
    assert (ran.code, ran.out) == (125, "")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--after", "99999"], "There is no task task-99999 to wait for"),
        (["--nodes", "2"], "Asks for 2 nodes at once; only 1 could run a rank of it"),
    ],
)
def test_what_cannot_be_is_refused_in_the_servers_words(running_site, flags, words):
    answer = running_site.dgpu("submit", *flags, "--", "true")
    assert (answer.code, answer.out) == (6, "")
    assert words in answer.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["submit", "-G", "-1", "--", "true"], 2),
        (["submit", "-G", "100000", "--", "true"], 2),
        (["submit", "-p", "101", "--", "true"], 2),
        (["submit", "-p", "urgent", "--", "true"], 2),
        (["submit", "--pool", "gold", "--", "true"], 2),
        (["submit", "-J", "two\nlines", "--", "true"], 2),
        (["submit", "-w", "", "--", ""], 2),
        (["show", "999999999"], 5),
        (["logs", "999999999"], 5),
        (["cancel", "999999999"], 5),
        (["why", "999999999"], 5),
        (["wait", "999999999"], 125),
        (["nodes", "drain", "nowhere"], 5),
        (["nodes", "resume", "nowhere"], 5),
        (["nodes", "remove", "nowhere"], 5),
    ],
)
def test_wrong_input_has_a_code_a_message_and_no_output(running_site, arguments, code):
    answer = running_site.dgpu(*arguments)
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.err.startswith("dgpu: ")
    assert "Traceback" not in answer.err


def test_a_waiting_task_says_why_and_starts_when_it_can(running_site):
    holder = running_site.submit("-G", "2", "--", "sleep", "600")
    running_site.started(holder)
    waiting = running_site.submit("-G", "1", "-J", "patient", "--", "true")
    row = next(line for line in running_site.good("ps").out.splitlines() if line.startswith(waiting))
    assert "pending" in row
    assert len(row.split("pending")[1].split()) > 3, "the row says why"
    why = running_site.good("why", waiting).out
    assert "It waits because" in why
    assert waiting in running_site.good("queue", "-o", "name").out
    assert running_site.good("cancel", holder).out.strip() == holder
    assert running_site.dgpu("wait", holder).code == 130
    assert running_site.dgpu("wait", waiting).code == 0


def test_logs_follow_until_the_task_ends(running_site):
    release = running_site.home / "release"
    script = f"echo first; while [ ! -e {release} ]; do sleep 0.05; done; echo last"
    task_id = running_site.submit("--", "sh", "-c", script)
    running_site.started(task_id)
    follower = running_site.start("logs", "-f", task_id)
    assert follower.stdout.readline() == "first\n"
    release.touch()
    out, err = follower.communicate(timeout=PATIENCE_SECONDS)
    assert (out, follower.returncode) == ("last\n", 0), err


def test_the_last_lines_only(running_site):
    task_id = running_site.submit("--", "seq", "1", "100")
    running_site.good("wait", task_id)
    assert running_site.good("logs", task_id, "--tail", "2").out == "99\n100\n"
    nothing = running_site.good("logs", task_id, "--tail", "0")
    assert (nothing.out, nothing.err) == ("", "")


def test_ctrl_c_on_run_cancels_the_task(running_site):
    runner = running_site.start("run", "-J", "interrupted", "--", "sh", "-c", "echo ready; sleep 600")
    assert runner.stdout.readline() == "ready\n"
    os.killpg(runner.pid, signal.SIGINT)
    runner.communicate(timeout=PATIENCE_SECONDS)
    assert runner.returncode == 130
    tasks = running_site.json("ps", "-a")["tasks"]
    assert next(task for task in tasks if task["name"] == "interrupted")["status"] == "cancelled"


def test_what_a_cancelled_task_says_at_its_end_is_shown(running_site):
    script = 'trap "echo saved; exit 0" TERM; echo ready; while true; do sleep 0.05; done'
    runner = running_site.start("run", "--", "sh", "-c", script)
    assert runner.stdout.readline() == "ready\n"
    os.killpg(runner.pid, signal.SIGINT)
    out, err = runner.communicate(timeout=PATIENCE_SECONDS)
    assert runner.returncode == 130, err
    assert out.endswith("saved\n")  # some shells also tell that their child was terminated


def test_who_no_longer_waits_is_told_that_the_task_goes_on(running_site):
    waiter = running_site.start("submit", "--wait", "--", "sleep", "600")
    task_id = waiter.stdout.readline().strip()
    running_site.started(task_id)
    os.killpg(waiter.pid, signal.SIGINT)
    _, err = waiter.communicate(timeout=PATIENCE_SECONDS)
    assert waiter.returncode == 130
    assert f"{task_id} continues" in err
    running_site.good("cancel", task_id)


def test_many_are_cancelled_at_once(running_site):
    holder = running_site.submit("-G", "2", "--", "sleep", "600")
    running_site.good("submit", "--count", "20", "-A", "team", "--", "sleep", "600")
    assert json.loads(running_site.good("cancel", "--all", "-A", "team", "--json").out) == {"cancelled": 20}
    assert running_site.task(holder)["status"] == "running"
    running_site.good("submit", "--count", "3", "--", "sleep", "600")
    assert json.loads(running_site.good("cancel", "--all", "--json").out) == {"cancelled": 4}
    assert running_site.dgpu("wait", holder).code == 130


def test_a_drained_node_takes_nothing_new_until_it_is_resumed(running_site):
    (node,) = running_site.good("nodes", "-o", "name").out.split()
    assert "draining" in running_site.good("nodes", "drain", node, "--reason", "new fan").out
    assert "new fan" in running_site.good("nodes").out
    waiting = running_site.submit("--", "true")
    assert running_site.task(waiting)["status"] == "pending"
    running_site.good("nodes", "resume", node)
    assert running_site.dgpu("wait", waiting).code == 0


def test_gpus_are_listed_with_their_load(running_site):
    document = running_site.json("gpus")
    assert (document["total"], len(document["gpus"])) == (2, 2)
    assert "V100" in running_site.good("gpus").out


def test_an_allocation_holds_its_gpus_and_runs_nothing(running_site):
    task_id = running_site.submit("--allocation", "-G", "1")
    assert running_site.task(task_id)["status"] == "running"
    running_site.good("cancel", task_id)
    eventually(lambda: running_site.task(task_id)["status"] == "cancelled", "the allocation to end")


def test_a_reader_that_goes_away_is_no_error(running_site):
    command = " ".join(running_site.command("ps", "-a", "--json"))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -c 1"],
        env=running_site.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_watch_draws_again_until_ctrl_c(running_site):
    watcher = running_site.start("nodes", "--watch", "--json")
    assert json.loads(watcher.stdout.readline()) == json.loads(watcher.stdout.readline())
    os.killpg(watcher.pid, signal.SIGINT)
    _, err = watcher.communicate(timeout=PATIENCE_SECONDS)
    assert (watcher.returncode, err) == (0, "")


def test_doctor_finds_the_scheduler(running_site):
    answer = running_site.dgpu("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(answer.out)["checks"]}
    assert checks["scheduler"]["status"] == "ok"
    assert answer.code == 0, answer
