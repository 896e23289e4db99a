"""An alert's life: from a condition that holds to a message that says it is over. Time is a number here."""

from __future__ import annotations

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dgpu.service.alerts.machine import AlertMachine
from dgpu.service.alerts.rules import Finding, Rule, RuleSet
from dgpu.service.alerts.values import (
    MAX_IN_A_MESSAGE,
    MAX_OPEN,
    AlertState,
    AlertTimes,
    KeptAlerts,
    MachineOptions,
)

S = 1_000
OPTIONS = MachineOptions(
    rules=RuleSet(
        agent_offline=Rule(for_ms=30 * S, severity="critical"), gpu_error=Rule(severity="critical")
    ),
    times=AlertTimes(
        resolve_after_ms=15 * S, group_wait_ms=5 * S, repeat_ms=3_600 * S, reopen_ms=600 * S, keep_resolved=10
    ),
)


def found(rule="gpu_error", subject="GPU-1", summary="it is ill", **facts):
    return Finding(rule, subject, summary, facts)


class Story:
    """A machine and its clock; every look is told all that holds at that time."""

    def __init__(self, options=OPTIONS, kept=None, now=0):
        self.machine = AlertMachine(options, kept)
        self.now = now
        self.messages = []

    def look(self, *holding, after=5):
        self.now += after * S
        changes = self.machine.on_findings(holding, self.now)
        taken = self.machine.take_messages(self.now)
        self.messages += taken
        return [(change.name, change.alert.subject) for change in changes]

    def told(self):
        taken, self.messages = self.messages, []
        return [(message.state, message.count) for message in taken]

    def restarted(self):
        kept = msgspec.json.decode(msgspec.json.encode(self.machine.kept()), type=KeptAlerts)
        return Story(kept=kept, now=self.now)


def test_an_alert_fires_only_when_its_condition_has_held_for_long_enough():
    story = Story()
    down = found("agent_offline", "n1")
    assert story.look(down) == [("pending", "n1")]
    assert story.look(down, after=29) == []
    assert story.told() == []
    assert story.look(down, after=1) == [("firing", "n1")]
    story.look(down)
    assert story.told() == [("firing", 1)]


def test_a_condition_that_goes_away_before_its_time_is_withdrawn_and_told_to_nobody():
    story = Story()
    story.look(found("agent_offline", "n1"))
    assert story.look() == [("withdrawn", "n1")]
    story.look(found("agent_offline", "n1"), after=5)
    assert story.look(found("agent_offline", "n1"), after=29) == []  # it began to count anew
    assert story.told() == []


def test_a_condition_that_is_gone_resolves_its_alert_and_the_end_is_told_once():
    story = Story()
    story.look(found())
    story.look(found())
    assert story.look() == []  # it has to stay away for a while
    assert story.look(after=15) == [("resolved", "GPU-1")]
    for _ in range(5):
        story.look()
    assert story.told() == [("firing", 1), ("resolved", 1)]
    assert [alert.state for alert in story.machine.listed()] == [AlertState.RESOLVED]


def test_there_is_one_alert_per_rule_and_subject_however_often_it_is_found():
    story = Story()
    for number in range(50):
        story.look(found(summary=f"reading {number}"), found(summary="the same again"))
    assert story.told() == [("firing", 1)]
    (alert,) = story.machine.listed()
    assert alert.summary == "reading 49"  # what is shown is the latest


def test_two_hundred_nodes_that_go_at_about_the_same_time_are_one_message_with_a_count():
    story = Story()
    nodes = [found(subject=f"n{number}") for number in range(200)]
    story.look(*nodes[:120], after=1)
    story.look(*nodes, after=3)
    story.look(*nodes, after=3)
    (message,) = story.messages
    assert (message.state, message.count) == ("firing", 200)
    assert len(message.alerts) == MAX_IN_A_MESSAGE
    assert "200 alerts of gpu_error" in message.summary
    assert "and 195 more" in message.summary
    story.messages = []
    for _ in range(6):
        story.look()
    assert story.told() == [("resolved", 200)]


def test_what_begins_and_ends_before_its_message_leaves_is_not_told_at_all():
    quick = msgspec.structs.replace(
        OPTIONS, times=msgspec.structs.replace(OPTIONS.times, resolve_after_ms=0, group_wait_ms=60 * S)
    )
    story = Story(quick)
    story.look(found())
    story.look()
    story.look(after=120)
    assert story.told() == []


