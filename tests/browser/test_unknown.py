"""What a page does with answers of a scheduler that is newer than it."""

from __future__ import annotations

import json

import pytest

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]


def changed(change):
    """A handler that lets the server answer, and changes the answer."""

    def handle(route):
        answer = route.fetch()
        body = answer.json()
        change(body)
        route.fulfill(response=answer, json=body)

    return handle


def stream_of(*boards):
    events = "".join(f"event: snapshot\ndata: {json.dumps(board)}\n\n" for board in boards)
    return lambda route: route.fulfill(status=200, content_type="text/event-stream", body=events)


def test_words_that_the_page_does_not_know_are_shown_as_they_are(visitor, stage):
    stage.submit("true", name="odd")
    page = visitor.look(stage, "/submit")

    def odd(body):
        for task in body["tasks"]:
            task |= {"status": "hibernating", "pool": "night_shift", "reason": "full_moon"}

    page.route("**/api/v1/tasks?*", changed(odd))
    page.get_by_test_id("nav-tasks").click()
    view = page.get_by_test_id("view-tasks")
    expect(view).to_contain_text("hibernating")
    expect(view).to_contain_text("night shift")
    expect(page.get_by_test_id("broken")).to_have_count(0)


def test_a_board_of_unknown_words_blanks_nothing(visitor, stage):
    board = stage.ask("GET", "/api/v1/board")
    board["statuses"] = [f"new_{status}" for status in board["statuses"]]
    board["node_statuses"] = [f"new_{status}" for status in board["node_statuses"]]
    board["healths"] = [f"new_{health}" for health in board["healths"]]
    board["quota"] |= {"mode": "auction", "reclaim": "never_again"}
    page = visitor.look(stage, "/submit")
    page.route("**/api/v1/board/stream", stream_of(board))
    for view in ("cluster", "quota", "nodes"):
        page.goto("/" if view == "cluster" else f"/{view}")
        expect(page.get_by_test_id(f"view-{view}")).to_be_visible()
        expect(page.get_by_test_id("broken")).to_have_count(0)


def test_a_view_that_breaks_says_so_and_the_rest_of_the_page_works(visitor, stage, tmp_path):
    visitor.allow("TypeError")
    page = visitor.look(stage, "/submit")
    page.route("**/api/v1/alerts?*", lambda route: route.fulfill(json={"alerts": [None], "counts": None}))
    page.get_by_test_id("nav-alerts").click()
    broken = page.get_by_test_id("broken")
    expect(broken).to_contain_text("This view cannot be shown")
    expect(broken.get_by_role("button", name="Reload the page")).to_be_visible()
    page.screenshot(path=tmp_path / "broken.png")
    page.get_by_test_id("nav-tasks").click()
    expect(page.get_by_test_id("view-tasks")).to_be_visible()
    expect(page.get_by_test_id("broken")).to_have_count(0)


@pytest.mark.parametrize("other", [{"version": "99.0.0"}, {"build": "another"}])
def test_a_page_left_open_over_an_upgrade_asks_to_be_reloaded(visitor, stage, tmp_path, other):
    board = stage.ask("GET", "/api/v1/board")
    page = visitor.look(stage, "/submit")
    upgraded = stream_of(board, board | other)
    loads = []
    page.on("request", lambda request: loads.append(request) if request.is_navigation_request() else None)
    # This stream ends, and the page connects again: until it is reloaded, it must meet the same versions.
    page.route(
        "**/api/v1/board/stream", lambda route: upgraded(route) if len(loads) < 2 else route.continue_()
    )
    page.goto("/")
    updated = page.get_by_test_id("updated")
    expect(updated).to_contain_text("dgpu was updated")
    page.screenshot(path=tmp_path / "updated.png")
    updated.get_by_role("button", name="Reload the page").click()
    expect(page.get_by_test_id("link-state")).to_have_attribute("data-state", "live")
    expect(page.get_by_test_id("updated")).to_have_count(0)


def test_a_card_without_sensors_shows_dashes(visitor, stage, tmp_path):
    board = stage.ask("GET", "/api/v1/board")
    for column in ("util", "mem_used", "temp", "power"):
        board["gpus"][column] = [None] * len(board["gpus"]["id"])
    page = visitor.look(stage, "/submit")
    page.route("**/api/v1/board/stream", stream_of(board))
    page.goto("/")
    page.get_by_test_id("heatmap").locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    page.screenshot(path=tmp_path / "dashes.png")
    expect(page.get_by_test_id("gpu-panel")).to_contain_text("\N{EN DASH} % · \N{EN DASH} °C · \N{EN DASH} W")


def test_a_busy_gpu_without_readings_does_not_look_idle(visitor, stage):
    """Its use is unknown: the map, its legend and the table say so."""
    board = stage.ask("GET", "/api/v1/board")
    gpus, count = board["gpus"], len(board["gpus"]["id"])
    gpus["status"] = [board["statuses"].index("busy")] * count
    gpus["util"] = [50] * count
    page = visitor.look(stage, "/submit")
    page.route("**/api/v1/board/stream", stream_of(board))
    page.goto("/")
    legend = page.locator(".legend")
    expect(legend).to_contain_text("idle")
    expect(legend).not_to_contain_text("no telemetry")
    gpus["util"] = [None, *[50] * (count - 1)]
    page.unroute("**/api/v1/board/stream")
    page.route("**/api/v1/board/stream", stream_of(board))
    page.reload()
    expect(legend).to_contain_text("busy, no telemetry")
    page.goto("/?as=table")
    expect(page.get_by_text("no telemetry")).to_have_count(1)
