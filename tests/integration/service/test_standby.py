"""Two schedulers of one cluster: one leads, one follows, and they change places."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from dgpu.core.model.settings import Settings
from dgpu.journal.checkpoint import last_index
from dgpu.journal.engine import CLOSED, Candidate, EngineRefused
from dgpu.journal.errors import NewerVersion
from dgpu.journal.format import encode_record
from dgpu.journal.memory_engine import MemoryEngine, SharedState
from dgpu.service.access.key_file import new_key, write_keys
from dgpu.service.machine.contact import AgentRules
from dgpu.service.options import OptionsRefused
from dgpu.wire.isolation import Isolation
from dgpu.wire.records import SCHEMA
from engine_contract import elected
from integration.service.members import Member

pytestmark = pytest.mark.timeout(180)

TASK = {"command": "true"}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Member, Member]]:
    """The first leads, the second follows."""
    shared = SharedState()
    first, second = Member(tmp_path, shared, "a"), Member(tmp_path, shared, "b")
    await first.start()
    await first.until_role("master")
    await second.start()
    await until_ready(second)
    yield first, second
    for member in (first, second):
        await member.end()


async def until_ready(member: Member) -> None:
    for _ in range(1_200):
        if (await member.ask("/ready")).status == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not become ready")


async def until_total(member: Member, total: int) -> None:
    for _ in range(1_200):
        told = await member.ask("/api/v1/tasks")
        if told.status == 200 and told.body["total"] == total:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"expected {total} tasks: {told}")


async def until_known(member: Member, secret: str) -> None:
    for _ in range(1_200):
        if (await member.ask("/api/v1/tasks", Authorization=f"Bearer {secret}")).status == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the token is not known")


async def test_a_standby_answers_reads_with_role_and_age(pair: tuple[Member, Member]) -> None:
    master, standby = pair
    assert (await master.ask("/api/v1/tasks", TASK)).status == 201
    await until_total(standby, 1)
    of_standby, of_master = await standby.ask("/api/v1/tasks"), await master.ask("/api/v1/tasks")
    assert of_standby.headers["dgpu-role"] == "standby"
    assert 0 <= int(of_standby.headers["dgpu-lag-ms"]) < 30_000
    assert (of_master.headers["dgpu-role"], of_master.headers["dgpu-lag-ms"]) == ("master", "0")


async def test_a_standby_refuses_writes_and_names_the_master(pair: tuple[Member, Member]) -> None:
    master, standby = pair
    for method, path, body in (
        ("POST", "/api/v1/tasks", TASK),
        ("POST", "/api/v1/tenants", {"id": "x"}),
        ("DELETE", "/api/v1/tasks/task-1", None),
        ("POST", "/api/v1/alerts/silences", {}),  # not a command of the journal
    ):
        told = await standby.ask(path, body, method)
        assert (told.status, told.body["code"]) == (503, "not_master")
        assert told.body["master"] == f"http://127.0.0.1:{master.http}"
        assert told.headers["retry-after"]
    assert (await master.ask("/api/v1/tasks")).body["total"] == 0


async def test_only_the_master_is_ready_as_master(pair: tuple[Member, Member]) -> None:
    master, standby = pair
    assert (await master.ask("/ready?role=master")).status == 200
    assert (await standby.ask("/ready?role=master")).status == 503
    misspelt = await master.ask("/ready?role=Master")  # all schedulers would look ready to a load balancer
    assert (misspelt.status, misspelt.body["errors"][0]["path"]) == (400, "role")
    told = await standby.ask("/ready")
    assert told.status == 200
    assert told.body["role"] == "standby"
    assert told.body["master"] == f"http://127.0.0.1:{master.http}"
    assert told.body["epoch"] == 1


async def test_a_planned_stop_hands_over_at_once_and_loses_nothing(pair: tuple[Member, Member]) -> None:
    master, standby = pair
    for _ in range(5):
        await master.ask("/api/v1/tasks", TASK)
    await master.stop()
    await standby.until_role("master")
    told = await standby.ask("/api/v1/tasks")
    assert told.body["total"] == 5
    assert (await standby.ask("/api/v1/tasks", TASK)).status == 201
    assert (await standby.ask("/ready")).body["epoch"] == 2


async def test_a_master_that_is_cut_off_steps_down_and_follows(pair: tuple[Member, Member]) -> None:
    """Its answers stop before its lease ends. What it had in flight is discarded, or was committed for all."""
    master, standby = pair
    assert (await master.ask("/api/v1/tasks", TASK)).status == 201
    master.engine.is_down = True
    hanging = asyncio.create_task(master.ask("/api/v1/tasks", TASK))
    await standby.until_role("master")
    assert (await standby.ask("/api/v1/tasks", TASK)).status == 201
    master.engine.is_down = False
    told = await hanging
    assert (told.status, told.body["code"]) == (503, "outcome_unknown")
    await master.until_role("standby")
    await until_total(master, 2)
    told = await master.ask("/api/v1/tasks", TASK)
    assert (told.status, told.body["code"]) == (503, "not_master")
    boards = [task for task in asyncio.all_tasks() if task.get_name() == "board"]
    assert len(boards) == 2, "each member has one; that of the state given up has ended"


async def test_while_the_engine_is_silent_reads_are_answered_with_their_age(
    pair: tuple[Member, Member],
) -> None:
    master, standby = pair
    assert (await master.ask("/api/v1/tasks", TASK)).status == 201
    await until_total(standby, 1)
    master.engine.is_down = standby.engine.is_down = True
    hanging = asyncio.create_task(master.ask("/api/v1/tasks", TASK))
    await asyncio.sleep(0.5)
    told = await master.ask("/api/v1/tasks")
    assert told.status == 200
    assert told.body["total"] == 1  # the submit in flight is not committed
    assert (await master.ask("/api/v1/tasks/task-2")).status == 404
    assert int(told.headers["dgpu-lag-ms"]) > 0
    assert (await standby.ask("/api/v1/tasks")).body["total"] == 1
    assert (await master.ask("/health")).status == 200
    told = await master.ask("/ready")
    assert told.body["engine"] == "" or "no majority" in told.body["engine"]
    master.engine.is_down = standby.engine.is_down = False
    assert (await hanging).status == 201
    await until_total(master, 2)
    await until_total(standby, 2)


async def test_reads_that_are_too_old_are_refused(tmp_path: Path) -> None:
    member = Member(tmp_path, SharedState(), "a")
    member.limit_staleness(1_500)
    try:
        await member.start()
        await member.until_role("master")
        member.engine.is_down = True
        told = await member.ask("/api/v1/tasks")
        for _ in range(600):
            if told.status != 200:
                break
            await asyncio.sleep(0.1)
            told = await member.ask("/api/v1/tasks")
        assert (told.status, told.body["code"]) == (503, "too_stale")
        assert (await member.ask("/ready")).status == 503
        assert (await member.ask("/health")).status == 200
        member.engine.is_down = False
        await until_total(member, 0)
    finally:
        await member.end()


async def test_a_standby_with_another_key_is_refused_by_name(tmp_path: Path) -> None:
    """Otherwise tokens and secrets stop working with the next takeover."""
    shared = SharedState()
    master, other = Member(tmp_path, shared, "a"), Member(tmp_path, shared, "b")
    path = other.options.data_dir / "secrets.key"
    write_keys(path, [new_key()])
    try:
        await master.start()
        await master.until_role("master")
        with pytest.raises(OptionsRefused, match=f"{path} is not the file .* copy secrets.key from"):
            await other.start()
        path.unlink()
        with pytest.raises(OptionsRefused, match=f"{path} is missing"):
            await other.start()
        assert not path.exists(), "a key of its own would be wrong too"
    finally:
        for member in (master, other):
            await member.end()


async def test_a_key_that_was_replaced_on_purpose_is_accepted_once(tmp_path: Path) -> None:
    shared = SharedState()
    member = Member(tmp_path, shared, "a")
    try:
        await member.start()
        await member.until_role("master")
        await member.stop()
        write_keys(member.options.data_dir / "token.key", [new_key()])
        with pytest.raises(OptionsRefused, match="--accept-new-keys"):
            await member.start()
        plain = member.options
        member.options = msgspec.structs.replace(plain, accept_new_keys=True)
        await member.start()
        await member.until_role("master")
        await member.stop()
        member.options = plain
        await member.start()
        await member.until_role("master")
    finally:
        await member.end()


async def test_rights_hold_on_a_standby(tmp_path: Path) -> None:
    """Tokens come with the journal. A caller without the right learns that, and not who leads."""
    shared = SharedState()
    rules = AgentRules(isolation=Isolation(users="none"))
    master, standby = (Member(tmp_path, shared, name, rules=rules) for name in "ab")
    try:
        await master.start()
        await master.until_role("master")
        await standby.start()
        wanted = {"name": "v", "user": "vera", "role": "viewer", "tenants": ["default"]}
        made = await master.ask("/api/v1/tokens", wanted)
        assert made.status == 201, made
        secret = made.body["token"]
        await until_known(standby, secret)
        told = await standby.ask("/api/v1/tasks", TASK, Authorization=f"Bearer {secret}")
        assert (told.status, told.body["code"]) == (403, "not_permitted")
        told = await standby.ask("/api/v1/tasks", Authorization="Bearer dgpu_wrong")
        assert (told.status, told.body["code"]) == (403, "wrong_token")
    finally:
        await master.end()
        await standby.end()


async def test_a_joining_scheduler_with_other_settings_is_refused_by_name(
    pair: tuple[Member, Member], tmp_path: Path
) -> None:
    master, _ = pair
    third = Member(tmp_path, master.engine.shared, "c")
    third.options = msgspec.structs.replace(third.options, settings=Settings(retry_delay_ms=7_000))
    with pytest.raises(OptionsRefused, match="retry_delay_ms"):
        await third.start()
        await third.serving


async def test_a_directory_of_another_cluster_is_refused_by_name(
    pair: tuple[Member, Member], tmp_path: Path
) -> None:
    master, _ = pair
    stranger = Member(tmp_path / "elsewhere", SharedState(), "c")
    await stranger.start()
    await stranger.until_role("master")
    await stranger.stop()
    stranger.engine.shared = master.engine.shared
    with pytest.raises(EngineRefused, match="cluster"):
        await stranger.start()
        await stranger.serving


async def test_a_version_older_than_the_journal_is_refused_by_name(tmp_path: Path) -> None:
    """It would drop fields that it does not know. Nothing of the group is stored."""
    shared = SharedState()
    engine = MemoryEngine(shared)
    record = encode_record(schema=SCHEMA + 1, epoch=1, index=1, payload=b"[]")
    term = elected(engine)
    engine.commit(term, engine.head(), 1, 1, record)
    engine.resign(term)
    older = Member(tmp_path, shared, "a")
    try:
        with pytest.raises(
            NewerVersion, match=r"written by a newer version of dgpu: group 1 .* Use that version"
        ):
            await older.start()
            await older.serving
        assert last_index(tmp_path / "a") == 0
    finally:
        await older.end()


async def test_a_lone_scheduler_is_not_emptied_by_an_empty_engine(tmp_path: Path) -> None:
    """The engine decides what the journal is. An empty one must not make a cluster forget its tasks."""
    member = Member(tmp_path, SharedState(), "a")
    shared, member.options = member.options.shared, msgspec.structs.replace(member.options, shared=None)
    await member.start()
    await member.ask("/api/v1/tasks", TASK)
    await member.stop()
    before = sorted((tmp_path / "a" / "journal").iterdir())
    member.options = msgspec.structs.replace(member.options, shared=shared)
    with pytest.raises(OptionsRefused, match="empty"):
        await member.start()
        await member.serving
    assert sorted((tmp_path / "a" / "journal").iterdir()) == before


async def test_a_scheduler_that_waits_for_the_engine_lives_and_is_not_ready(tmp_path: Path) -> None:
    """A probe that gets no answer would restart it for nothing."""
    member = Member(tmp_path, SharedState(), "a")
    member.begin(engine_is_down=True)
    try:
        assert (await member.ask_until_heard("/health")).status == 200
        told = await member.ask("/ready")
        assert told.status == 503
        told = await member.ask("/api/v1/tasks", TASK)
        assert (told.status, told.body["code"]) == (503, "too_stale")
        member.engine.is_down = False
        await member.until_role("master")
        assert (await member.ask("/api/v1/tasks", TASK)).status == 201
    finally:
        await member.end()


async def test_metrics_tell_the_health_of_the_engine(pair: tuple[Member, Member]) -> None:
    """The alerts at 80 % of the quota, and without a majority, depend on these values."""
    master, standby = pair
    for member in pair:
        lines = await _until_metric(member, lambda lines: lines["engine_size_bytes"] > 0)
        assert lines["engine_has_quorum"] == lines["engine_members"] == lines["engine_members_healthy"] == 1
        assert lines["engine_size_bytes"] < lines["engine_quota_bytes"]
        assert lines["engine_storage_full"] == 0
    standby.engine.is_down = True
    await _until_metric(standby, lambda lines: not lines["engine_has_quorum"])
    assert (await asyncio.to_thread(_metrics, master))["engine_has_quorum"] == 1


async def _until_metric(member: Member, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    for _ in range(600):
        if holds(lines := await asyncio.to_thread(_metrics, member)):
            return lines
        await asyncio.sleep(0.1)
    raise AssertionError(f"the metrics stay {lines}")


def _metrics(member: Member) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{member.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for line in lines
        if line.startswith("engine_")
        for name, _, value in [line.partition(" ")]
    }


async def test_a_scheduler_of_a_closed_journal_ends_and_names_the_one_that_goes_on(tmp_path: Path) -> None:
    """After `dgpu ha leave`, it could only wait for ever, for a master without an address."""
    shared = SharedState(clock=lambda: 0)  # the leader key of a closed journal has no lease that ends
    closed = Candidate(name=CLOSED + "gpu-1:9379", http="", grpc="", nonce="")
    assert MemoryEngine(shared).campaign(closed)
    left_behind = Member(tmp_path, shared, "b")
    left_behind.begin()
    with pytest.raises(EngineRefused, match=r"single scheduler of gpu-1:9379 .* stop its service"):
        await left_behind.until(lambda: False)
