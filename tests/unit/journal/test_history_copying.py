"""A standby compares its history with the one at the address of the master."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import structlog.testing

from dgpu.service.copies.taking import MasterGone
from dgpu.service.follower.link import AnswerFailed, FollowerLink
from dgpu.service.history import copying
from dgpu.service.history.copying import OtherCluster, OwnHistory, fill_histories_for_ever
from dgpu.service.history.past_pages import Past
from dgpu.service.history.past_words import Fill
from dgpu.service.history.reader import History
from dgpu.service.history.writer import HistoryWriter
from dgpu.service.results.file import ResultLimits, ResultReader, ResultWriter
from unit.journal.samples import Cluster

LAST = {"history_complete", "history_not_copied"}


class Link:
    """Fills the history without a process."""

    seen_index = 1

    def __init__(self, writer: HistoryWriter, refused_pages: int) -> None:
        self._writer = writer
        self.refused_pages = refused_pages

    async def fill(self, given: Fill, *, patience_s: float) -> None:
        if given.source is None and self.refused_pages:
            self.refused_pages -= 1
            raise AnswerFailed("a row of another version")
        self._writer.fill(given)


class Connection:
    """To another scheduler in this process."""

    def __init__(self, other: OwnHistory) -> None:
        self._asks: dict[str, Any] = {"Reach": other.reach, "Page": other.page, "Fill": other.fill}

    async def call(self, method: str, message: Any, _: Any) -> Any:
        try:
            return await self._asks[method](message)
        except OtherCluster as error:
            raise MasterGone(str(error)) from error

    async def close(self) -> None: ...


def history(path: Path, cluster_id: str, *, from_index: int, refused_pages: int = 0) -> OwnHistory:
    writer = HistoryWriter(path)
    if from_index:
        writer.seed(Cluster().begin().state, index=from_index)
    else:
        writer.commit(9)
    results = path.with_name(f"results-{path.name}")
    ResultWriter(results, ResultLimits()).close()
    past = Past(History(path), ResultReader(results))
    return OwnHistory(past, cast("FollowerLink", Link(writer, refused_pages)), lambda: cluster_id)


@pytest.mark.parametrize("begins", [{"own": 5, "other": 0}, {"own": 0, "other": 5}], ids=str)
@pytest.mark.parametrize("cluster_id", ["c1", "c2"])
async def test_only_histories_of_one_cluster_fill_each_other(
    tmp_path: Path, begins: dict[str, int], cluster_id: str
) -> None:
    """The scheduler of another cluster may have been started where the master was."""
    own = history(tmp_path / "own.sqlite", "c1", from_index=begins["own"])
    other = history(tmp_path / "other.sqlite", cluster_id, from_index=begins["other"])
    with structlog.testing.capture_logs() as log:
        filling = asyncio.create_task(fill_histories_for_ever(own, lambda: Connection(other)))
        async with asyncio.timeout(30):
            while not LAST & {each["event"] for each in log}:  # noqa: ASYNC110 - the log wakes nobody
                await asyncio.sleep(0.01)
        filling.cancel()
    is_filled = cluster_id == "c1"
    told = ["history_filled", "history_complete"] if is_filled else ["history_not_copied"]
    assert [each["event"] for each in log] == told
    assert is_filled or "it is of cluster c2, not of cluster c1" in log[0]["reason"]
    lacks = sorted([(await own.reach()).lacks_until, (await other.reach()).lacks_until])
    assert lacks == ([0, 0] if is_filled else [0, 5])


async def test_a_history_that_lacks_nothing_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator waits for this line, whether anything was copied or not."""
    own, other = (history(tmp_path / f"{name}.sqlite", "c1", from_index=0) for name in ("own", "other"))
    looks = 0

    async def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(copying.asyncio, "sleep", pause)
    with structlog.testing.capture_logs() as log, pytest.raises(asyncio.CancelledError):
        await fill_histories_for_ever(own, lambda: Connection(other))
    assert [each["event"] for each in log] == ["history_complete"]


async def test_a_copy_that_is_refused_is_tried_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt reads and writes the pages again, and the master reads them beside its work."""
    own = history(tmp_path / "own.sqlite", "c1", from_index=5, refused_pages=8)
    other = history(tmp_path / "other.sqlite", "c1", from_index=0)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 9:
            raise asyncio.CancelledError

    monkeypatch.setattr(copying.asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await fill_histories_for_ever(own, lambda: Connection(other))
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 30, 30]
