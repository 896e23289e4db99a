"""The commands of docs/recipes.md run as they are printed."""

from __future__ import annotations

import pytest

from e2e.doc_commands import ROOT, commands
from e2e.test_first_hour import Person, type_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = """#!/bin/sh
#SBATCH --job-name=hello
#SBATCH --time=0:10:00
echo job $SLURM_JOB_ID
"""


def sections(page: str) -> list[str]:
    lines = (ROOT / page).read_text().splitlines()
    return [line[3:] for line in lines if line.startswith("## ")]


def test_recipes(running_site):
    person = Person(running_site.home, running_site.env, running_site.record["url"])
    (person.home / "job.sh").write_text(JOB)
    person.has_seven_tasks = True
    printed = commands("docs/recipes.md", *sections("docs/recipes.md"))
    type_all(person, [command.text for command in printed], {})
    assert (person.home / "results" / "out" / "copy.txt").read_text() == "done\n"
