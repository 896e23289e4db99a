"""Where a download continues that broke, without I/O."""

from __future__ import annotations

import pytest

from dgpu.client.errors import Unreachable
from dgpu.client.file_calls import Download

WHOLE = {"etag": '"10-abc"', "content-length": "16", "dgpu-offset": "0"}
REST = {"etag": '"10-abc"', "content-length": "10", "dgpu-offset": "6"}


@pytest.fixture
def broken() -> Download:
    """After 6 of 16 bytes."""
    place = Download(42, "a/b.bin", attempt=2, rank=None)
    assert place.request_path() == "/api/v1/tasks/42/files/a/b.bin?attempt=2"
    place.begin(WHOLE.get)
    assert place.on_piece(b"sixsix") == b"sixsix"
    with pytest.raises(Unreachable, match="after 6 of 16 bytes"):
        place.check_whole()
    return place


def test_the_rest_of_the_same_file_is_asked_for(broken: Download) -> None:
    assert broken.request_path() == "/api/v1/tasks/42/files/a/b.bin?attempt=2&offset=6&version=10-abc"
    broken.begin(REST.get)
    broken.on_piece(b"0123456789")
    broken.check_whole()
    assert broken.request_path().endswith("offset=16&version=10-abc")


@pytest.mark.parametrize(
    "answer",
    [
        {**REST, "etag": '"10-abd"'},
        {**REST, "dgpu-offset": "0", "content-length": "16"},
        {"content-length": "16"},
    ],
    ids=["another content", "from the beginning", "an older scheduler"],
)
def test_another_answer_is_not_appended(broken: Download, answer: dict[str, str]) -> None:
    with pytest.raises(Unreachable, match="after 6 of 16 bytes"):
        broken.begin(answer.get)
