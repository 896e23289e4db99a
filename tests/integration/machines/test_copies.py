"""Only schedulers of the cluster exchange copies of output and content: not its agents, and not schedulers of another
cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dgpu.agent.channel import open_tls
from dgpu.core.model.ids import TenantId
from dgpu.service.content import copy_words
from dgpu.service.content.copies import ContentCopies
from dgpu.service.content.copying import copy_content_for_ever
from dgpu.service.content.store import ContentKey, ContentLimits, ContentStore
from dgpu.service.copies import words
from dgpu.service.copies.copies import Copies
from dgpu.service.copies.taking import MasterGone, take_for_ever
from dgpu.service.copies.wholeness import Wholeness
from dgpu.service.grpc.copies import MasterLink
from dgpu.service.machines.authority import Authority
from dgpu.service.task_output.store import LogStore
from integration.machines.conftest import Place
from output_parts import NOW, is_found, output

pytestmark = pytest.mark.timeout(60)

ASK = words.FreshAsk(name="b", after=-1)


def link(place: Place, authority: Authority) -> MasterLink:
    made = MasterLink(f"127.0.0.1:{place.port}", authority)
    place.channels.append(made._channel)
    return made


@pytest.fixture
async def standby(tmp_path: Path) -> AsyncIterator[Copies]:
    store = LogStore(tmp_path / "standby")

    async def append(parts) -> None:
        await asyncio.to_thread(store.append, parts, NOW)

    yield Copies(store, Wholeness(tmp_path / "standby"), append, lambda _: None)
    store.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.02)


async def test_two_schedulers_have_the_same_output_in_the_end(place: Place, standby: Copies) -> None:
    master = place.output.copies
    assert master is not None
    await master.lead((0, 0), 1)
    old, fresh, own = output(1, b"old"), output(2, b"fresh"), output(3, b"own")
    await master.append([old])
    await standby.append([own])
    taking = asyncio.create_task(
        take_for_ever(standby, "b", lambda: link(place, place.machines.authority), lambda: NOW)
    )
    try:
        await until(lambda: is_found(standby.store, old) and is_found(master.store, own))
        await master.append([fresh])
        assert not master.on_durable((fresh.task_id, 1), fresh.lease_id, 1)
        await until(lambda: is_found(standby.store, fresh))
        release = master.release
        assert release is not None
        await until(lambda: release.waiting == 0)
        assert (release.standbys(), release.one_copy) == (["b"], 0)
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def test_two_schedulers_have_the_same_content_in_the_end(place: Place, tmp_path: Path) -> None:
    master = place.streams.files.content_copies
    standby = ContentCopies(ContentStore(tmp_path / "standby", ContentLimits()))
    assert master is not None
    own = _stored(standby, b"own")
    address, authority = f"127.0.0.1:{place.port}", place.machines.authority
    async with master.leading():
        copying = asyncio.create_task(
            copy_content_for_ever(standby, "b", lambda: MasterLink(address, authority, copy_words.SERVICE))
        )
        try:
            fresh = _stored(master, b"fresh")
            await until(lambda: bool(standby.store.described([fresh])))
            await until(lambda: bool(master.store.described([own])))
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)
    assert standby.store.described([fresh]) == master.store.described([fresh])


def _stored(copies: ContentCopies, content: bytes) -> ContentKey:
    digest = hashlib.sha256(content).hexdigest()
    arrival = copies.store.begin(TenantId("team"), digest, len(content), frozenset())
    arrival.write(content)
    arrival.finish()
    return arrival.key


@pytest.mark.parametrize("service", [words.SERVICE, copy_words.SERVICE])
async def test_an_agent_takes_no_output_and_no_content(place: Place, service: str) -> None:
    agent = MasterLink(f"127.0.0.1:{place.port}", None, service)
    await agent.close()
    agent._channel = open_tls(f"127.0.0.1:{place.port}", await place.certificate("n1"))
    place.channels.append(agent._channel)
    with pytest.raises(MasterGone, match="only schedulers of this cluster"):
        await agent.call("Fresh", ASK, words.FreshRuns)
    assert (await place.refusal("not_a_scheduler")).action == "agent.connect"


async def test_a_scheduler_of_another_cluster_takes_no_output(place: Place, other_authority) -> None:
    with pytest.raises(MasterGone):
        await link(place, other_authority).call("Fresh", ASK, words.FreshRuns)


async def test_a_question_that_cannot_be_read_is_refused_by_name(place: Place) -> None:
    with pytest.raises(MasterGone, match="cannot be read"):
        await link(place, place.machines.authority).call("Page", ASK, words.Page)


async def test_a_part_that_changed_on_its_way_is_not_stored(place: Place) -> None:
    bad = words.Entries(entries=(words.Entry(b"x", b"y"),))
    with pytest.raises(MasterGone, match="differs from its hash"):
        await link(place, place.machines.authority).call("Put", bad, words.Done)
