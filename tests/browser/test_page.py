"""The page around the views: keys, addresses, small screens, colours, languages, and what it costs to load."""

from __future__ import annotations

import contextlib
import re

import pytest

from .conftest import ASSETS

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
MAX_BYTES = 150_000
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def scene(chromium, scenes):
    return scenes.open(200)


def addresses(scene):
    """One of each view, with the name that its page has."""
    return {
        "cluster": "/",
        "tasks": "/tasks",
        "task": f"/tasks/{scene.running}",
        "submit": "/submit",
        "timeline": "/timeline",
        "tenants": "/tenants",
        "tenant": "/tenants/vision",
        "tokens": "/tokens",
        "secrets": "/secrets",
        "login": "/login",
        "quota": "/quota",
        "nodes": "/nodes",
        "node": f"/nodes?node={scene.world.task(scene.running)['node']}",
        "alerts": "/alerts",
        "audit": "/audit",
        "docs": "/docs",
    }


def test_the_keyboard_goes_everywhere(visitor, scene):
    page = visitor.look(scene.world)
    expect(page.get_by_test_id("view-cluster")).to_be_visible()
    for keys, view in (
        ("gt", "tasks"),
        ("gl", "timeline"),
        ("gq", "quota"),
        ("gn", "nodes"),
        ("ga", "alerts"),
        ("gc", "cluster"),
    ):
        page.keyboard.type(keys)
        expect(page.get_by_test_id(f"view-{view}")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_test_id("keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("keys")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.type("resnet")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/tasks\?q=resnet$"))
    expect(page.get_by_test_id(f"row-{scene.running}")).to_be_visible()
    expect(page.locator("[data-search]")).not_to_be_focused()  # else the next letter is one of the search
    for _ in range(5):  # the list may be drawn again between the two keys
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        with contextlib.suppress(AssertionError):
            expect(page.get_by_test_id("view-task")).to_be_visible(timeout=5_000)
            break
    expect(page.get_by_test_id("view-task")).to_contain_text("train-resnet")


def test_the_focus_follows_rows_and_navigation_and_keys_can_be_turned_off(visitor, scene):
    page = visitor.look(scene.world, "/tasks")
    links = page.get_by_test_id("task-table").locator("tbody tr td:nth-child(2) a")
    expect(links.nth(3)).to_be_visible()
    page.keyboard.type("jj")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()
    page.get_by_test_id("nav-quota").click()
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    page.get_by_role("button", name="Keyboard").click()
    page.get_by_test_id("keys-on").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    expect(page.get_by_test_id("view-quota")).to_be_visible()
    page.keyboard.type("gt?")
    page.get_by_role("button", name="Keyboard").click()
    expect(page.get_by_test_id("keys-on")).not_to_be_checked()
    expect(page.get_by_test_id("view-quota")).to_be_visible()


def test_letters_typed_into_a_field_are_letters(visitor, scene):
    page = visitor.look(scene.world, "/tasks")
    page.get_by_test_id("task-search").press_sequentially("g t ? / c")
    expect(page.get_by_test_id("task-search")).to_have_value("g t ? / c")
    expect(page.get_by_test_id("view-tasks")).to_be_visible()
    expect(page.get_by_test_id("keys")).to_have_count(0)


def test_addresses_can_be_kept_and_the_back_button_goes_back(visitor, scene):
    page = visitor.look(scene.world, "/tasks?status=failed")
    expect(page.get_by_test_id(f"row-{scene.failed}")).to_be_visible()
    page.get_by_role("link", name=scene.failed, exact=True).click()
    expect(page.get_by_test_id("view-task")).to_be_visible()
    page.get_by_test_id("nav-quota").click()
    expect(page.get_by_test_id("view-quota")).to_be_visible()
    page.go_back()
    expect(page.get_by_test_id("task-status")).to_have_attribute("data-status", "failed")
    page.go_back()
    expect(page).to_have_url(re.compile(r"/tasks\?status=failed$"))
    expect(page.get_by_test_id(f"row-{scene.running}")).to_have_count(0)
    page.go_forward()
    expect(page.get_by_test_id("view-task")).to_be_visible()
    page.reload()
    expect(page.get_by_test_id("task-status")).to_have_attribute("data-status", "failed")


