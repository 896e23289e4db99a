"""Why a task waited, asked later: the journal still knows."""

from __future__ import annotations

import datetime as dt

import pytest

from .conftest import eventually

pytestmark = pytest.mark.slow


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()


def test_why_a_task_waited_is_known_after_it_has_ended(site):
    site.up("--fake", "1xV100")
    door = site.home / "door"
    first = site.submit("--", "sh", "-c", f"until [ -e {door} ]; do sleep 0.05; done")
    site.started(first)
    before = now()
    second = site.submit("--name", "late", "--", "sleep", "600")
    site.good("hold", second)
    held = now()
    site.good("release", second)
    eventually(lambda: "1 GPU" in site.good("why", second).out, "it to wait for a GPU")
    waited = now()
    door.touch()
    site.started(second)
    ran = now()
    site.good("cancel", second)
    site.good("wait", first)

    then = site.json("why", second, "--at", waited)
    assert (then["status"], then["position"]) == ("pending", 1)
    assert (then["task"]["status"], then["task"]["name"]) == ("pending", "late")
    assert [each["code"] for each in then["blockers"]] == ["gpus_busy"]
    assert any(first in each["detail"] for each in then["sooner"])
    page = site.good("why", second, "--at", waited).out.splitlines()
    assert page[0].startswith("As of ")
    assert "task-2 (late) has waited for" in page[2]
    assert "Expected start" not in "\n".join(page), "the forecast of that time is not kept"

    assert "held" in [each["code"] for each in site.json("why", second, "--at", held)["blockers"]]
    assert "task-2 (late) runs on" in site.good("why", second, "--at", ran).out
    assert site.json("why", second, "--at", "0s")["status"] == "cancelled"

    early = site.dgpu("why", second, "--at", before)
    assert (early.code, early.out) == (5, "")
    assert "task-2 was submitted at" in early.err
    late = site.dgpu("why", second, "--at", "2999-01-01")
    assert late.code == 2
    assert "a time in the past" in late.err
    assert site.dgpu("why", second, "--at", "noon").code == 2

    site.interrupt()
    site.up("--fake", "1xV100")
    assert site.json("why", second, "--at", waited) == then, "the journal outlives the scheduler"


def test_a_journal_that_cannot_be_read_is_told_without_its_path(site):
    site.up("--fake", "1xV100")
    task = site.submit("--hold", "--", "true")
    held = now()
    (segment,) = (site.data_dir / "scheduler" / "journal").glob("segment-*")
    with segment.open("r+b") as file:
        file.write(b"damaged")
    unreadable = site.dgpu("why", task, "--at", held)
    assert unreadable.code == 1
    assert "The journal of that time cannot be read" in unreadable.err
    assert str(site.home) not in unreadable.err
    assert "it is held" in site.good("why", task).out, "answers about now need no file"
