"""The parts of the live view that need no screen: the board's rows, bars, filters, how often it asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from dgpu.cli.live.board import Board
from dgpu.cli.live.feed import LONGEST_PAUSE_SECONDS, Feed, Lost, _pause
from dgpu.cli.live.rows import GPUS, NODES, bar, chosen
from dgpu.cli.live.table import _aligned
from dgpu.client.errors import Unreachable

from .conftest import task


def snapshot(nodes=2, gpus=2):
    cards = nodes * gpus
    return {
        "seq": 7,
        "statuses": ["idle", "busy", "offline", "error", "draining", "reserved"],
        "node_statuses": ["ready", "draining", "offline"],
        "healths": ["trusted", "quarantined", "probing", "parole", "out"],
        "models": ["V100"],
        "nodes": {
            "id": [f"n{number}" for number in range(nodes)],
            "status": [0] * nodes,
            "first": [number * gpus for number in range(nodes)],
            "gpus": [gpus] * nodes,
            "labels": [{}] * nodes,
            "reason": [""] * nodes,
            "since_ms": [0] * nodes,
        },
        "gpus": {
            "id": [f"GPU-{number}" for number in range(cards)],
            "node": [number // gpus for number in range(cards)],
            "index": [number % gpus for number in range(cards)],
            "model": [0] * cards,
            "mem_total": [32_768] * cards,
            "status": [0] * cards,
            "health": [0] * cards,
            "util": [None] * cards,
            "mem_used": [None] * cards,
            "mem_foreign": [0] * cards,
            "mem_reserved": [0] * cards,
            "temp": [None] * cards,
            "power": [None] * cards,
            "tasks": [[] for _ in range(cards)],
            "task_count": [0] * cards,
            "fault": [""] * cards,
            "warm": [[] for _ in range(cards)],
        },
        "pools": {
            "online": {"quota": 3, "used": 0.0, "available": 3.0},
            "batch": {"quota": 1, "used": 0.0, "available": 1.0},
        },
        "quota": {"total_gpus": cards, "online_percent": 0.7, "mode": "strict", "reclaim": "wait"},
        "counts": {"waiting": 0, "running": 0, "idle": cards, "busy": 0},
    }


def test_a_delta_changes_what_it_names_and_nothing_else():
    board = Board(snapshot())
    before = list(board.gpus)
    delta = {
        "seq": 8,
        "gpus": {
            "util": {"i": [2], "v": [71]},
            "status": {"i": [2], "v": [1]},
            "tasks": {"i": [2], "v": [[42]]},
            "a_column_of_a_newer_server": {"i": [0], "v": [1]},
        },
        "nodes": {"reason": {"i": [0], "v": ["new fan"]}, "status": {"i": [0], "v": [1]}},
        "counts": {"running": 1, "busy": 1, "idle": 3},
    }
    assert board.apply(delta)
    assert [now is then for now, then in zip(board.gpus, before, strict=True)] == [True, True, False, True]
    card = board.gpus[2]
    assert (card.node, card.status, card.utilization_percent, card.tasks) == ("n1", "busy", 71, ["task-42"])
    first, second = board.nodes
    assert (first.status, first.drain_reason, first.draining) == ("draining", "new fan", True)
    assert (second.gpus_free, second.tasks) == (1, ["task-42"])
    assert (board.running, board.gpu_list().busy, board.quota().online.quota) == (1, 1, 3)


def test_a_missing_beat_is_noticed():
    assert not Board(snapshot()).apply({"seq": 9})


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(None, "    "), (0, "    "), (0.5, "██  "), (1, "████"), (7, "████"), (-1, "    "), (0.53, "██▏ ")],
)
def test_a_bar_stays_in_its_place(share, drawn):
    assert bar(share, 4) == drawn


def test_every_word_of_a_filter_must_be_in_a_row_and_the_busiest_come_first():
    board = Board(snapshot())
    board.apply(
        {"seq": 8, "gpus": {"util": {"i": [1, 3], "v": [20, 90]}, "status": {"i": [1, 3], "v": [1, 1]}}}
    )
    load = next(column for column in GPUS.columns if column.title == "UTIL")
    found = chosen(board.gpus, GPUS, "V100 BUSY", load, reverse=load.falls)
    assert [gpu.id for gpu in found] == ["GPU-3", "GPU-1"]
    assert chosen(board.nodes, NODES, "n1", None, reverse=False) == [board.nodes[1]]


def test_every_column_has_a_text_and_a_rank_for_a_card_nobody_measured():
    board = Board(snapshot())
    for sheet, rows in ((GPUS, board.gpus), (NODES, board.nodes)):
        for column in sheet.columns:
            assert isinstance(column.text(rows[0]), str)
            assert sorted(rows, key=column.rank)


def test_a_cell_is_as_wide_as_its_column_whatever_is_in_it():
    assert _aligned("abcdef", 4, right=False) == "abc…"
    assert _aligned("ab", 4, right=True) == "  ab"
    assert _aligned("任务", 5, right=False) == "任务 "


def test_a_costly_picture_is_asked_for_less_often():
    """16,000 GPUs by polling: at most one part in twenty of the scheduler's time."""
    assert _pause(0.01) == 1.0
    assert _pause(0.2) == 4.0
    assert _pause(60) == LONGEST_PAUSE_SECONDS


