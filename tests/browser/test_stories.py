"""What people do in the dashboard, from the click to the effect, and what they see when the scheduler is gone."""

from __future__ import annotations

import re

import pytest

from .worlds import eventually

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]


@pytest.fixture
def world(chromium, stage):
    """Empty afterwards, and as it was."""
    yield stage
    for status in ("pending", "running"):
        stage.ask("POST", "/api/v1/tasks/cancel", {"status": status})
    eventually(
        lambda: stage.ask("GET", "/api/v1/tasks?status=running&limit=1")["total"] == 0, "an empty cluster"
    )
    stage.ask("PUT", "/api/v1/quota", {"online_percent": 0.5})


def status_of(page):
    return page.get_by_test_id("task-status")


def test_a_task_submitted_elsewhere_appears_without_a_reload(visitor, world):
    page = visitor.look(world, "/tasks")
    expect(page.get_by_test_id("link-state")).to_have_attribute("data-state", "live")
    page.evaluate("window.sameDocument = true")
    task_id = world.submit(name="from-a-terminal")
    expect(page.get_by_test_id(f"row-{task_id}")).to_contain_text("running")
    page.get_by_test_id("nav-cluster").click()
    expect(page.get_by_test_id("figure-running")).to_contain_text("1")
    world.ask("DELETE", f"/api/v1/tasks/{task_id}")
    expect(page.get_by_test_id("figure-running")).to_contain_text("0")
    assert page.evaluate("window.sameDocument"), "the page was never loaded again"


def test_submit_run_and_read_the_output_in_the_page(visitor, world):
    page = visitor.look(world, "/")
    page.get_by_test_id("new-task").click()
    gate = world.folder / "gate"
    command = page.get_by_test_id("submit-command")
    command.fill(f"echo first line; while [ ! -e {gate} ]; do sleep 0.05; done; echo last line")
    page.get_by_label("Name", exact=True).fill("by-hand")
    expect(page.get_by_test_id("verdict-starts")).to_contain_text("Starts at once")
    page.get_by_test_id("submit-send").click()
    expect(page).to_have_url(re.compile("/tasks/task-"))
    expect(status_of(page)).to_have_attribute("data-status", "running")
    output = page.get_by_test_id("log-text")
    expect(output).to_contain_text("first line")
    expect(output).not_to_contain_text("last line")
    gate.touch()
    expect(output).to_contain_text("last line")
    expect(status_of(page)).to_have_attribute("data-status", "success")


def test_the_verdict_tells_of_a_wait_and_of_a_refusal_before_anything_is_sent(visitor, world):
    visitor.allow("status of 400")  # the browser's own word about a refusal
    world.submit(gpu_count=2)
    page = visitor.look(world, "/submit")
    page.get_by_test_id("submit-command").fill("python train.py")
    page.get_by_label("GPUs", exact=True).fill("1")
    expect(page.get_by_test_id("verdict-waits")).to_contain_text("Waits")
    page.get_by_label("GPUs", exact=True).fill("many")
    expect(page.get_by_test_id("verdict")).to_contain_text("Would be refused")
    expect(page.locator("#h-gpus")).to_have_class("wrong")
    expect(page.get_by_test_id("submit-send")).to_be_disabled()
    assert world.ask("GET", "/api/v1/tasks?q=train.py&limit=1")["tasks"] == []


def test_cancel_and_retry(visitor, world):
    task_id = world.submit(name="not-wanted")
    page = visitor.look(world, f"/tasks/{task_id}")
    expect(status_of(page)).to_have_attribute("data-status", "running")
    page.get_by_test_id("cancel").click()
    expect(page.get_by_test_id("confirm")).to_contain_text(f"Cancel {task_id}?")
    expect(page.get_by_test_id("confirm-no")).to_have_text("Keep it")
    expect(page.get_by_test_id("confirm-yes")).to_have_text(f"Cancel {task_id}")
    page.get_by_test_id("confirm-yes").click()
    expect(status_of(page)).to_have_attribute("data-status", "cancelled")
    assert world.task(task_id)["status"] == "cancelled"
    page.get_by_test_id("retry").click()
    expect(page).not_to_have_url(re.compile(f"/{task_id}$"))
    expect(status_of(page)).to_have_attribute("data-status", "running")
    expect(page.get_by_test_id("view-task")).to_contain_text("not-wanted")


