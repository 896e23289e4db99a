"""A card falls ill under a running task: real scheduler, real agents, real processes on simulated cards."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import yaml

from .conftest import PATIENCE_SECONDS, Site, eventually

pytestmark = pytest.mark.slow

AGENT = pathlib.Path(__file__).with_name("sick_agent.py")
WELL = {"fault": "", "hidden": ""}


class Clinic:
    """A healthy node, and a node `sick` with one GPU whose health the test decides."""

    def __init__(self, **rules):
        self.site = Site()
        quick = {**rules, "COOL_DOWN_SECONDS": "0.5", "PAROLE_RUNS": "2", "CHECK_TIMEOUT_SECONDS": "30"}
        self.site.env |= {f"DGPU__HEALTH__{key}": value for key, value in quick.items()}
        self.site.up()
        (self.healthy,) = self.site.good("nodes", "-o", "name").out.split()
        self._illness = self.site.home / "illness.json"
        self.make(**WELL)
        config = self.site.home / "sick.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "agent": {"id": "sick", "heartbeat_interval": 0.2},
                    "scheduler": {"master_address": self.site.record["grpc_address"]},
                    "gpu": {
                        "detection_method": "simulated",
                        "simulated": "1xV100",
                        "health_check_interval": 0.2,
                    },
                    "executor": {"work_dir": str(self.site.home / "sick")},
                }
            )
        )
        self._agent = subprocess.Popen(
            [sys.executable, AGENT, config, self._illness], env=self.site.env, stderr=subprocess.PIPE
        )
        eventually(lambda: "sick" in self.site.good("nodes", "-o", "name").out, "the second node")

    def make(self, **illness):
        fresh = self._illness.with_suffix(".new")
        fresh.write_text(json.dumps({**WELL, **illness}))
        fresh.replace(self._illness)

    def card(self):
        return next(gpu for gpu in self.site.json("gpus")["gpus"] if gpu["node"] == "sick")

    def wait_for(self, state):
        return eventually(
            lambda: self.card()["health"]["state"] == state and self.card(), f"a card that is {state}"
        )

    def only_the_sick_node_takes_tasks(self, *, only):
        self.site.good("nodes", "drain" if only else "resume", self.healthy)

    def close(self):
        self._agent.terminate()
        self._agent.communicate(timeout=PATIENCE_SECONDS)
        from dgpu.entry.keepers import end_keepers

        end_keepers(self.site.home / "sick")
        self.site.close()


@pytest.fixture
def clinic():
    """A GPU may fail its check as often as this slow test needs."""
    place = Clinic(MAX_QUARANTINES="1000")
    yield place
    place.close()


@pytest.fixture
def strict_clinic():
    place = Clinic(MAX_QUARANTINES="3")
    yield place
    place.close()


def test_a_card_falls_ill_its_task_goes_elsewhere_and_it_earns_its_trust_back(clinic):
    site = clinic.site
    clinic.only_the_sick_node_takes_tasks(only=True)
    script = '[ "$DGPU_NODE" = sick ] && exec sleep 600; echo finished on $DGPU_NODE'
    task = site.submit("--retries", "1", "--", "sh", "-c", script)
    site.started(task)
    assert site.task(task)["node"] == "sick"
    clinic.only_the_sick_node_takes_tasks(only=False)

    # It leaves service at once, with the evidence, and its task is retried elsewhere.
    clinic.make(fault="fell off the bus", hidden="memory is damaged")
    card = clinic.wait_for("quarantined")
    assert card["status"] == "error"
    assert "fell off the bus" in card["health"]["evidence"]
    assert site.dgpu("wait", task).code == 0
    ended = site.task(task)
    assert (ended["node"], ended["attempt"]) == (clinic.healthy, 2)
    assert site.good("logs", task).out == f"finished on {clinic.healthy}\n"

    # The driver calls it well again, but the check finds what is still wrong: it is not given to anybody.
    clinic.make(hidden="memory is damaged")
    eventually(lambda: "memory is damaged" in clinic.card()["health"]["evidence"], "a check that fails")
    assert clinic.card()["health"]["quarantines"] >= 2

    # Really well, it passes the check and is on parole: work of low priority only.
    clinic.make()
    assert clinic.wait_for("parole")["status"] == "idle"
    clinic.only_the_sick_node_takes_tasks(only=True)
    important = site.submit("-p", "normal", "--", "true")
    for _ in range(2):
        low = site.submit("-p", "low", "--", "true")
        assert site.dgpu("wait", low).code == 0
        assert site.task(low)["node"] == "sick"

    # Two good runs: it is trusted, and what waited for such a card starts there.
    clinic.wait_for("trusted")
    assert site.dgpu("wait", important).code == 0
    assert site.task(important)["node"] == "sick"


def test_a_fault_that_comes_again_and_again_needs_a_person(strict_clinic):
    """After the fourth fault within a day, the GPU stays out until an operator reports the repair."""
    strict_clinic.make(fault="fell off the bus", hidden="memory is damaged")
    strict_clinic.wait_for("quarantined")
    strict_clinic.make(hidden="memory is damaged")
    card = strict_clinic.wait_for("out")
    assert card["health"]["needs_person"]
    strict_clinic.make()
    assert strict_clinic.site.dgpu("gpus", "recover", "sick:0", "--reason", "reseated").code == 0
    strict_clinic.wait_for("parole")