class Gone:
    """A client of a scheduler that is away."""

    url = "http://127.0.0.1:9"

    async def board_events(self):
        raise Unreachable("No scheduler answers.")
        yield  # makes it a stream


async def test_a_lost_scheduler_is_asked_less_and_less_often_within_a_bound():
    feed = Feed(Gone(), lambda: None)
    seen = [await feed.next() for _ in range(8)]
    assert all(isinstance(each, Lost) for each in seen)
    assert [each.pause_seconds for each in seen] == [1, 2, 3, 4, 5, 5, 5, 5]
    assert len({each.since for each in seen}) == 1


async def test_an_order_ends_a_pause():
    feed = Feed(Gone(), lambda: None)
    resting = asyncio.create_task(feed.pause(3_600))
    await asyncio.sleep(0)
    feed.hurry()
    await asyncio.wait_for(resting, 30)
    assert resting.done()


def test_an_older_scheduler_without_a_board_is_polled(dgpu, server):
    from dgpu.client.asynchronous import AsyncClient

    server.answers["GET", "/api/v1/nodes"] = (200, {"total": 0, "nodes": []})
    empty = {"total": 0, "idle": 0, "busy": 0, "offline": 0, "error": 0, "gpus": []}
    server.answers["GET", "/api/v1/gpus"] = (200, empty)
    pool = {"quota": 0, "used": 0, "available": 0}
    quota = {"total_gpus": 0, "online_percent": 0.7, "mode": "strict", "reclaim": "wait"}
    server.answers["GET", "/api/v1/quota"] = (200, {**quota, "online": pool, "batch": pool})
    server.answers["GET", "/api/v1/tasks"] = (200, {"tasks": [task(1, "running")], "total": 1})
    server.answers["GET", "/api/v1/queue"] = (200, {"queue": [], "total": 0})

    async def look():
        async with AsyncClient(server.url, retries=0) as client:
            feed = Feed(client, lambda: None)
            return feed, await feed.next()

    feed, picture = asyncio.run(look())
    assert not feed.is_streaming
    assert [row.task_id for row in picture.tasks] == ["task-1"]
    assert picture.pause_seconds >= 1


def test_other_verbs_do_not_load_textual(server):
    server.answers["GET", "/api/v1/tasks"] = (200, {"tasks": [task(1)], "total": 1})
    program = (
        "import sys; from dgpu.cli.main import run; run(sys.argv[1:]);"
        "print([name for name in ('textual', 'httpx') if name in sys.modules], file=sys.stderr)"
    )
    for arguments in (["ps", "--server", server.url], ["top", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr.strip().splitlines()[-1] == "[]", arguments