def test_what_does_not_exist_is_said(visitor, scene):
    visitor.allow("404")
    page = visitor.look(scene.world, "/tasks/task-987654")
    expect(page.get_by_test_id("problem")).to_contain_text("task-987654")
    page.goto("/no-such-view")
    expect(page.get_by_test_id("empty")).to_be_visible()


def test_a_wrong_filter_in_an_address_is_told_once(visitor, scene):
    visitor.allow("400")
    page = visitor.look(scene.world, "/tasks?status=bogus")
    box = page.get_by_test_id("problem")
    expect(box).to_contain_text("status: Expected")
    assert box.inner_text().count("Expected") == 1


def test_nothing_is_wider_than_a_phone(visitor, scene):
    page = visitor.look(scene.world, viewport=PHONE, has_touch=True, is_mobile=True)
    for view, path in addresses(scene).items():
        page.goto(path)
        expect(page.get_by_test_id(f"view-{view}")).to_be_visible()
        page.wait_for_load_state("load")
        expect(page.locator(".skeleton")).to_have_count(0)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], f"{path} is {wide} px wide"
    expect(page.get_by_test_id("nav-tasks")).not_to_be_visible()
    page.get_by_test_id("menu").click()
    for place in ("cluster", "tasks", "quota", "audit", "tokens", "docs"):
        expect(page.get_by_test_id(f"nav-{place}")).to_be_in_viewport()
    page.get_by_test_id("nav-tasks").click()
    expect(page.get_by_test_id("view-tasks")).to_be_visible()
    expect(page.get_by_test_id("nav-quota")).not_to_be_visible()


def test_dark_follows_the_system_and_the_button(visitor, scene):
    light = "getComputedStyle(document.body).backgroundColor"
    page = visitor.look(scene.world, color_scheme="dark")
    expect(page.get_by_test_id("view-cluster")).to_be_visible()
    dark = page.evaluate(light)
    assert brightness(dark) < 60, dark
    page.get_by_test_id("theme").click()  # system, then light
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert brightness(page.evaluate(light)) > 200
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_test_id("theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(light) == dark


def brightness(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


def test_chinese_follows_the_browser_and_the_button(visitor, scene):
    page = visitor.look(scene.world, f"/tasks/{scene.waiting}", locale="zh-CN")
    expect(page.get_by_test_id("blockers")).to_contain_text("租户 vision 占用 1 个 GPU")
    page.goto(f"/tasks/{scene.failed}")
    expect(page.get_by_test_id("task-error")).to_contain_text("以退出码 3 结束")
    expect(page.locator("html")).to_have_attribute("lang", re.compile("^zh"))
    expect(page.get_by_test_id("nav-tasks")).to_contain_text("任务")
    page.get_by_test_id("language").click()
    expect(page.get_by_test_id("nav-tasks")).to_contain_text("Tasks")
    page.reload()
    expect(page.get_by_test_id("nav-tasks")).to_contain_text("Tasks")


def test_the_bundle_is_small():
    packed = sum(path.stat().st_size for path in ASSETS.rglob("*.gz"))
    print(f"bundle: {packed / 1_000:.0f} kB gzipped")
    assert 0 < packed <= MAX_BYTES


def test_first_paint_is_measured(visitor, scene):
    """Printed, not asserted: what else the machine does is not the page's fault."""
    page = visitor.look(scene.world)
    expect(page.get_by_test_id("heatmap").locator("canvas")).to_be_visible()
    painted = page.evaluate(
        """() => new Promise((done) => new PerformanceObserver((list) => done(list.getEntries()[0].startTime))
            .observe({ type: "paint", buffered: true }))"""
    )
    print(f"first paint after {painted:.0f} ms, {scene.gpus} GPUs")
    assert painted > 0
