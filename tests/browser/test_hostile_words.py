"""Signs of a hostile task in the dashboard: shown as text, never as part of a page."""

from __future__ import annotations

import pytest

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

TAG = "<img src=x onerror=alert(1)>"
SIGNS = "\x1b]0;owned\x07\x1b[2J\u202e"
RED = "\x1b[31mred\x1b[0m"


def test_tags_and_control_signs_of_a_task_are_text_in_every_view(visitor, stage):
    written = stage.submit(
        f"printf '%s' '{TAG}{SIGNS}{RED}' > '{TAG}'; cat '{TAG}'; exit 3", name=TAG, max_retries=0
    )
    failed = stage.ask(
        "POST", "/api/v1/tasks", {"command": ["/no" + TAG + SIGNS], "name": TAG, "max_retries": 0}
    )
    running = stage.submit(name=TAG, gpu_count=1)
    stage.until(written, "failed")
    stage.until(failed["task_id"], "failed")
    stage.until(running, "running")
    page = visitor.look(stage, "/tasks")
    opened = []
    page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
    expect(page.get_by_test_id("view-tasks")).to_contain_text(TAG)
    places = [
        "/tasks",
        f"/tasks/{written}",
        f"/tasks/{failed['task_id']}",
        f"/tasks/{running}",
        "/",
        "/?as=table",
    ]
    places += ["/timeline", "/timeline?as=table", "/queue", "/audit", f"/tasks?find={TAG}"]
    for place in places:
        page.goto(place)
        expect(page.locator("main")).not_to_be_empty()
        expect(page.get_by_test_id("broken")).to_have_count(0)
        assert page.locator("img[src='x']").count() == 0, place
        assert page.evaluate("document.title").isprintable(), place
    assert not opened
    page.goto(f"/tasks/{written}")
    log = page.get_by_test_id("log-text")
    expect(log).to_contain_text(TAG)
    assert "\x1b" not in log.inner_text()
    expect(log.locator(".t-fg-1")).to_have_text("red")
    page.goto(f"/tasks/{failed['task_id']}")
    expect(page.locator("main")).to_contain_text("command not found")
