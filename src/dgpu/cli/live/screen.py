"""The screen of `dgpu top`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, ClassVar

import msgspec
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.css.query import NoMatches
from textual.widgets import Footer, Input, Static

from dgpu.cli.live import words
from dgpu.cli.live.dialogs import Keys, Question
from dgpu.cli.live.feed import Feed, Lost, Picture
from dgpu.cli.live.rows import GPUS, NODES, TASKS, WIDE, chosen
from dgpu.cli.live.table import LiveTable
from dgpu.cli.live.task_rows import TaskRow
from dgpu.client.errors import DgpuError, NotFound
from dgpu.wire.cluster_answers import GpuAnswer, NodeAnswer

_PANES = ("nodes", "gpus", "tasks")
_PANE_ACTIONS = frozenset({"filter", "keep_filter", "no_filter", "next"})
_SETTLE_SECONDS = 0.15  # a held arrow key loads details only of the last row
_ASK_AGAIN_SECONDS = 5.0


class Top(App[int]):
    CSS = """
    #head { height: 2; padding: 0 1; background: $surface; }
    #banner {
        height: auto; max-height: 3; padding: 0 1; background: $error; color: $text; text-style: bold; display: none;
    }
    #tabs { height: 1; padding: 0 1; background: $panel; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #body { layout: vertical; height: 1fr; }
    #details { height: 8; border-top: solid $primary; padding: 0 1; }
    #body.wide { layout: horizontal; }
    #body.wide #details { width: 44; height: 1fr; border-top: none; border-left: solid $primary; }
    LiveTable { display: none; }
    LiveTable.shown { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("1", "show('nodes')", "Nodes", show=False),
        Binding("2", "show('gpus')", "GPUs", show=False),
        Binding("3", "show('tasks')", "Tasks", show=False),
        Binding("tab", "next(1)", "Pane", priority=True),
        Binding("shift+tab", "next(-1)", show=False, priority=True),
        # Handled before later keys: over a slow line many keys arrive together.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("enter", "keep_filter", show=False, priority=True),
        Binding("escape", "no_filter", show=False, priority=True),
        Binding("s", "sort", "Sort"),
        Binding("S", "turn", show=False),
        Binding("enter", "open", show=False),
        Binding("k", "cancel", "Cancel task"),
        Binding("d", "drain", "Drain"),
        Binding("r", "resume", "Resume"),
        Binding("i", "details", show=False),
        Binding("left_square_bracket", "scroll_details(-3)", show=False),
        Binding("right_square_bracket", "scroll_details(3)", show=False),
        Binding("p", "pause", "Pause"),
        Binding("question_mark", "keys", "Help", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit"),
    ]

    def __init__(self, feed: Feed, first: Picture) -> None:
        super().__init__()
        self._feed = feed
        self._picture = first
        self._lost: Lost | None = None
        self._is_paused = False
        self._pane = "nodes"
        self._words = dict.fromkeys(_PANES, "")
        self._ask: asyncio.Event = asyncio.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="banner", markup=False)
        yield Static(id="tabs", markup=False)
        yield Input(
            id="filter", placeholder="filter: rows that contain all words; Enter keeps it, Esc removes it"
        )
        with Container(id="body"):
            yield LiveTable(NODES, id="nodes")
            yield LiveTable(GPUS, id="gpus")
            yield LiveTable(TASKS, id="tasks")
            with VerticalScroll(id="details", can_focus=False):
                yield Static(id="about", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.theme = "textual-dark"
        self.action_show("nodes" if len(self._picture.nodes) > 1 else "gpus")
        self.run_worker(self._until_taken_down(self._follow()), name="follow")
        self.run_worker(self._until_taken_down(self._explain()), name="explain")

    def on_resize(self, event: events.Resize) -> None:
        self.query_one("#body").set_class(event.size.width >= WIDE, "wide")
        for table in self.query(LiveTable):
            table.forget_widths()

    async def _until_taken_down(self, work: Coroutine[Any, Any, None]) -> None:
        """False at the end, when the widgets are gone and a picture cannot be drawn."""
        with contextlib.suppress(NoMatches):
            await work

    # pictures

    async def _follow(self) -> None:
        pause = self._picture.pause_seconds
        while True:
            await self._feed.pause(pause)
            if self._is_paused:
                await self._feed.rest()
                pause = 1.0
                continue
            seen = await self._feed.next()
            pause = seen.pause_seconds
            if isinstance(seen, Lost):
                self._lost = seen
            else:
                self._lost, self._picture = None, seen
            self._draw()

    def _draw(self) -> None:
        picture, table = self._picture, self._table()
        self.query_one("#head", Static).update("\n".join(words.summary(picture)))
        line = self.query_one("#banner", Static)
        line.display = self._lost is not None
        if self._lost is not None:
            line.update(words.banner(self._lost))
        rows = {"nodes": picture.nodes, "gpus": picture.gpus.gpus, "tasks": picture.tasks}[self._pane]
        wanted = self._words[self._pane]
        found = chosen(rows, table.sheet, wanted, table.sorted_by, reverse=table.is_reversed)
        table.show_rows(found, f"No row contains “{wanted}”. Esc shows all." if wanted else "")
        self.query_one("#tabs", Static).update(self._tabs(len(found), len(rows)))
        self._tell_details()

    def _tabs(self, found: int, of: int) -> str:
        names = {"nodes": "1 Nodes", "gpus": "2 GPUs", "tasks": "3 Tasks"}
        parts = [f"[{name}]" if pane == self._pane else f" {name} " for pane, name in names.items()]
        text = " ".join(parts)
        if wanted := self._words[self._pane]:
            text += f"   “{wanted}”: {found:,} of {of:,}"
        if self._pane == "tasks" and self._picture.hidden_tasks:
            text += f"   {self._picture.hidden_tasks:,} more are not shown"
        if self._is_paused:
            text += "   PAUSED (p continues)"
        return text

    def _table(self) -> LiveTable:
        return self.query_one(f"#{self._pane}", LiveTable)

    # details

    @on(LiveTable.Selected)
    def _on_selected(self) -> None:
        self._tell_details()
        if self._pane == "tasks":
            self._ask.set()

    def _tell_details(self) -> None:
        selected = self._table().selected
        if selected is None:
            self._about([])
        elif isinstance(selected, NodeAnswer):
            self._about(words.about_node(selected))
        elif isinstance(selected, GpuAnswer):
            self._about(words.about_gpu(selected))

    def _about(self, lines: list[str]) -> None:
        self.query_one("#about", Static).update("\n".join(lines))

    async def _explain(self) -> None:
        """Why the selected task waits: loaded at selection, and from time to time while it stays selected."""
        while True:
            try:
                await asyncio.wait_for(self._ask.wait(), _ASK_AGAIN_SECONDS)
                await asyncio.sleep(_SETTLE_SECONDS)
            except TimeoutError:
                pass
            self._ask.clear()
            task = self._table().selected if self._pane == "tasks" else None
            if task is None or self._is_paused or not self.query_one("#details").display:
                continue
            lines = await self._reasons(task.task_id)
            selected = self._table().selected
            if self._pane == "tasks" and selected is not None and selected.task_id == task.task_id:
                self._about(lines)

    async def _reasons(self, task_id: str) -> list[str]:
        try:
            why = msgspec.to_builtins(await self._feed.client.why(task_id))
            task = msgspec.to_builtins(await self._feed.client.get(task_id))
        except NotFound:
            return [f"{task_id} is gone."]
        except DgpuError as error:
            return [f"{task_id}: {error}"]
        return words.about_task(why, task)

    # keys: what is shown

    def action_show(self, pane: str) -> None:
        self._pane = pane
        for table in self.query(LiveTable):
            table.set_class(table.id == pane, "shown")
        box = self.query_one("#filter", Input)
        box.display = False
        box.value = self._words[pane]
        self.screen.set_focus(self._table())
        if pane == "tasks":
            self._about([])
            self._ask.set()
        self._draw()

    def action_next(self, by: int) -> None:
        self.action_show(_PANES[(_PANES.index(self._pane) + by) % len(_PANES)])

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self._words[self._pane]
        self.screen.set_focus(box)  # now, so that the next keys are not taken as actions

    @on(Input.Changed, "#filter")
    def _on_typed(self, event: Input.Changed) -> None:
        if event.value != self._words[self._pane]:
            self._words[self._pane] = event.value[:100]
            self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in _PANE_ACTIONS and len(self.screen_stack) > 1:
            return False  # a dialog is open
        if action in {"filter", "keep_filter"}:
            is_typing = isinstance(self.focused, Input)
            return is_typing == (action == "keep_filter")
        return super().check_action(action, parameters)

    def action_keep_filter(self) -> None:
        self.screen.set_focus(self._table())
        self.query_one("#filter", Input).display = False

    def action_no_filter(self) -> None:
        self._words[self._pane] = ""
        self.action_show(self._pane)

    def action_sort(self) -> None:
        table = self._table()
        columns = [None, *table.sheet.columns]
        place = (columns.index(table.sorted_by) + 1) % len(columns)
        table.sorted_by = columns[place]
        table.is_reversed = table.sorted_by is not None and table.sorted_by.falls
        self._draw()

    def action_turn(self) -> None:
        table = self._table()
        table.sorted_by = table.sorted_by or table.sheet.columns[0]
        table.is_reversed = not table.is_reversed
        self._draw()

    @on(LiveTable.Opened)
    def action_open(self) -> None:
        selected = self._table().selected
        if isinstance(selected, NodeAnswer):
            self._words["gpus"] = selected.id
            self.action_show("gpus")
        elif isinstance(selected, GpuAnswer):
            self._words["tasks"] = " ".join(selected.tasks[:1]) or selected.node
            self.action_show("tasks")
        elif isinstance(selected, TaskRow) and selected.array_id:
            self._feed.opened ^= {selected.array_id}
            self._feed.hurry()

    def action_details(self) -> None:
        details = self.query_one("#details")
        details.display = not details.display

    def action_scroll_details(self, by: int) -> None:
        self.query_one("#details").scroll_relative(y=by, animate=False)

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        if not self._is_paused:
            self._feed.hurry()
        self._draw()

    def action_keys(self) -> None:
        self.push_screen(Keys())

    # keys: orders

    def action_cancel(self) -> None:
        selected = self._table().selected
        if self._pane != "tasks" or selected is None:
            self.notify("Select a task first: 3", severity="warning")
            return
        task_id = selected.task_id
        kind = "array " if selected.array_id else ""
        question = f"Cancel {kind}{task_id}{f' ({selected.name.strip()})' if selected.name else ''}?"
        about = words.before_cancel(selected)
        self._after_asking(
            question, about, lambda: self._feed.client.cancel(task_id), f"{task_id} is cancelled."
        )

    def action_drain(self) -> None:
        if (node := self._selected_node()) is not None:
            about = "Running tasks continue; no new tasks start there."
            self._after_asking(
                f"Drain {node}?",
                about,
                lambda: self._feed.client.drain(node, reason="dgpu top"),
                f"{node} is drained.",
            )

    def action_resume(self) -> None:
        if (node := self._selected_node()) is not None:
            self._after_asking(
                f"Resume {node}?",
                "",
                lambda: self._feed.client.resume(node),
                f"{node} takes tasks again.",
            )

    def _selected_node(self) -> str | None:
        selected = self._table().selected
        if isinstance(selected, NodeAnswer):
            return selected.id
        if isinstance(selected, GpuAnswer):
            return selected.node
        self.notify("Select a node first: 1", severity="warning")
        return None

    def _after_asking(self, question: str, about: str, order: Any, done: str) -> None:
        async def carry_out() -> None:
            try:
                await order()
            except DgpuError as error:
                self.notify(str(error), severity="error", markup=False)
            else:
                self.notify(done, markup=False)
                self._feed.hurry()
                self._ask.set()

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(carry_out(), name="order")

        self.push_screen(Question(question, about), answered)
