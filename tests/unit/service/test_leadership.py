from __future__ import annotations

import pytest

from dgpu.journal.engine import Candidate, Leader, Term
from dgpu.service.leadership.machine import Leadership, LeadershipRules
from dgpu.service.leadership.words import (
    BeginEpoch,
    Campaign,
    Campaigned,
    CannotCopy,
    FenceGone,
    Follow,
    Followed,
    Input,
    Open,
    Output,
    Passed,
    Renew,
    Renewed,
    Role,
    StateDiffers,
    StepDown,
    Unavailable,
    Wait,
    Woke,
)

START = 1_000_000
TERM = Term(fence=7, lease_id=3, ttl_ms=5_000, granted_at_ms=START)


def leader(fence: int) -> Leader:
    return Leader(candidate=Candidate(name="a", http="http://a", grpc="a:1", nonce="n"), fence=fence)


class Stage:
    def __init__(self) -> None:
        self.now = START
        self.machine = Leadership(LeadershipRules(renew_ms=1_000, margin_ms=1_000))

    def put(self, value: Input) -> list[Output]:
        return self.machine.on_input(value, self.now)

    def after(self, ms: int) -> list[Output]:
        self.now += ms
        return self.put(Passed())

    def followed(self, fence: int | None, *, asked_at_ms: int | None = None) -> list[Output]:
        asked = self.now if asked_at_ms is None else asked_at_ms
        return self.put(Followed(asked_at_ms=asked, leader=None if fence is None else leader(fence)))

    def win(self) -> list[Output]:
        self.put(Open())
        self.followed(None)
        self.put(Campaigned(term=TERM))
        return self.followed(TERM.fence)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_standby_follows_while_another_scheduler_leads(stage: Stage) -> None:
    assert stage.put(Open()) == [Follow()]
    assert stage.followed(5) == [Wait(timeout_ms=1_000)]
    assert stage.put(Woke()) == [Follow()]
    assert stage.machine.role is Role.FOLLOWING
    assert not stage.machine.may_act(stage.now)


def test_a_standby_that_has_everything_and_sees_no_leader_campaigns(stage: Stage) -> None:
    stage.put(Open())
    assert stage.followed(None) == [Campaign()]


def test_a_lost_campaign_leads_back_to_following(stage: Stage) -> None:
    stage.put(Open())
    stage.followed(None)
    assert [type(output) for output in stage.put(Campaigned(term=None))] == [Wait]
    assert stage.put(Woke()) == [Follow()]


def test_the_winner_reads_to_the_head_before_its_epoch_begins(stage: Stage) -> None:
    """The predecessor may have committed between the last read and the loss of its key."""
    stage.put(Open())
    stage.followed(None)
    assert stage.put(Campaigned(term=TERM)) == [Follow()]
    assert not stage.machine.leads
    assert stage.followed(TERM.fence) == [BeginEpoch(term=TERM)]
    assert stage.machine.leads


def test_a_winner_that_lost_the_key_while_it_read_begins_no_epoch(stage: Stage) -> None:
    stage.put(Open())
    stage.followed(None)
    stage.put(Campaigned(term=TERM))
    assert [type(output) for output in stage.followed(8)] == [StepDown]


def test_an_unanswered_read_while_catching_up_is_repeated(stage: Stage) -> None:
    stage.put(Open())
    stage.followed(None)
    stage.put(Campaigned(term=TERM))
    assert stage.put(Unavailable(to=Follow)) == [Follow()]


def test_the_lease_is_renewed_while_the_tail_is_read(stage: Stage) -> None:
    """A long tail must not cost the key that was just won."""
    stage.put(Open())
    stage.followed(None)
    stage.put(Campaigned(term=TERM))
    assert stage.after(1_000) == [Renew(term=TERM)]


def test_one_renewal_is_in_flight_at_a_time(stage: Stage) -> None:
    stage.win()
    assert stage.after(1_000) == [Renew(term=TERM)]
    assert stage.after(5_000) == []
    stage.put(Renewed(sent_at_ms=stage.now - 5_000))
    assert stage.after(0) == [Renew(term=TERM)]


