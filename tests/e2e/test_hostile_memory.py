"""Two tenants share a GPU, and one claims that its processes belong to the task of the other.

The memory of each process comes from an NVML of the tests, which is read as the driver's would be.
"""

from __future__ import annotations

import pathlib
import shlex

import pytest

from nvml_world import Card, build_library, write_world

from .conftest import eventually
from .hostile_site import Person, needs_two_users
from .test_isolation import isolated_site

pytestmark = needs_two_users

ANN_MB, BOB_MB = 1_500, 9_000
HALF = {"gpu_count": 1, "shared": True, "gpu_share": 0.5, "gpu_memory_mb": 10_000}
SHOW = "tr '\\0' '\\n' < /proc/$$/environ | grep -E '^DGPU_(LEASE_ID|KEEPER)='; echo pid $$; exec sleep 1000"


@pytest.fixture
def card(tmp_path_factory: pytest.TempPathFactory):
    """A machine with one GPU, and its file of facts."""
    folder = tmp_path_factory.mktemp("card")
    control = folder / "world"
    write_world(control, Card("GPU-a"))
    library = build_library(folder)
    with isolated_site(
        "--nodes",
        "1",
        LD_LIBRARY_PATH=str(library.parent),
        FAKE_NVML_CONTROL=str(control),
        DGPU__GPU__DETECTION_METHOD="nvml",
        DGPU__AGENT__HEARTBEAT_INTERVAL="0.2",
    ) as site:
        yield site, control


def test_memory_with_a_forged_mark_is_booked_on_the_forger(card):
    site, control = card
    ann, bob = Person(site, "ann", "a"), Person(site, "bob", "b")
    anns = ann.submit(SHOW, **HALF)
    told = eventually(lambda: "pid" in (out := ann.output(anns)) and out, "ann's task")
    mark = shlex.join(line for line in told.splitlines() if line.startswith("DGPU_"))
    forged = bob.submit(f"exec env {mark} sh -c 'echo pid $$; exec sleep 1000'", **HALF)
    forger = eventually(lambda: "pid" in (out := bob.output(forged)) and out, "bob's task")
    pids = [int(text.split("pid ")[1]) for text in (told, forger)]
    claimed = pathlib.Path(f"/proc/{pids[1]}/environ").read_text()
    assert all(part in claimed for part in shlex.split(mark)), "the mark was not forged"
    held = zip(pids, (ANN_MB, BOB_MB), strict=True)
    processes = "\n".join(f"proc GPU-a|{pid}|{used_mb}|C" for pid, used_mb in held)
    write_world(control, Card("GPU-a", used=ANN_MB + BOB_MB), more=processes)
    eventually(
        lambda: site.json("gpus")["gpus"][0]["memory_used_mb"] >= ANN_MB + BOB_MB, "the memory in the view"
    )
    peaks = {}
    for person, task in ((bob, forged), (ann, anns)):
        assert person.ask("DELETE", f"/api/v1/tasks/{task}").status == 200
        ended = eventually(
            lambda person=person, task=task: (
                (found := person.ask("GET", f"/api/v1/tasks/{task}").json)["status"] == "cancelled"
                and found.get("usage")
                and found
            ),
            f"the end of {task}",
        )
        peaks[task] = ended["usage"]["gpu_peak_mb"]
    assert peaks == {anns: ANN_MB, forged: BOB_MB}
