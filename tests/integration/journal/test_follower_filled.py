"""Rows of another scheduler's history, given to the process that writes the history."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dgpu.service.follower.link import AnswerFailed, FollowerAway, FollowerLink
from dgpu.service.history.copying import OwnHistory
from dgpu.service.history.past_pages import Past
from dgpu.service.history.past_words import Fill, PastPage, PastRows
from dgpu.service.history.reader import HISTORY_NAME, History
from dgpu.service.results.file import RESULTS_NAME, ResultReader
from unit.journal.samples import busy_cluster, write_journal

PATIENCE_S = 60
NODE_EVENT = ("node", "journal_index", "position", "at", "type", "body")


def page(*rows: tuple, columns: tuple[str, ...] = NODE_EVENT) -> PastPage:
    return PastPage(tables=(PastRows(table="node_events", columns=columns, rows=rows),))


def own_history(directory: Path, link: FollowerLink) -> OwnHistory:
    past = Past(History(directory / HISTORY_NAME), ResultReader(directory / RESULTS_NAME))
    return OwnHistory(past, link, lambda: "c1")


async def until_ready(own: OwnHistory) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await own.reach()
            except FollowerAway:
                await asyncio.sleep(0.01)
            else:
                return


async def test_rows_that_do_not_fit_are_refused_and_it_goes_on(tmp_path: Path) -> None:
    """They come from another version. A follower that died of them would die of them again."""
    cluster = busy_cluster(steps=50)
    write_journal(tmp_path, cluster.groups)
    link = FollowerLink(tmp_path)
    own = own_history(tmp_path, link)
    with pytest.raises(FollowerAway):
        await own.reach()  # nobody has said yet what is in it
    link.start(committed=len(cluster.groups))
    await until_ready(own)
    into, pid = (await own.reach()).state, link.pid
    for wrong in (
        page(("n9", 1, 0, 5, None, "{}")),
        page(("n9", 1, 0, 5, "NodeLost"), columns=NODE_EVENT[:-1]),
        page(("n9", 1, 0)),
        PastPage(tables=(PastRows(table="tasks", columns=("id",), rows=((1,),)),)),
    ):
        with pytest.raises(AnswerFailed):
            await own.fill(Fill(into=into, page=wrong))
    await own.fill(Fill(into=into, page=page(("n9", 1, 0, 5, "NodeLost", "{}"))))
    assert (link.pid, link.restarts) == (pid, 0)
    found = History(tmp_path / HISTORY_NAME).rows("SELECT * FROM node_events WHERE node = 'n9'", ())
    assert [tuple(row) for row in found] == [("n9", 1, 0, 5, "NodeLost", "{}")]
    await link.stop()