def test_effects_stop_a_margin_before_the_lease_can_end(stage: Stage) -> None:
    stage.win()
    assert stage.machine.may_act(START + 3_999)
    assert not stage.machine.may_act(START + 4_000)


def test_a_renewal_counts_from_when_it_was_sent(stage: Stage) -> None:
    """Its answer may have been on its way for long."""
    stage.win()
    stage.after(1_000)
    sent_at_ms = stage.now
    stage.now += 3_500
    assert not stage.machine.may_act(stage.now)
    stage.put(Renewed(sent_at_ms=sent_at_ms))
    assert not stage.machine.may_act(sent_at_ms + 4_000)
    assert stage.machine.may_act(sent_at_ms + 3_999)


def test_a_silent_engine_does_not_depose_the_leader(stage: Stage) -> None:
    """Without a majority no other scheduler can win either. Effects wait for the next renewal."""
    stage.win()
    stage.after(1_000)
    assert stage.put(Unavailable(to=Renew)) == []
    assert stage.after(60_000) == [Renew(term=TERM)]
    assert stage.machine.leads
    assert not stage.machine.may_act(stage.now)
    assert stage.machine.silent_since_ms == START + 1_000
    stage.put(Renewed(sent_at_ms=stage.now))
    assert stage.machine.may_act(stage.now)
    assert stage.machine.silent_since_ms is None


def test_a_lost_fence_is_final(stage: Stage) -> None:
    """The memory may hold a group that was never committed, so this life of the scheduler must not lead again."""
    stage.win()
    assert stage.put(FenceGone(why="replaced")) == [StepDown(why="replaced")]
    assert not stage.machine.may_act(stage.now)
    assert stage.followed(None) == []
    assert stage.after(1_000) == []
    assert stage.put(Renewed(sent_at_ms=stage.now)) == []
    assert not stage.machine.may_act(stage.now)


def test_freshness_is_the_time_at_which_the_head_was_asked_for(stage: Stage) -> None:
    stage.put(Open())
    stage.now += 700
    stage.followed(5, asked_at_ms=START)
    assert stage.machine.fresh_at_ms == START


def test_an_unanswered_campaign_is_followed_by_a_look_at_the_leader(stage: Stage) -> None:
    stage.put(Open())
    stage.followed(None)
    (wait,) = stage.put(Unavailable(to=Campaign))
    assert isinstance(wait, Wait)
    assert wait.is_pause
    assert stage.put(Woke()) == [Follow()]


def test_a_standby_without_room_on_its_disk_waits_and_says_so(stage: Stage) -> None:
    """It must not end: its service would restart it again and again."""
    stage.put(Open())
    (wait,) = stage.put(CannotCopy(why="no room"))
    assert isinstance(wait, Wait)
    assert wait.is_pause
    assert stage.machine.copy_trouble == "no room"
    assert stage.put(Woke()) == [Follow()]
    stage.followed(5)
    assert stage.machine.copy_trouble == ""


def test_a_winner_without_room_on_its_disk_gives_the_key_back(stage: Stage) -> None:
    """It cannot read to the head. Another scheduler may lead."""
    stage.put(Open())
    stage.followed(None)
    stage.put(Campaigned(term=TERM))
    assert stage.put(CannotCopy(why="no room")) == [StepDown(why="no room")]
    assert stage.machine.has_key


def test_a_key_that_was_lost_is_not_given_back(stage: Stage) -> None:
    stage.win()
    assert stage.machine.has_key
    stage.put(FenceGone(why="replaced"))
    assert not stage.machine.has_key


def test_a_standby_with_another_state_does_not_ask_for_the_key(stage: Stage) -> None:
    """It would decide from a state that the acknowledged groups do not give."""
    stage.put(Open())
    stage.followed(5)
    assert stage.put(StateDiffers(why="another state")) == []
    stage.put(Woke())
    assert stage.followed(None) == [Wait(timeout_ms=1_000)]
    assert stage.machine.unfit == "another state"
