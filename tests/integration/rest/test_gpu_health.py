"""A GPU that leaves service and comes back, as the API shows it."""

from __future__ import annotations

import pytest

from dgpu.client import Client
from dgpu.core.commands import ObserveGpu, ReportCheck
from dgpu.core.model.ids import GpuId
from rest_world import TOKEN, RestWorld

CARD = GpuId("GPU-n1-0")
RECOVER = f"/api/v1/gpus/{CARD}/recover"


@pytest.fixture
def sick(world: RestWorld) -> RestWorld:
    world.add_node("n1", gpus=1)
    world.execute(ObserveGpu(gpu_id=CARD, foreign_mb=0, fault="Xid 79: off the bus", fault_cause="xid"))
    return world


def card(world: RestWorld) -> dict:
    (shown,) = world.ask("GET", "/api/v1/gpus").body["gpus"]
    return shown


def test_a_card_shows_its_state_of_health_with_the_evidence(sick) -> None:
    shown = card(sick)
    assert shown["status"] == "error"
    health = shown["health"]
    assert (health["state"], health["cause"], health["evidence"]) == (
        "quarantined",
        "xid",
        "Xid 79: off the bus",
    )
    assert health["since"]
    assert sick.ask("GET", "/api/v1/gpus").body["error"] == 1
    task_id = sick.submit()
    blockers = sick.ask("GET", f"/api/v1/tasks/{task_id}/why").body["blockers"]
    (told,) = [blocker for blocker in blockers if blocker["code"] == "gpu_health"]
    assert told["quarantined"] == 1


def test_an_operator_brings_it_to_its_check_and_the_check_to_parole(sick) -> None:
    answer = sick.ask("POST", RECOVER, {"reason": "reseated"})
    assert answer.status == 200
    assert (answer.body["health"]["state"], answer.body["health"]["remark"]) == ("probing", "reseated")
    sick.execute(ReportCheck(gpu_id=CARD, number=1, ok=True, evidence="well"))
    sick.execute(ObserveGpu(gpu_id=CARD, foreign_mb=0))
    assert card(sick)["health"]["state"] == "parole"
    assert card(sick)["status"] == "idle"
    refused = sick.ask("POST", RECOVER, {})
    assert (refused.status, refused.body["code"]) == (409, "gpu_in_service")


def test_what_cannot_be_recovered_is_refused_in_words(world) -> None:
    world.add_node("n1", gpus=1)
    assert world.ask("POST", RECOVER, {}).body["code"] == "gpu_in_service"
    unknown = world.ask("POST", "/api/v1/gpus/GPU-of-nobody/recover", {})
    assert (unknown.status, unknown.body["code"]) == (404, "unknown_gpu")
    assert world.ask("POST", RECOVER, {"why": "x"}).status == 400


def test_the_sdk_recovers_too(sick) -> None:
    with Client(sick.url, token=TOKEN) as client:
        assert client.recover_gpu(CARD, reason="new fan").health.state == "probing"