def test_one_that_keeps_coming_back_is_one_alert_that_has_to_stay_away_longer_each_time():
    story = Story()
    times_told = 0
    for _ in range(60):  # on for 5 s, off for 20 s: half an hour of it
        story.look(found())
        for _ in range(4):
            story.look()
    times_told = len(story.told())
    assert times_told <= 6
    (alert,) = story.machine.listed()
    assert alert.flaps == 1 or alert.flaps == 2
    assert alert.number == 1


def test_a_flap_that_does_not_hold_leaves_the_record_of_what_was_before():
    story = Story()
    down = found("agent_offline", "n1")
    for _ in range(8):
        story.look(down)
    for _ in range(5):
        story.look()
    (before,) = story.machine.listed()
    assert before.state is AlertState.RESOLVED
    assert story.look(down) == [("pending", "n1")]
    assert story.look() == [("withdrawn", "n1")]
    assert list(story.machine.listed()) == [before]


def test_a_silenced_alert_is_listed_but_told_only_when_the_silence_is_over_and_it_still_fires():
    story = Story()
    silence, changes = story.machine.silence("gpu_error", "GPU-1", story.now + 60 * S, "I know", story.now)
    assert changes == []
    assert story.look(found(), found(subject="GPU-2")) == [("firing", "GPU-1"), ("firing", "GPU-2")]
    story.look(found(), found(subject="GPU-2"))
    assert [message.alerts[0].subject for message in story.messages] == ["GPU-2"]
    story.messages = []
    assert story.look(found(), found(subject="GPU-2"), after=60) == [("unsilenced", "GPU-1")]
    assert silence.number not in story.machine.silences
    assert list(story.restarted().machine.ended.values()) == [silence]
    story.look(found(), found(subject="GPU-2"))
    assert [message.alerts[0].subject for message in story.messages] == ["GPU-1"]


def test_a_silence_of_a_rule_covers_all_subjects_and_of_a_star_all_rules():
    story = Story()
    story.machine.silence("gpu_error", None, 10**9, "", 0)
    story.look(found(subject="a"), found(subject="b"), after=1)
    story.look(found(subject="a"), found(subject="b"), after=9)
    assert story.told() == []
    story.machine.silence("*", "n1", 10**9, "", 0)
    for _ in range(10):
        story.look(found("agent_offline", "n1"), found("agent_offline", "n2"))
    assert [message.alerts[0].subject for message in story.messages] == ["n2"]


def test_ending_a_silence_by_hand_lets_its_alerts_be_told():
    story = Story()
    story.look(found())
    silence, changes = story.machine.silence("*", None, 10**9, "", story.now)
    assert [change.name for change in changes] == ["silenced"]
    story.look(found())
    assert story.told() == []
    assert [change.name for change in story.machine.unsilence(silence.number, story.now)] == ["unsilenced"]
    story.look(found())
    story.look(found())
    assert story.told() == [("firing", 1)]


def test_a_firing_alert_is_told_again_until_somebody_acknowledges_it():
    story = Story()
    for _ in range(3):
        story.look(found(), after=10)
    story.look(found(), after=3_600)
    story.look(found())
    assert [message.reminder for message in story.messages] == [False, True]
    (alert,) = story.machine.listed()
    change = story.machine.acknowledge(alert.number, "on my way", story.now)
    assert change.alert.comment == "on my way"
    again = story.machine.acknowledge(alert.number, "", story.now)
    assert again.alert.comment == "on my way"  # what was said stays
    story.messages = []
    story.look(found(), after=7_200)
    story.look(found())
    assert story.told() == []
    assert next(story.machine.listed()).acknowledged_at  # kept by later looks
    for _ in range(6):
        story.look()
    assert story.told() == [("resolved", 1)]  # the good news still comes
    assert story.machine.acknowledge(alert.number, "", story.now) is None


def test_a_restart_forgets_neither_what_fires_nor_who_was_told_nor_silences():
    story = Story()
    story.look(found(), found("agent_offline", "n1"))
    story.look(found(), found("agent_offline", "n1"))
    story.machine.acknowledge(1, "mine", story.now)
    story.machine.silence("queue_wait", None, 10**12, "", story.now)
    again = story.restarted()
    (alert,) = again.machine.listed()  # what was pending counts anew
    assert (alert.comment, alert.firing_since, alert.told) == ("mine", 5 * S, True)
    assert len(again.machine.silences) == 1
    assert again.look(found()) == []
    assert again.told() == []  # not told twice
    again.look()
    again.look(after=15)
    again.look()
    assert again.told() == [("resolved", 1)]
    assert again.look(found(subject="GPU-9")) == [("firing", "GPU-9")]
    assert again.machine.find(1).subject == "GPU-1"  # numbers are not given twice


