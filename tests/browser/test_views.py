"""Every view shows what is there, in a cluster of one node, of two hundred and of two thousand."""

from __future__ import annotations

import contextlib
import re
import urllib.error

import pytest

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

SIZES = [
    pytest.param(1, marks=pytest.mark.xdist_group("browser")),
    pytest.param(200, marks=pytest.mark.xdist_group("browser")),
    pytest.param(2_000, marks=pytest.mark.xdist_group("browser-large")),
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(params=SIZES, scope="module")
def scene(request, chromium, scenes):
    yield scenes.open(request.param)
    scenes.close(request.param)


def look(visitor, scene, path, view):
    page = visitor.look(scene.world, path)
    expect(page.get_by_test_id(f"view-{view}")).to_be_visible()
    expect(page.get_by_test_id("link-state")).to_have_attribute("data-state", "live")
    return page


def test_cluster_has_a_cell_for_each_gpu(visitor, scene):
    page = look(visitor, scene, "/", "cluster")
    expect(page.get_by_test_id("figure-nodes")).to_contain_text(f"{scene.nodes:,}")
    expect(page.get_by_test_id("figure-busy")).to_contain_text(f"of {scene.gpus:,}")
    canvas = page.get_by_test_id("heatmap").locator("canvas")
    expect(canvas).to_have_attribute("aria-label", re.compile(f"{scene.gpus}.*{scene.nodes}"))
    assert painted(canvas) > 1, "cells of idle and busy cards differ from the ground"
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_test_id("gpu-panel")).to_contain_text("V100")
    page.get_by_test_id("gpu-filter").fill(scene.running)
    expect(page.get_by_text(f"8 of {scene.gpus:,}")).to_be_visible()


def test_a_small_use_of_a_user_is_not_shown_as_none(visitor, scene):
    """The bar beside it says otherwise."""
    page = visitor.look(scene.world, "/")
    row = {"user": "ann", "gpu_hours": 0.0486, "running": 0, "waiting": 0}
    page.route("**/api/v1/history/usage*", lambda route: route.fulfill(json={"rows": [row]}))
    page.reload()
    expect(page.get_by_test_id("users").locator("tbody .num").last).to_have_text("0.05")


def test_the_form_for_a_task_has_a_title_of_its_own(visitor, scene):
    page = look(visitor, scene, "/submit", "submit")
    expect(page).to_have_title("New task · dgpu")