def test_several_tasks_are_cancelled_at_once(visitor, world):
    ids = [world.submit(name=f"sweep-{number}") for number in range(3)]
    page = visitor.look(world, "/tasks?q=sweep-")
    for task_id in ids:
        page.get_by_label(f"Select {task_id}").check()
    page.get_by_test_id("chosen").get_by_role("button", name="Cancel 3").click()
    page.get_by_test_id("confirm-yes").click()
    for task_id in ids:
        expect(page.get_by_test_id(f"row-{task_id}")).to_contain_text("cancelled")


def test_an_array_is_one_row_that_unfolds_to_its_failed_tasks_first(visitor, world):
    world.submit("test $DGPU_ARRAY_INDEX -ne 2", name="grid", array="0-4", max_retries=0, gpu_count=0)
    page = visitor.look(world, "/tasks?q=grid")
    row = page.locator("tr", has_text="grid").first
    expect(row).to_contain_text("1 failed · 4 succeeded")
    array = row.get_attribute("data-testid").removeprefix("row-")
    expect(page.get_by_test_id("task-table").locator("tbody > tr.open")).to_have_count(1)
    page.get_by_test_id(f"unfold-{array}").click()
    elements = page.get_by_test_id(f"elements-{array}").locator("tr")
    expect(elements).to_have_count(5)
    expect(elements.first).to_contain_text(f"{array}_2")
    expect(elements.first).to_contain_text("exited with code 1")
    row.get_by_role("link", name=array, exact=True).click()
    expect(page.get_by_test_id("array")).to_contain_text(f"{array}_2")
    page.get_by_test_id("retry-failed").click()
    expect(page).not_to_have_url(re.compile(f"/{array}$"))
    expect(page.get_by_test_id("view-task")).to_contain_text("grid")


def test_a_node_is_drained_and_comes_back(visitor, world):
    running = world.submit(name="still-there", timeout_seconds=7200)
    world.until(running, "running")
    page = visitor.look(world, "/nodes")
    row = page.get_by_test_id("node-bench")
    expect(row.get_by_role("link", name="1", exact=True)).to_be_visible()
    page.get_by_test_id("drain-bench").click()
    expect(page.get_by_test_id("drain-effect")).to_be_visible()
    expect(page.get_by_test_id("still-run")).to_contain_text(f"{running} still-there at the latest in 2h")
    page.get_by_label("Reason").fill("new fan")
    page.get_by_test_id("confirm-yes").click()
    expect(row).to_contain_text("draining")
    expect(row).to_contain_text("new fan")
    world.ask("DELETE", f"/api/v1/tasks/{running}")
    expect(row).to_contain_text("drained, empty")
    waits = world.submit()
    page.get_by_test_id("nav-cluster").click()
    expect(page.get_by_test_id("figure-waiting")).to_contain_text("1")
    page.get_by_test_id("nav-tasks").click()
    expect(page.get_by_test_id(f"row-{waits}")).to_contain_text("sleep 3600")  # it has no name
    page.get_by_test_id("nav-nodes").click()
    page.get_by_test_id("resume-bench").click()
    page.get_by_test_id("confirm-yes").click()
    expect(row).to_contain_text("ready")
    world.until(waits, "running")


def test_a_quota_change_is_previewed_and_then_applied(visitor, world):
    tasks = [world.submit() for _ in range(3)]  # of two GPUs that the pool batch may use
    for task_id in tasks[:2]:
        world.until(task_id, "running")
    page = visitor.look(world, "/quota")
    page.get_by_test_id("quota-slider").fill("25")
    expect(page.get_by_test_id("effect-starts")).to_contain_text(tasks[2])
    assert world.ask("GET", "/api/v1/quota")["online_percent"] == 0.5, "a preview changes nothing"
    assert world.task(tasks[2])["status"] == "pending"
    page.get_by_test_id("quota-apply").click()
    expect(page.get_by_test_id("toasts")).to_contain_text("The quota is changed.")
    expect(page.get_by_test_id("quota-preview")).to_contain_text("Move the slider")
    world.until(tasks[2], "running")
    assert world.ask("GET", "/api/v1/quota")["online_percent"] == 0.25


