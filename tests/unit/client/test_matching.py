"""Lines that match a regular expression, chosen by the client."""

from __future__ import annotations

import pytest

from dgpu.client.errors import BadRequest
from dgpu.client.matching import MatchingLines, matching

PIECES = [b"epoch 1 lo", b"ss 3\nepoch 2 loss 2\nwarn", b"ing\nepoch 3 loss 1"]


def chosen(pattern: str, **limits: int) -> bytes:
    return b"".join(matching(PIECES, MatchingLines(pattern, **limits)))


def test_lines_are_matched_whole_whatever_the_pieces_are() -> None:
    assert chosen("^epoch 1 loss") == b"epoch 1 loss 3\n"
    assert chosen("^warning$|loss 1$") == b"warning\nepoch 3 loss 1"


def test_first_and_last_matches() -> None:
    assert chosen("epoch", head=1) == b"epoch 1 loss 3\n"
    assert chosen("epoch", tail=2) == b"epoch 2 loss 2\nepoch 3 loss 1"


def test_a_wrong_pattern_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"grep: '\(' is no regular expression"):
        MatchingLines("(")
