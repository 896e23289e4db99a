"""The live terminal view on real services: its keys are pressed, its screen is read."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import signal
import struct
import subprocess
import termios
import time

import pytest

from dgpu.cli import top as verb
from dgpu.cli.flags import Flags
from dgpu.cli.live.feed import Feed, take_picture
from dgpu.cli.live.screen import Top
from dgpu.client.asynchronous import AsyncClient

from .conftest import PATIENCE_SECONDS, Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_nodes():
    place = Site()
    place.up("--fake", "2xV100", "--nodes", "2")
    yield place
    place.close()


class Screen:
    def __init__(self, app, pilot):
        self.app = app
        self.press = pilot.press
        self.resize = pilot.resize_terminal

    @property
    def text(self):
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips)

    async def shows(self, *words):
        return await self.until(lambda: all(word in self.text for word in words), " and ".join(words))

    async def no_longer_shows(self, word):
        return await self.until(lambda: word not in self.text, f"no {word}")

    async def until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                return Missed(what, self.text)
            await asyncio.sleep(0.05)
        return True


class Missed:
    """The expected text that did not appear: false as a condition, and readable in the report of an assertion."""

    def __init__(self, what, text):
        self.words = f"waited in vain for {what} on\n{text}"

    def __bool__(self):
        return False

    def __repr__(self):
        return self.words


@contextlib.asynccontextmanager
async def top(site, size=(80, 24), elsewhere=lambda: None):
    feed = Feed(AsyncClient(site.record["url"], retries=0, timeout_seconds=10), elsewhere)
    app = Top(feed, await take_picture(feed.client))
    try:
        async with app.run_test(size=size) as pilot:
            yield Screen(app, pilot)
    finally:
        await feed.client.close()


def names_of_nodes(site):
    return sorted(site.good("nodes", "-o", "name").out.split())


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_nodes_gpus_and_tasks_are_a_key_away(two_nodes, size):
    held = two_nodes.submit("-G", "2", "-J", "holder", "--", "sleep", "600")
    two_nodes.started(held)
    first, second = names_of_nodes(two_nodes)
    async with top(two_nodes, size) as screen:
        assert await screen.shows(first, second, "2 nodes", "4 GPUs", "1 running")
        await screen.press("2")
        assert await screen.shows("UTIL", "V100", held)
        assert await screen.until(lambda: "█" in screen.text.split("UTIL")[1], "a bar of load")
        await screen.press("tab")
        assert await screen.shows("holder", "running", "$ sleep 600")
        await screen.press("tab")
        assert await screen.shows("MODELS")
    two_nodes.good("cancel", held)
    two_nodes.dgpu("wait", held)


async def test_a_filter_leaves_only_what_holds_its_words(two_nodes):
    first, second = names_of_nodes(two_nodes)
    async with top(two_nodes) as screen:
        await screen.press("2", "slash", *second)
        assert await screen.shows("2 of 4")
        assert await screen.until(lambda: first not in screen.text, "the other node's cards to go")
        await screen.press("enter", "escape")
        assert await screen.shows(first)
        await screen.press("slash", *"nosuch", "enter")
        assert await screen.shows("No row contains “nosuch”")


async def test_enter_goes_from_a_node_to_its_gpus_and_on_to_their_tasks(two_nodes):
    task = two_nodes.submit("-J", "deep", "--", "sleep", "600")
    two_nodes.started(task)
    node = two_nodes.task(task)["node"]
    async with top(two_nodes) as screen:
        await screen.press("1", "slash", *node, "enter")
        assert await screen.shows("1 of 2")
        await screen.press("enter")
        assert await screen.shows("UTIL", "2 of 4", task)
        await screen.press("s", "s", "s")  # by status: busy first
        await screen.press("home", "enter")
        assert await screen.shows("WHERE OR WHY", "deep")
    two_nodes.good("cancel", task)
    two_nodes.dgpu("wait", task)


async def test_letters_typed_into_the_filter_are_no_orders(two_nodes):
    """Over a slow line many keys arrive in one piece."""
    async with top(two_nodes) as screen:
        await screen.press("1", "slash", *"drkq")
        assert await screen.shows("0 of 2")
        assert len(screen.app.screen_stack) == 1
        assert {node["status"] for node in two_nodes.json("nodes")["nodes"]} == {"ready"}


async def test_a_waiting_task_says_why_and_is_cancelled_after_a_question(two_nodes):
    holder = two_nodes.submit("--nodes", "2", "-G", "2", "-J", "holder", "--", "sleep", "600")
    two_nodes.started(holder)
    waiting = two_nodes.submit("-G", "1", "-J", "patient", "--", "true")
    async with top(two_nodes, (140, 40)) as screen:
        await screen.press("3", "slash", *"patient", "enter")
        assert await screen.shows("It waits because", "4 busy", "next in line")
        await screen.press("k")
        assert await screen.shows(f"Cancel {waiting} (patient)?")
        before = screen.app._picture
        assert await screen.until(lambda: screen.app._picture is not before, "a picture behind the question")
        await screen.press("n")
        assert two_nodes.task(waiting)["status"] == "pending"
        await screen.press("k")
        assert await screen.shows(f"Cancel {waiting}")
        await screen.press("y")
        assert await screen.shows("0 of 1", "1 running, 0 waiting")
    assert two_nodes.task(waiting)["status"] == "cancelled"
    assert two_nodes.task(holder)["status"] == "running"
    two_nodes.good("cancel", holder)
    two_nodes.dgpu("wait", holder)


async def test_a_node_is_drained_and_put_back_to_work_after_a_question(two_nodes):
    async with top(two_nodes) as screen:
        await screen.press("1", "d")
        assert await screen.shows("Drain ")
        await screen.press("y")
        assert await screen.shows("draining", "takes no new tasks")
        drained = [node for node in two_nodes.json("nodes")["nodes"] if node["draining"]]
        assert len(drained) == 1
        await screen.press("r")
        assert await screen.shows(f"Resume {drained[0]['id']}?")
        await screen.press("y")
        assert await screen.until(lambda: "takes no new tasks" not in screen.text, "the node to be back")
    assert not any(node["draining"] for node in two_nodes.json("nodes")["nodes"])


async def test_a_paused_picture_stands_still(two_nodes):
    async with top(two_nodes) as screen:
        await screen.press("3", "p")
        assert await screen.shows("PAUSED")
        task = two_nodes.submit("-J", "unseen", "--", "sleep", "600")
        two_nodes.started(task)
        assert "unseen" not in screen.text
        await screen.press("p")
        assert await screen.shows("unseen")
    two_nodes.good("cancel", task)
    two_nodes.dgpu("wait", task)


async def test_sorting_and_help(two_nodes):
    first, second = names_of_nodes(two_nodes)
    async with top(two_nodes) as screen:
        await screen.press("1", "S")
        assert await screen.until(
            lambda: screen.text.rindex(first) > screen.text.index(second), "the last node first"
        )
        await screen.press("S")
        assert await screen.until(
            lambda: screen.text.index(first) < screen.text.index(second), "the first node first"
        )
        await screen.press("question_mark")
        assert await screen.shows("drain the node", "sort by the next column")
        await screen.press("escape")
        assert await screen.no_longer_shows("sort by the next column")


async def test_a_lost_scheduler_is_said_and_found_again_at_another_port(site, monkeypatch):
    monkeypatch.setenv("DGPU_DATA_DIR", str(site.data_dir))
    monkeypatch.delenv("DGPU_SERVER", raising=False)
    site.up()
    url = site.record["url"]
    async with top(site, elsewhere=lambda: verb._elsewhere(Flags(), url)) as screen:
        assert await screen.shows("V100")
        site.interrupt()
        assert await screen.shows("No scheduler answers at", "the data shown are older")
        assert "V100" in screen.text
        site.up()  # at a free port, as good as never the same
        assert await screen.no_longer_shows("No scheduler answers at")
        task = site.submit("-J", "afterwards", "--", "sleep", "600")
        site.started(task)
        await screen.press("3")
        assert await screen.shows("afterwards")


def test_one_picture_through_a_pipe(two_nodes):
    task = two_nodes.submit("-J", "piped", "--", "sleep", "600")
    two_nodes.started(task)
    first, second = names_of_nodes(two_nodes)
    answer = two_nodes.good("top", "--once")
    assert "\x1b" not in answer.out
    for word in ("2 nodes", "4 GPUs", first, second, "V100", task, "piped"):
        assert word in answer.out
    narrow = two_nodes.good("top", "--once", env={"COLUMNS": "80", "FORCE_COLOR": "1"}).out
    assert "\x1b" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    assert task in narrow
    told = json.loads(two_nodes.good("top", "--once", "--format", "json").out)
    assert (len(told["nodes"]), told["gpus"]["total"], told["running"]) == (2, 4, 1)
    assert told["tasks"][0]["task_id"] == task
    two_nodes.good("cancel", task)
    two_nodes.dgpu("wait", task)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["top"], 2, "dgpu top --once"),
        (["top", "--once", "--format", "xml"], 2, "'xml' is not one of table, json, yaml"),
        (["top", "--once", "-o", "name"], 2, "'name'"),
        (["top", "--once", "--server", "ftp://x"], 2, "ftp://x"),
        (["top", "--once", "--server", "http://127.0.0.1:9"], 3, "No scheduler answers"),
    ],
)
def test_what_cannot_be_shown_has_a_code_and_a_message(two_nodes, arguments, code, words):
    answer = two_nodes.dgpu(*arguments)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_q_ends_it_on_a_real_terminal_even_when_the_scheduler_hangs(site):
    """A stopped scheduler accepts and never answers; the terminal must be given back all the same."""
    site.up()
    with _on_a_terminal(site) as (process, keyboard):
        stopped = _processes_below(site.supervisor.pid)
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        try:
            os.write(keyboard, b"q")
            with contextlib.suppress(OSError):
                while os.read(keyboard, 65_536):
                    pass
            assert process.wait(timeout=PATIENCE_SECONDS) == 0
        finally:
            for each in stopped:
                os.kill(each, signal.SIGCONT)


def test_it_ends_with_its_terminal(two_nodes):
    with _on_a_terminal(two_nodes) as (process, keyboard):
        os.close(keyboard)
        assert process.wait(timeout=PATIENCE_SECONDS) == 128 + signal.SIGHUP


@contextlib.contextmanager
def _on_a_terminal(site):
    """The process and the test's end of its terminal, once the screen shows something."""
    keyboard, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        site.command("top"),
        env={**site.env, "TERM": "xterm-256color"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        try:
            seen = b""
            while b"V100" not in seen:
                seen += os.read(keyboard, 65_536)
            yield process, keyboard
        finally:
            process.kill()
            with contextlib.suppress(OSError):
                os.close(keyboard)


def _processes_below(pid):
    found = [pid]
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if int((path / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found += _processes_below(int(path.name))
    return found
