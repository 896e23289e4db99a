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
    """Those with commands; `dgpu jupyter` does not return, and has a test of its own."""
    parts = (ROOT / page).read_text().split("\n## ")[1:]
    return [part.partition("\n")[0] for part in parts if "```console" in part]


def test_recipes(running_site):
    person = Person(running_site.home, running_site.env, running_site.record["url"])
    (person.home / "job.sh").write_text(JOB)
    person.has_seven_tasks = True
    printed = commands("docs/recipes.md", *sections("docs/recipes.md"))
    type_all(person, [command.text for command in printed], {})
    assert len(printed) > 15
    assert (person.home / "results" / "out" / "copy.txt").read_text() == "done\n"
