"""Services, workers and calls of functions in the pages: what is there, and what a viewer may do with it."""

from __future__ import annotations

import re
import sys

import pytest

from .worlds import eventually

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

SERVER = "exec {python} -m http.server --bind 127.0.0.1 $DGPU_PORT"
FUNCTIONS = """
import pathlib, time
import dgpu

@dgpu.model("tiny", memory_mb=64)
def load():
    return "tiny"

@dgpu.task(model="tiny")
def train(model, gate):
    dgpu.progress(0.4, "epoch 2")
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return model
"""
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def world(chromium, stage):
    task = {"command": SERVER.format(python=sys.executable), "tenant_id": "vision"}
    stage.ask("PUT", "/api/v1/services/chat", {"task": task, "port": 8000})
    stage.gate = stage.folder / "go"
    (stage.folder / "calls.py").write_text(FUNCTIONS)
    stage.call = stage.ask(
        "POST",
        "/api/v1/tasks",
        {
            "entrypoint": "calls:train",
            "args": [str(stage.gate)],
            "python": sys.executable,
            "python_path": [str(stage.folder)],
            "model_name": "tiny",
        },
    )["task_id"]
    eventually(lambda: stage.task(stage.call).get("progress"), "the progress of the call")
    eventually(lambda: service(stage)["ready"] == 1, "a ready replica")
    return stage


def service(world):
    return world.ask("GET", "/api/v1/services/chat?tenant_id=vision")


def test_a_service_is_listed_with_its_replicas_and_steps(visitor, world):
    page = visitor.look(world, "/services")
    row = page.get_by_test_id("service-vision-chat")
    expect(row).to_contain_text("ready")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/services/chat"))
    replica = service(world)["replicas"][0]
    shown = page.get_by_test_id(f"replica-{replica['task_id']}")
    expect(shown).to_contain_text(replica["node"])
    expect(page.get_by_test_id("service-steps")).to_contain_text(f"{replica['task_id']} is ready")
    expect(page.get_by_text(service(world)["url"])).to_be_visible()
    page.get_by_test_id("language").click()
    expect(page.get_by_test_id("service-steps")).to_contain_text(f"{replica['task_id']} 已就绪")


def test_a_service_is_scaled_restarted_and_deleted_after_a_question(visitor, world):
    page = visitor.look(world, "/services/chat?tenant=vision")
    page.get_by_test_id("service-scale").click()
    page.get_by_test_id("scale-high").fill("2")
    page.get_by_test_id("scale-send").click()
    expect(page.get_by_test_id("view-service")).to_contain_text("1 to 2")
    assert page.get_by_test_id("service-rollback").count() == 0
    page.get_by_test_id("service-restart").click()
    page.get_by_test_id("confirm-yes").click()
    expect(page.get_by_test_id("service-rollback")).to_be_visible()
    assert service(world)["generation"] == 2
    page.get_by_test_id("service-delete").click()
    expect(page.get_by_test_id("confirm-no")).to_have_text("Keep it")
    page.get_by_test_id("confirm-no").click()
    assert service(world)["name"] == "chat"
    page.get_by_test_id("service-delete").click()
    expect(page.get_by_test_id("confirm-yes")).to_have_text("Delete chat")
    page.get_by_test_id("confirm-yes").click()
    expect(page.get_by_test_id("empty")).to_contain_text("no services")


def test_workers_show_their_models_and_the_call_its_worker_and_progress(visitor, world):
    page = visitor.look(world, "/workers", viewport=PHONE)
    (worker,) = world.ask("GET", "/api/v1/workers")["workers"]
    row = page.get_by_test_id(f"worker-{worker['task_id']}")
    expect(row).to_contain_text("busy")
    expect(row).to_contain_text("tiny")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "no sideways scrolling"
    row.get_by_role("link", name=world.call).click()
    expect(page.get_by_test_id("progress")).to_contain_text("epoch 2")
    page.get_by_role("link", name=worker["task_id"]).click()
    expect(page.get_by_test_id("used")).to_contain_text("so far")
    world.gate.touch()
    world.until(world.call, "success")
    page.goto("/workers")
    expect(row).to_contain_text("warm")
    expect(row).to_contain_text("last used")
    page.goto(f"/nodes?node={worker['node']}")
    expect(page.get_by_test_id("node-gpus")).to_contain_text("tiny")
