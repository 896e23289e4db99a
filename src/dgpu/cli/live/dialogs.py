"""Dialogs in front of the screen: the question before an action, and the list of keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (
    ("1 2 3, Tab", "nodes, GPUs, tasks"),
    ("↑ ↓ PgUp PgDn", "move; Home and End too"),
    ("Enter", "the GPUs of a node, the tasks of a GPU or of an array"),
    ("/", "filter rows by words; all must match. Esc: no filter"),
    ("s, S", "sort by the next column; reverse the order"),
    ("k", "cancel the task (asks first)"),
    ("d, r", "drain the node, resume it (asks first)"),
    ("i, [ and ]", "details on or off; scroll them"),
    ("p", "pause: no updates"),
    ("q", "quit"),
)


class Question(ModalScreen[bool]):
    """Only `y` confirms, so that other keys typed by accident do nothing."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > Vertical {
        width: auto; max-width: 76; height: auto; border: thick $warning; background: $surface; padding: 0 2;
    }
    Question Static { width: auto; max-width: 70; }
    """
    BINDINGS: ClassVar = [
        Binding("y", "answer(True)"),
        Binding("n,escape,q,enter", "answer(False)"),
    ]

    def __init__(self, question: str, about: str) -> None:
        super().__init__()
        self._question = question
        self._about = about

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, id="question", markup=False)
            if self._about:
                yield Static(self._about, markup=False)
            yield Static("\ny: yes    n: no", markup=False)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Keys(ModalScreen[None]):
    DEFAULT_CSS = """
    Keys { align: center middle; }
    Keys > Vertical { width: auto; height: auto; border: thick $primary; background: $surface; padding: 0 2; }
    Keys Static { width: auto; }
    """
    BINDINGS: ClassVar = [Binding("escape,q,question_mark,enter", "close")]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("\n".join(f"{key:<15} {about}" for key, about in KEYS), id="keys", markup=False)

    def action_close(self) -> None:
        self.dismiss()