def painted(canvas):
    """How many colours the canvas has."""
    return canvas.evaluate(
        """canvas => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, Math.min(canvas.height, 400));
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )


def test_the_tip_of_a_gpu_tells_its_tasks_and_memory(visitor, scene):
    page = look(visitor, scene, f"/?find={scene.running}", "cluster")
    expect(page.get_by_text(f"8 of {scene.gpus:,}")).to_be_visible()
    page.get_by_test_id("map-or-table").get_by_role("button").last.click()
    row = page.get_by_test_id("gpu-table").get_by_role("row").filter(has_text=scene.running)
    index = int(row.locator("td").nth(1).inner_text())
    page.get_by_test_id("map-or-table").get_by_role("button").first.click()
    canvas = page.get_by_test_id("heatmap").locator("canvas")
    canvas.focus()
    for _ in range(index + 1):
        page.keyboard.press("ArrowRight")
    mark = page.locator(".heatmap-mark").bounding_box()
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    tip = page.get_by_test_id("gpu-tip")
    expect(tip).to_contain_text(scene.running)
    expect(tip).to_contain_text("V100")


def test_tasks_can_be_filtered_and_found(visitor, scene):
    page = look(visitor, scene, "/tasks", "tasks")
    for task_id in (scene.running, scene.waiting, scene.failed, scene.ended):
        expect(page.get_by_test_id(f"row-{task_id}")).to_be_visible()
    expect(page.get_by_test_id(f"row-{scene.waiting}")).to_contain_text("vision")
    page.get_by_test_id("status-filter").get_by_role("button").nth(4).click()  # failed
    expect(page.get_by_test_id(f"row-{scene.running}")).to_have_count(0)
    expect(page.get_by_test_id(f"row-{scene.failed}")).to_contain_text("fails")
    page.goto("/tasks")
    page.get_by_test_id("task-search").fill("resnet")
    expect(page.get_by_test_id(f"row-{scene.ended}")).to_have_count(0)
    expect(page.get_by_test_id(f"row-{scene.running}")).to_be_visible()


def test_a_task_shows_its_life_and_its_output(visitor, scene):
    page = look(visitor, scene, f"/tasks/{scene.running}", "task")
    expect(page.get_by_test_id("task-status")).to_have_attribute("data-status", "running")
    expect(page.get_by_test_id("log-text")).to_contain_text("step 3 of training")
    expect(page.get_by_test_id("life")).to_be_visible()


def test_a_waiting_task_says_why(visitor, scene):
    page = look(visitor, scene, f"/tasks/{scene.waiting}", "task")
    expect(page.get_by_test_id("blockers")).to_contain_text("vision")
    expect(page.get_by_test_id("why")).to_contain_text("Expected start")


def test_a_wait_tells_its_reason_at_the_time_that_is_clicked(visitor, scene, tmp_path):
    page = look(visitor, scene, f"/tasks/{scene.waiting}", "task")
    life = page.get_by_test_id("life")
    waiting = life.get_by_role("button", name="waiting")
    with page.expect_request("**/why?at=*") as late:
        waiting.click()
    told = life.get_by_test_id("waited")
    expect(told.get_by_test_id("blockers")).to_contain_text("vision")
    expect(told).to_contain_text("would have started it")
    expect(told).not_to_contain_text("Expected start")
    page.screenshot(path=tmp_path / "waited.png", full_page=True)
    with page.expect_request("**/why?at=*") as early:
        waiting.click(position={"x": 4, "y": 8})
    expect(told.get_by_test_id("blockers")).to_contain_text("vision")
    assert early.value.url < late.value.url, "the place of the pointer is a time"


def test_a_failed_task_says_what_became_of_it(visitor, scene):
    page = look(visitor, scene, f"/tasks/{scene.failed}", "task")
    expect(page.get_by_test_id("task-status")).to_have_attribute("data-status", "failed")
    expect(page.get_by_test_id("log-text")).to_contain_text("out of luck")
    expect(page.get_by_test_id("task-error")).to_have_text("exited with code 3")
    expect(page.get_by_role("definition").filter(has_text="code 3")).to_have_count(0)  # told once


def test_timeline_has_the_bars_of_the_last_hour(visitor, scene):
    node = scene.world.task(scene.running)["node"]
    page = look(visitor, scene, f"/timeline?find={node}", "timeline")
    canvas = page.get_by_test_id("gantt").locator("canvas")
    expect(canvas).to_be_visible()
    page.get_by_test_id("zoom-in").click()
    expect(page).to_have_url(re.compile("span="))
    page.goto(f"/timeline?find={node}&as=table")
    expect(page.get_by_test_id("timeline-table")).to_contain_text(scene.running)


def test_tenants_show_use_and_report(visitor, scene):
    page = look(visitor, scene, "/tenants", "tenants")
    row = page.get_by_test_id("tenant-vision")
    expect(row).to_contain_text("1 / 1")
    expect(row).to_contain_text("1 GPU")
    expect(page.get_by_test_id("usage-table")).to_contain_text("vision")


def test_quota_tells_what_a_change_does(visitor, scene):
    page = look(visitor, scene, "/quota", "quota")
    page.get_by_test_id("quota-slider").fill("25")
    preview = page.get_by_test_id("quota-preview")
    expect(preview).to_contain_text(
        f"Online would get {scene.gpus // 4:,} GPUs instead of {scene.gpus // 2:,}"
    )
    expect(page.get_by_test_id("quota-apply")).to_be_enabled()


def test_nodes_can_be_found_and_opened(visitor, scene):
    page = look(visitor, scene, "/nodes", "nodes")
    rows = page.get_by_test_id("node-table").locator("tbody tr")
    expect(rows).to_have_count(min(scene.nodes, 300))
    name = scene.world.task(scene.running)["node"]
    page.get_by_role("searchbox", name="Node, model or label").fill(name)
    page.get_by_test_id(f"node-{name}").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_test_id("node-gpus").locator("tbody tr")).to_have_count(8)
    expect(page.get_by_test_id("node-gpus")).to_contain_text(scene.running)
    expect(page.get_by_test_id("health-history")).to_contain_text("agent registered")


def test_alerts_show_what_fires(visitor, scene):
    page = look(visitor, scene, "/alerts", "alerts")
    expect(page.get_by_test_id("alert-list")).to_contain_text("failure rate")


def test_the_api_is_described_in_the_look_of_the_pages(visitor, scene):
    page = look(visitor, scene, "/docs", "docs")
    expect(page.get_by_text("/api/v1/board/stream").first).to_be_attached()
    expect(page.get_by_test_id("nav-docs")).to_have_attribute("aria-current", "page")
    page.get_by_placeholder("Call or field").fill("drain")
    expect(page.get_by_text("/api/v1/board/stream")).to_have_count(0)
    expect(page.get_by_role("heading", name="POST /api/v1/nodes/{node_id}/drain")).to_be_visible()


def test_the_audit_log_shows_changes_and_refusals(visitor, scene):
    with contextlib.suppress(urllib.error.HTTPError):  # refused, and so in the log
        scene.world.ask("POST", "/api/v1/nodes/%3Cb%3Ebold/drain", {})
    page = look(visitor, scene, "/audit?action=task", "audit")
    table = page.get_by_test_id("audit-table")
    expect(table).to_contain_text("task.submit")
    page.get_by_test_id("audit-action").fill("cluster")
    expect(table).to_contain_text("<b>bold")  # a name from outside is text, never markup
    expect(table).not_to_contain_text("task.submit")
    page.get_by_test_id("audit-result").get_by_role("button", name="refused").click()
    expect(table).to_contain_text("unknown_node")
    assert page.url.endswith("action=cluster&result=refused")
    page.get_by_test_id("audit-user").fill("nobody-of-this-name")
    expect(page.get_by_test_id("empty")).to_be_visible()
