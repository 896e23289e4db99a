"""Scripts with directives: what is read from them, what is sent, and which errors are told with line and column."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dgpu.cli.jobs.directives import JobFileError, directive_lines, late_lines
from dgpu.cli.jobs.hostlist import BadHostList, expand
from dgpu.cli.jobs.slurm import slurm_seconds, translate
from dgpu.cli.jobs.slurm_options import SBATCH, SLURM_OPTIONS, Effect

from .conftest import SUBMITTED, task


def read(*lines):
    options, faults = SBATCH.read(
        directive_lines("#!/bin/sh\n" + "\n".join(f"#SBATCH {line}" for line in lines))
    )
    assert not faults
    return translate(options)


def given(*lines):
    found = read(*lines)
    assert not found.faults
    return {name: value for name, value in found.given.items() if (name, value) != ("gpu_count", 0)}


def test_directives_are_read_in_the_comments_before_the_first_command() -> None:
    text = (
        "#!/bin/bash\n# note\n\n#SBATCH -N1 --time 5 # why\n##SBATCH -n 9\n# SBATCH -n 8\n#SBATCHX\n#DGPU -G 2\n"
        "ls\n#SBATCH -n 7\n"
    )
    assert [
        (line.kind, line.line, [tuple(word) for word in line.words]) for line in directive_lines(text)
    ] == [
        ("#SBATCH", 4, [("-N1", 9), ("--time", 13), ("5", 20)]),
        ("#DGPU", 8, [("-G", 7), ("2", 10)]),
    ]
    assert late_lines(text) == [10]


def test_quotes_join_words_and_an_open_one_is_told() -> None:
    (line,) = directive_lines("#SBATCH --job-name=\"two words\" -J 'a b' -J c\\ d")
    assert [word.text for word in line.words] == ["--job-name=two words", "-J", "a b", "-J", "c d"]
    with pytest.raises(JobFileError) as wrong:
        directive_lines("#!/bin/sh\n#SBATCH -J 'open")
    assert [tuple(fault)[:2] for fault in wrong.value.faults] == [(2, 12)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["--gres=gpu:2"], {"gpu_count": 2}),
        (["--gres=gpu"], {"gpu_count": 1}),
        (["--gres=gpu:a100:4"], {"gpu_count": 4, "gpu_model": ["a100"]}),
        (["--gres gpu:v100"], {"gpu_count": 1, "gpu_model": ["v100"]}),
        (["-G 4 -N 2"], {"gpu_count": 2, "nodes": 2}),
        (["--gpus=h100:4"], {"gpu_count": 4, "gpu_model": ["h100"]}),
        (["--gpus-per-node=8 --nodes=4"], {"gpu_count": 8, "nodes": 4}),
        (["--gpus-per-task=1 -n 4"], {"gpu_count": 4, "cpus": 4.0}),
        (["-n 8 --ntasks-per-node=4 -c 2"], {"nodes": 2, "cpus": 8.0}),
        (["--nodes=1-1 --ntasks=1"], {}),
        (["-c 4 --mem=16G"], {"cpus": 4.0, "ram_mb": "16384M"}),
        (["-c4 --mem-per-cpu=2000"], {"cpus": 4.0, "ram_mb": "8000M"}),
        (["--gres=gpu:2 --cpus-per-gpu=3 --mem-per-gpu=1g"], {"gpu_count": 2, "cpus": 6.0, "ram_mb": "2048M"}),
        (["-t 1-2:30"], {"timeout_seconds": "95400s"}),
        (["-A team -p batch -q high"], {"tenant_id": "team", "pool": "batch", "priority": "high"}),
        (["-d afterok:4:5,afterany:6"], {"after": ["4:ok", "5:ok", "6:any"]}),
        (["-w n[1-2] -x n03"], {"constraints": ["node!=n03", "node=n1|n2"]}),
        (["--export=ALL,A=1"], {"env_all": True, "env": ["A=1"]}),
        (["--export=NONE"], {"clean_env": True}),
        (["-H --no-requeue -D /x"], {"held": True, "max_retries": 0, "workdir": "/x"}),
        (["--array=0-9%2", "-J a", "-J b"], {"array": "0-9%2", "name": "b"}),
        (["--job=c"], {"name": "c"}),
        (["-o %x-%A_%a.out", "--error=%j.err"], {"output_file": "%x-%A_%a.out", "error_file": "%j.err"}),
        (["-o %u.out -e %j"], {"error_file": "%j"}),
        (["-o x --container-image=a"], {"image": "a"}),
        (["--tasks-per-node=2 --gres=gpu:0"], {"cpus": 2.0}),
        (["--signal=B:SIGUSR1@90 -b now+2hours"], {"signal": "USR1@90", "begin_at": "+2h"}),
        (["--begin=22:00"], {"begin_at": "22:00"}),
        (["--begin=now+90"], {"begin_at": "+90s"}),
        (["--container-image=nvcr.io#nvidia/x:1 --container-mounts=/d,/a:/b:ro"],
         {"image": "nvcr.io/nvidia/x:1", "mounts": ["/d:/d", "/a:/b:ro"]}),
    ],
)  # fmt: skip
def test_an_option_of_sbatch_becomes_one_of_dgpu(lines, expected) -> None:
    assert given(*lines) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("90:30", 5430), ("1:30:00", 5400), ("2-12", 216_000), ("1-0:0:1", 86_401), ("0", None),
        ("UNLIMITED", None),
    ],
)  # fmt: skip
def test_times_are_read_as_slurm_reads_them(text, seconds) -> None:
    assert slurm_seconds(text) == seconds


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("--constraint=a100", 9, "not supported"),
        ("-N 2 --exclusive", 14, "not supported"),
        ("--time=abc", 16, "1:30:00"),
        ("--gres=lscratch:20", 16, "gpu:2"),
        ("-N 2-4", 12, "without a range"),
        ("-N 2 -n 3", 17, "cannot be divided"),
        ("-N 2 -G 3", 17, "cannot be divided"),
        ("--mem=lots", 15, "16G"),
        ("-c 0", 12, "above 0"),
        ("-d after:4", 12, "afterok:ID"),
        ("-d afterok:4?afterok:5", 12, "'?'"),
        ("-a 9-0", 12, "ascending"),
        ("--gpu-bind=single:1", 20, "closest"),
        ("--signal=R:USR1", 18, "USR1@300"),
        ("-b tomorrow", 12, "22:00"),
        ("-w n[1-", 12, "n[1-4]"),
    ],
)
def test_what_would_change_the_meaning_stops_with_its_column(line, column, words) -> None:
    (fault,) = read(line).faults
    assert fault[:2] == (2, column)
    assert words in fault.message
    assert repr(fault.message).count("got") <= 1


def test_what_changes_nothing_is_noted() -> None:
    notes = read("--mail-type=END --mail-user x@y -p gpu", "--hint=nomultithread", "-o %u.txt -t 0").notes
    assert {note.message.split(":")[0] for note in notes} == {
        "--mail-type", "--mail-user", "-p", "--hint", "-o", "-t"
    }  # fmt: skip


def test_every_option_says_what_becomes_of_it() -> None:
    """A used option needs a reader, or it would be dropped silently."""
    samples = {
        "array": "0-1", "dependency": "afterok:1", "gres": "gpu:1", "mem": "1G", "mem-per-cpu": "1G",
        "mem-per-gpu": "1G", "time": "5", "partition": "batch", "qos": "high", "nodelist": "n1", "exclude": "n1",
        "gpu-bind": "none", "begin": "22:00",
    }  # fmt: skip
    bare = (given(), read().variables)
    for name, option in SLURM_OPTIONS.items():
        if option.effect is Effect.USED:
            line = f"--{name}={samples.get(name, '2')}" if option.takes.value else f"--{name}"
            found = read(line)
            assert (found.given, found.variables) != bare or name in {"nodes", "ntasks", "gpu-bind"}, name
        else:
            assert option.about, name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b[08-10]x", ["a", "b08x", "b09x", "b10x"]),
        ("r[1,3]n[1-2]", ["r1n1", "r1n2", "r3n1", "r3n2"]),
    ],
)
def test_lists_of_nodes_are_expanded(text, names) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["", "a,", "a[", "a[1-]", "a[2-1]", "a[1-99999999]", "a]b"])
def test_a_wrong_list_of_nodes_is_refused(text) -> None:
    with pytest.raises(BadHostList):
        expand(text)


@pytest.fixture
def submit(dgpu, server, monkeypatch, tmp_path):
    """Submits a script of this text; returns exit code, stderr and the bodies sent."""
    monkeypatch.chdir(tmp_path)
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7))

    def call(text, *flags, words=()):
        (tmp_path / "job.sh").write_bytes(text if isinstance(text, bytes) else text.encode())
        code, _, err = dgpu("--server", server.url, "submit", *flags, "job.sh", *words)
        return code, err, server.sent("POST", "/api/v1/tasks")

    return call


def test_the_text_and_the_options_are_sent_and_flags_win(submit, tmp_path) -> None:
    text = (
        "#!/bin/bash -l\n#SBATCH --gres=gpu:4 -t 5 -J slurm\n#DGPU -G 3 -e A=1 --label k=v\n"
        "#SBATCH --array=2-8:3\necho\n"
    )
    code, err, (body,) = submit(text, "-G", "2", "-e", "B=2", words=["x", "--lr", "3"])
    assert code == 0, err
    assert (body["script"], body["command"], body["slurm_env"]) == (text, ["job.sh", "x", "--lr", "3"], True)
    assert (body["gpu_count"], body["timeout_seconds"], body["name"]) == (2, 300, "slurm")
    env = {name: value for name, value in body["env"].items() if name.startswith("SLURM_") or len(name) == 1}
    assert env == {
        "A": "1", "B": "2", "SLURM_JOB_NAME": "slurm", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_NTASKS": "1",
        "SLURM_SUBMIT_HOST": os.uname().nodename, "SLURM_NPROCS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_GPUS": "4",
        "SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_MAX": "8", "SLURM_ARRAY_TASK_STEP": "3",
        "SLURM_JOB_USER": body["labels"]["user"],
    }  # fmt: skip
    assert body["labels"]["k"] == "v"


def test_a_script_of_dgpu_gets_no_variables_of_slurm_and_the_default_of_gpus(submit) -> None:
    _, _, (body,) = submit("#!/bin/sh\n#DGPU -t 2h\n")
    assert "slurm_env" not in body
    assert "gpu_count" not in body
    assert (body["name"], body["timeout_seconds"]) == ("job.sh", 7200)
    assert not [name for name in body.get("env", {}) if name.startswith("SLURM")]


def test_a_path_with_spaces_is_one_word(dgpu, server, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my job.sh").write_text("#!/bin/sh\n#DGPU -t 5m\n")
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7))
    dgpu("--server", server.url, "submit", "my job.sh")
    (body,) = server.sent("POST", "/api/v1/tasks")
    assert (body["command"], body["name"]) == (["my job.sh"], "my job.sh")


def test_a_bare_upload_is_that_of_this_directory(submit, monkeypatch) -> None:
    sent = []
    monkeypatch.setattr("dgpu.cli.submit.with_uploads", lambda _, tasks, **__: sent.extend(tasks) or tasks)
    submit("#!/bin/sh\n#DGPU --upload -t 2h\n")
    assert sent[0]["upload"] == "."


def test_a_script_of_slurm_without_gpus_gets_none(submit) -> None:
    assert submit("#!/bin/sh\n#SBATCH -t 5\n")[2][0]["gpu_count"] == 0


@pytest.mark.parametrize("text", ["#!/bin/sh\necho\n", "echo\n#SBATCH -t 5\n", b"\x7fELF"])
def test_a_file_without_directives_is_a_command(submit, text) -> None:
    assert submit(text)[2][0]["command"] == ["job.sh"]
    assert "script" not in submit(text)[2][0]


def test_every_error_is_told_with_line_and_column_and_nothing_is_sent(submit) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -C a100 --time=x\n#SBATCH --gress=1\n#SBATCH -t\n#SBATCH 5\n#DGPU -G two\n"
        "#DGPU -t 5x --label y\n#DGPU --hold=1\n"
    )
    code, err, sent = submit(text)
    assert (code, sent) == (2, [])
    for place in ("2:9", "2:24", "3:9", "4:9", "5:9", "6:10", "7:10", "7:21", "8:7"):
        assert f"job.sh:{place}: " in err, err
    assert "Did you mean --gres?" in err
    assert "Nothing was submitted" in err


def test_notes_name_their_lines(submit) -> None:
    _, err, _ = submit("#!/bin/sh\n#SBATCH --mail-type=END\necho\n#SBATCH -t 1\n")
    assert "job.sh:2: --mail-type" in err
    assert "job.sh:4: a directive after the first command has no effect" in err


def test_a_container_has_no_output_files_and_its_script_still_runs(submit) -> None:
    text = "#!/bin/sh\n#SBATCH -o out.txt -e err.txt\necho\n"
    code, err, (body,) = submit(text, "--image", "train:1")
    assert code == 0
    assert err.count("job.sh: the output of a container is in dgpu logs; its output file is not written") == 1
    assert body.keys().isdisjoint({"output_file", "error_file"})
    _, _, sent = submit(text)
    assert (sent[-1]["output_file"], sent[-1]["error_file"]) == ("out.txt", "err.txt")


@pytest.mark.parametrize(
    ("more", "code"),
    [("python x.py", 2), ("# srun x\n", 2), ("  srun python x.py", 0), ("#DGPU --nodes 2\nx", 0)],
)
def test_a_script_for_several_nodes_must_be_made_for_each_of_them(submit, more, code) -> None:
    """Slurm starts it on the first node only."""
    got, err, sent = submit(f"#!/bin/sh\n#SBATCH --gres=gpu:1 -N 2\n{more}\n")
    assert got == code, err
    assert len(sent) == (code == 0)
    assert ("job.sh:2:9: dgpu starts the script on each of the 2 nodes" in err) is (code == 2)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("#!/bin/sh\r\n#SBATCH -t 5\r\n", "1:10", "DOS"),
        (b"#!/bin/sh\n#SBATCH -t 5\necho \xff\n", "3:6", "UTF-8"),
        ("#!sh\n#SBATCH -t 5\n", "1:3", "absolute path"),
        ("#!/bin/sh\n#SBATCH -t 5\n" + "x" * 262_144, "1:1", "262,144 bytes"),
    ],
)
def test_a_text_that_cannot_run_is_refused(submit, text, place, words) -> None:
    code, err, sent = submit(text)
    assert (code, sent) == (2, [])
    assert f"job.sh:{place}: " in err
    assert words in err


def test_the_docs_name_every_option_of_sbatch() -> None:
    text = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text(encoding="utf-8")
    table, noted, stops = " ".join(text.split()).split(" ## Directives ")[1:4]
    places = {Effect.USED: table, Effect.NOTED: noted, Effect.STOPS: stops}
    for name, option in SLURM_OPTIONS.items():
        shown = f"`--{name}`" + (f" `-{option.short}`" if option.short else "")
        assert shown in places[option.effect], name