def test_an_alert_is_acknowledged_and_silenced(visitor, world):
    page = visitor.look(world, "/alerts")
    world.submit("exit 1", max_retries=0)
    alert = page.get_by_test_id("alert-list").get_by_role("listitem").filter(has_text="failure rate")
    expect(alert).to_be_visible()
    expect(page.get_by_test_id("nav-alerts")).to_contain_text("1")
    alert.get_by_role("button", name="Acknowledge").click()
    page.get_by_label("Comment").fill("known")
    page.get_by_test_id("confirm-yes").click()
    expect(alert).to_contain_text("acknowledged")
    expect(alert).to_contain_text("“known”")
    alert.get_by_role("button", name="Silence").click()
    page.get_by_test_id("silence-send").click()
    expect(alert).to_contain_text("silenced until")
    page.get_by_role("region", name="Silences").get_by_role("button", name="End the silence").click()
    expect(page.get_by_role("region", name="Silences")).to_have_count(0)
    expect(alert).not_to_contain_text("silenced until")


def test_a_lost_scheduler_is_told_and_found_again(visitor, world):
    visitor.allow("Failed to load resource: net::|ERR_")  # nobody is there to answer
    running = world.submit(name="before-the-loss")
    page = visitor.look(world, "/tasks")
    row = page.get_by_test_id(f"row-{running}")
    expect(row).to_contain_text("running")
    link, banner = page.get_by_test_id("link-state"), page.get_by_test_id("banner")
    expect(link).to_have_attribute("data-state", "live")
    expect(banner).to_have_count(0)
    world.server.kill()
    expect(banner).to_contain_text("The connection to the scheduler is lost")
    expect(link).to_have_attribute("data-state", "lost")
    expect(page.get_by_test_id("view-tasks")).to_be_visible()
    page.wait_for_timeout(1_500)
    last_known = row.inner_text()
    page.wait_for_timeout(2_500)
    assert row.inner_text() == last_known  # nobody knows whether it still runs
    world.server.start()
    world.server.wait_until_ready()
    expect(link).to_have_attribute("data-state", "live")
    expect(banner).to_have_count(0)
    world.server.wait_for_nodes(1)
    task_id = world.submit(name="after-the-restart")
    expect(page.get_by_test_id(f"row-{task_id}")).to_contain_text("running")


def test_the_files_of_a_task_are_listed_and_downloaded(visitor, world):
    task_id = world.submit(
        "mkdir ckpt; echo weights > 'ckpt/model 1%.pt'; ln -s /etc/passwd out; for i in $(seq 120); do touch f$i; done"
    )
    world.until(task_id, "success")
    page = visitor.look(world, f"/tasks/{task_id}")
    table = page.get_by_test_id("files-table")
    expect(table.locator("tbody tr")).to_have_count(100)
    page.get_by_test_id("files-more").click()
    expect(table.locator("tbody tr")).to_have_count(122)
    expect(table).to_contain_text("out → /etc/passwd")
    expect(page.get_by_test_id("files")).to_contain_text(f"{task_id}.1")
    table.get_by_role("button", name="ckpt/").click()
    with page.expect_download() as started:
        table.get_by_role("link", name="model 1%.pt").click()
    assert started.value.suggested_filename.startswith("model 1")
    assert started.value.path().read_text() == "weights\n"
    page.get_by_role("button", name="Directory of the task").click()
    expect(table.locator("tbody tr")).to_have_count(100)


def test_a_task_that_left_no_files_says_so(visitor, world):
    task_id = world.submit("true")
    world.until(task_id, "success")
    page = visitor.look(world, f"/tasks/{task_id}")
    expect(page.get_by_test_id("files")).to_contain_text("No files")
