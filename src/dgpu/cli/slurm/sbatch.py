"""sbatch: submits a script, from a file, standard input or --wrap."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dgpu.cli.connection import is_final, poll, task_code
from dgpu.cli.failures import CliFailure, note
from dgpu.cli.jobs.directives import JobFileError, Options, Takes, directive_lines
from dgpu.cli.jobs.script import JobScript, parse_script, read_script
from dgpu.cli.jobs.slurm_options import OTHER_NAMES, SBATCH_TAKES, SHORT
from dgpu.cli.slurm.reading import refuse, scheduler
from dgpu.cli.submission import described
from dgpu.cli.uploading import with_uploads

_OWN = {"parsable": Takes(False), "wait": Takes(False), "quiet": Takes(False), "verbose": Takes(False)}
_OPTIONS = Options({**SBATCH_TAKES, **_OWN}, SHORT, OTHER_NAMES)


def run(arguments: Sequence[str]) -> int:
    given, words, faults = _OPTIONS.read_arguments(arguments)
    refuse(faults)
    own = {option.name for option in given if option.name in _OWN}
    wrapped = next((option.value for option in given if option.name == "wrap"), None)
    options = [option for option in given if option.name not in _OWN and option.name != "wrap"]
    if wrapped is not None:
        if words:
            raise CliFailure("--wrap excludes a script")
        path, text, words = "wrap", f"#!/bin/sh\n{wrapped}\n", ["wrap"]
    elif words:
        path, text = words[0], read_script(words[0])
    else:
        path, text, words = "sbatch", sys.stdin.read(), ["sbatch"]
    if not text.startswith("#!"):
        raise CliFailure(f"{path}: this does not look like a script: the first line must begin with #!")
    try:
        script = parse_script(path, text, directive_lines(text), options, is_slurm=True)
    except JobFileError as error:
        raise CliFailure("\n".join(error.lines(path))) from None
    return _submit(script, words, own)


def _submit(script: JobScript, words: Sequence[str], own: set[str]) -> int:
    if "quiet" not in own:
        script.tell()
    given = script.with_flags({})
    if not given.keys() & {"clean_env", "env_all", "image"}:
        given = {**given, "env_all": True}  # Slurm's default is --export=ALL
    task = script.in_task(described(given, words), words)
    client = scheduler()
    task_id = client.submit(**with_uploads(client, [task])[0]).task_id
    number = task_id.removeprefix("task-")
    sys.stdout.write(f"{number}\n" if "parsable" in own else f"Submitted batch job {number}\n")
    if "wait" not in own:
        return 0
    sys.stdout.flush()
    ended = poll(client, task_id, is_final)
    if ended.status != "success":
        note(f"sbatch: job {number} {ended.status}: {ended.error or ended.reason}")
    return task_code(ended)
