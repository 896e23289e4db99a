"""A table that renders only visible lines: 16,000 rows cost no more than twenty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dgpu.cli.live.rows import LiveColumn, Sheet, cell

_GAP = 2
_LEAST_STRETCH = 6
_WIDEST = 60


class LiveTable(ScrollView, can_focus=True):
    """The rows of one pane. The cursor stays on its row when an update moves the row."""

    COMPONENT_CLASSES: ClassVar = {"live--header", "live--cursor", "live--empty"}
    DEFAULT_CSS = """
    LiveTable { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    LiveTable > .live--header { text-style: bold; color: $text-muted; background: $surface; }
    LiveTable > .live--cursor { background: $primary 40%; }
    LiveTable:focus > .live--cursor { background: $primary; color: $text; }
    LiveTable > .live--empty { color: $text-muted; }
    """
    BINDINGS: ClassVar = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home", "move_to(0)", show=False),
        Binding("end", "move_to(-1)", show=False),
    ]

    class Selected(Message):
        """The cursor is on another row."""

    class Opened(Message):
        """Enter, or a second click."""

    def __init__(self, sheet: Sheet[Any], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.sheet = sheet
        self.rows: Sequence[Any] = ()
        self.cursor = 0
        self.sorted_by: LiveColumn[Any] | None = None
        self.is_reversed = False
        self._widths: dict[str, int] = {}
        self._empty = sheet.empty

    # what others ask and order

    @property
    def selected(self) -> Any | None:
        return self.rows[self.cursor] if self.rows else None

    def show_rows(self, rows: Sequence[Any], empty: str = "") -> None:
        before = self.selected
        key = None if before is None else self.sheet.key(before)
        self.rows = rows
        self._empty = empty or self.sheet.empty
        if key is not None:
            place = next((at for at, row in enumerate(rows) if self.sheet.key(row) == key), None)
            # The row is gone: the cursor stays at its screen position, on another row.
            self.cursor = place if place is not None else max(0, min(self.cursor, len(rows) - 1))
        else:
            self.cursor = 0
        self.virtual_size = Size(0, len(rows) + 1)
        after = self.selected
        if (None if after is None else self.sheet.key(after)) != key:
            self._show_cursor()
            self.post_message(self.Selected())
        self.refresh()

    def forget_widths(self) -> None:
        self._widths.clear()

    # the cursor

    def action_move(self, by: int) -> None:
        self._go(self.cursor + by)

    def action_move_page(self, by: int) -> None:
        self._go(self.cursor + by * max(1, self.size.height - 2))

    def action_move_to(self, place: int) -> None:
        self._go(place if place >= 0 else len(self.rows) - 1)

    def on_click(self, event: events.Click) -> None:
        place = event.y - 1 + self.scroll_offset.y
        if event.y >= 1 and 0 <= place < len(self.rows):
            if place == self.cursor and event.chain > 1:
                self.post_message(self.Opened())
            self._go(place)

    def _go(self, place: int) -> None:
        place = max(0, min(place, len(self.rows) - 1))
        if place != self.cursor and self.rows:
            self.cursor = place
            self._show_cursor()
            self.refresh()
            self.post_message(self.Selected())

    def _show_cursor(self) -> None:
        # One line above it stays free for the header, which does not scroll.
        self.scroll_to_region(Region(0, self.cursor, 1, 2), animate=False, force=True, immediate=True)

    # drawing

    def render_line(self, y: int) -> Strip:
        columns = self._columns()
        if y == 0:
            self._measure(columns)
        widths = self._fitted(columns)
        width = self.size.width
        if y == 0:
            return self._header(columns, widths, width)
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.rows):
            return self._blank(y, width)
        return self._row(self.rows[place], columns, widths, width, is_cursor=place == self.cursor)

    def _columns(self) -> list[LiveColumn[Any]]:
        return [column for column in self.sheet.columns if self.app.size.width >= column.needs]

    def _measure(self, columns: Sequence[LiveColumn[Any]]) -> None:
        """Widths of the visible rows. A column never shrinks, because scrolling would make it jump."""
        first = self.scroll_offset.y
        shown = self.rows[first : first + self.size.height]
        for column in columns:
            widest = max((cell_len(cell(column, row)) for row in shown), default=0)
            known = self._widths.get(column.title, len(column.title) + 1)
            self._widths[column.title] = min(_WIDEST, max(known, widest))

    def _fitted(self, columns: Sequence[LiveColumn[Any]]) -> list[int]:
        widths = [self._widths.get(column.title, len(column.title) + 1) for column in columns]
        places = [place for place, column in enumerate(columns) if column.stretches]
        room = self.size.width - sum(widths) - _GAP * (len(widths) - 1)
        while room < 0 and places:
            widest = max(places, key=lambda place: widths[place])
            if widths[widest] <= _LEAST_STRETCH:
                break
            widths[widest] -= 1
            room += 1
        if room > 0 and places:
            widths[places[-1]] += room
        return widths

    def _header(self, columns: Sequence[LiveColumn[Any]], widths: Sequence[int], width: int) -> Strip:
        style = self.get_component_rich_style("live--header")
        parts = []
        for column, room in zip(columns, widths, strict=True):
            mark = ("▼" if self.is_reversed else "▲") if column is self.sorted_by else ""
            parts.append(_aligned(f"{column.title}{mark}", room, right=column.right))
        return Strip([Segment((" " * _GAP).join(parts), style)]).adjust_cell_length(width, style)

    def _row(
        self,
        row: Any,
        columns: Sequence[LiveColumn[Any]],
        widths: Sequence[int],
        width: int,
        *,
        is_cursor: bool,
    ) -> Strip:
        ground = self.get_component_rich_style("live--cursor") if is_cursor else self.rich_style
        gap = Segment(" " * _GAP, ground)
        segments: list[Segment] = []
        for column, room in zip(columns, widths, strict=True):
            if segments:
                segments.append(gap)
            word = column.style(row)
            # The cursor's line uses one colour: a cyan bar on blue is hard to see.
            style = ground if is_cursor or not word else ground + Style.parse(word)
            segments.append(Segment(_aligned(cell(column, row), room, right=column.right), style))
        return Strip(segments).adjust_cell_length(width, ground)

    def _blank(self, y: int, width: int) -> Strip:
        if self.rows or y != 2:
            return Strip.blank(width, self.rich_style)
        style = self.get_component_rich_style("live--empty")
        return Strip([Segment(f"  {self._empty}", style)]).adjust_cell_length(width, style)


def _aligned(text: str, room: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > room:
        return set_cell_size(text, max(0, room - 1)) + "…" if room else ""
    return " " * (room - length) + text if right else text + " " * (room - length)