def test_an_end_that_was_not_told_before_a_stop_is_told_after_it():
    story = Story()
    story.look(found())
    story.look(found())
    story.look()
    story.look(after=15)
    assert story.told() == [("firing", 1)]
    again = story.restarted()
    again.look()
    assert again.told() == [("resolved", 1)]
    once_more = again.restarted()
    once_more.look()
    assert once_more.told() == []


def test_there_is_a_bound_on_open_alerts_and_what_is_beyond_it_is_counted():
    story = Story()
    many = [found(subject=f"g{number}") for number in range(MAX_OPEN + 7)]
    story.look(*many)
    assert len(story.machine.open) == MAX_OPEN
    assert story.machine.dropped == 7


def test_only_the_latest_resolved_alerts_are_kept_and_the_end_of_all_is_told():
    story = Story()
    many = [found(subject=f"g{number}") for number in range(40)]
    story.look(*many)
    story.look(*many)
    for _ in range(6):
        story.look()
    assert story.told() == [("firing", 40), ("resolved", 40)]
    assert len(story.machine.resolved) == OPTIONS.times.keep_resolved
    assert len(story.machine._last) == OPTIONS.times.keep_resolved
    assert len(list(story.restarted().machine.listed())) == OPTIONS.times.keep_resolved


SUBJECTS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sets(st.tuples(st.sampled_from(("gpu_error", "agent_offline")), st.sampled_from(SUBJECTS))),
        st.integers(1, 400),
        st.sampled_from(("", "ack", "silence", "unsilence", "restart")),
    ),
    max_size=60,
)


def ended_in_silence(machine):
    last = [machine.resolved[number] for key, number in machine._last.items() if key not in machine.open]
    return [alert for alert in last if not alert.told and machine.silenced_until(alert)]


@settings(max_examples=200, deadline=None)
@example(
    [
        ({("gpu_error", "a")}, 1, ""),
        (set(), 5, ""),
        (set(), 15, "silence"),
        (set(), 1, ""),
        (set(), 4, ""),
        (set(), 377, ""),
        ({("gpu_error", "a")}, 218, ""),
        (set(), 5, ""),
    ]
)
@given(STEPS)
def test_whatever_happens_messages_alternate_and_nothing_grows(steps):
    """For every subject a "resolved" follows a "firing" that was told, and a new "firing" only after that; but for
    those that ended while they were silenced: nobody wanted to hear of it.
    """
    story = Story()
    believes_firing: set[tuple[str, str]] = set()
    for holding, after, deed in steps:
        story.look(*(found(rule, subject) for rule, subject in sorted(holding)), after=after)
        for message in story.messages:
            for alert in message.alerts:
                if message.state == "resolved":
                    assert alert.key in believes_firing
                    believes_firing.discard(alert.key)
                elif message.reminder:
                    assert alert.key in believes_firing
                else:
                    assert alert.key not in believes_firing or alert.flaps
                    believes_firing.add(alert.key)
        story.messages = []
        believes_firing -= {alert.key for alert in ended_in_silence(story.machine)}
        for key, alert in story.machine.open.items():
            assert key == alert.key
            assert alert.state in {AlertState.PENDING, AlertState.FIRING}
            if alert.state is AlertState.FIRING:
                assert key in holding or alert.clear_since
        if deed == "ack" and story.machine.open:
            story.machine.acknowledge(next(iter(story.machine.open.values())).number, "", story.now)
        elif deed == "silence":
            story.machine.silence("*", "a", story.now + 100 * S, "", story.now)
        elif deed == "unsilence" and story.machine.silences:
            story.machine.unsilence(next(iter(story.machine.silences)), story.now)
        elif deed == "restart":
            story = story.restarted()
        assert len(story.machine.open) <= 6
        assert len(story.machine.resolved) <= OPTIONS.times.keep_resolved
        assert len(story.machine._last) <= len(story.machine.resolved)
        numbers = [alert.number for alert in story.machine.listed()]
        assert len(numbers) == len(set(numbers))
