"""The output of a task on a terminal: colours and progress bars work, other control sequences do not."""

from __future__ import annotations

import pytest

from dgpu.cli.terminal_output import HarmlessText

KEPT = "\x1b[1;31mred\x1b[0m 50%\r\x1b[K100%\b\ttab\nä 漢\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (KEPT, KEPT),
        ("\x1b]0;title\x07", "?]0;title?"),
        ("\x1b[2J\x1b[H\x1b[1A", "?[2J?[H?[1A"),
        ("\x9b2J\x00\x7f", "?2J??"),
        ("\x1bP0;1|17/ab\x1b\\", "?P0;1|17/ab?\\"),
        ("\u202eevil", "?evil"),
        ("\x1b[" + "1" * 100 + "m", "?[" + "1" * 100 + "m"),
    ],
)
def test_only_harmless_sequences_pass_however_they_are_cut(written: str, shown: str) -> None:
    for size in (1, 2, 3, 1_000):
        text, content = HarmlessText(), (written + ".").encode()
        pieces = [content[start : start + size] for start in range(0, len(content), size)]
        assert b"".join(map(text.feed, pieces)).decode() == shown + "."


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert HarmlessText().feed(b"\xff\x9b2J").decode() == "��2J"
