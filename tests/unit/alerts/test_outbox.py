"""What waits to be sent: in order, tried again, given up in the end, and never more than a bound."""

from __future__ import annotations

from dgpu.service.alerts.outbox import Outbox, SendingRules
from dgpu.service.alerts.targets import Target, webhook_refusal
from dgpu.service.alerts.values import Message

RULES = SendingRules(attempts=4, retry_ms=2_000, max_retry_ms=5_000, queue=3)


def message(number=1):
    return Message(state="firing", rule="gpu_error", severity="critical", at=number, count=0)


def test_a_target_that_fails_is_tried_again_after_longer_and_longer_pauses_and_then_given_up():
    outbox = Outbox(["ops"], RULES)
    outbox.put(message(), "m1", 0)
    now, pauses, outcomes = 0, [], []
    while (due_at := outbox.next_due_at()) is not None:
        pauses.append(due_at - now)
        now = due_at
        (delivery,) = outbox.take_due(now)
        outcomes.append(outbox.on_failed(delivery, "no answer", now))
    assert pauses == [0, 2_000, 4_000, 5_000]
    assert outcomes == ["retry", "retry", "retry", "given_up"]
    counts = outbox.counts("ops")
    assert (counts.queued, counts.sent, counts.failed, counts.dropped) == (0, 0, 4, 1)
    assert counts.last_error == "no answer"


def test_messages_of_a_target_go_one_at_a_time_and_in_order_and_others_do_not_wait_for_it():
    outbox = Outbox(["slow", "fast"], RULES)
    outbox.put(message(), "m1", 0)
    outbox.put(message(), "m2", 0)
    slow, fast = outbox.take_due(0)
    assert outbox.take_due(0) == []
    outbox.on_sent(fast)
    (second,) = outbox.take_due(0)
    assert (second.target, second.id) == ("fast", "m2")
    outbox.on_failed(slow, "busy", 0)
    assert outbox.take_due(1_000) == []
    (again,) = outbox.take_due(2_000)
    assert (again.id, again.attempts) == ("m1", 1)


def test_a_dead_target_keeps_a_bounded_number_of_messages_and_the_oldest_go_first():
    outbox = Outbox(["ops"], RULES)
    dropped = []
    for number in range(10):
        dropped += outbox.put(message(number), f"m{number}", 0)
    assert [delivery.id for delivery in dropped] == [f"m{number}" for number in range(7)]
    assert outbox.counts("ops").queued == 3
    assert outbox.counts("ops").dropped == 7


def test_what_is_just_being_sent_is_not_dropped_for_a_newer_one():
    outbox = Outbox(["ops"], RULES)
    for number in range(3):
        outbox.put(message(number), f"m{number}", 0)
    (sending,) = outbox.take_due(0)
    (dropped,) = outbox.put(message(3), "m3", 0)
    assert dropped.id == "m1"
    outbox.on_sent(sending)
    assert [delivery.id for delivery in outbox.kept()] == ["m2", "m3"]


def test_after_a_restart_unsent_messages_go_on_and_those_of_removed_targets_are_forgotten():
    outbox = Outbox(["ops", "old"], RULES)
    outbox.put(message(), "m1", 0)
    again = Outbox(["ops"], RULES, outbox.kept())
    assert [(delivery.target, delivery.id) for delivery in again.take_due(0)] == [("ops", "m1")]


def test_nothing_of_an_address_is_shown_but_where_a_webhook_goes():
    hook = Target(
        name="ops",
        kind="webhook",
        url="https://me:pass123@hooks.example:8443/T01/XyZ?key=abc",
        secret="s3cret",
    )
    assert hook.address == "https://hooks.example:8443/…"
    told = hook.without_secrets(f"cannot reach {hook.url}: T01 refused me with pass123, s3cret, abc and XyZ")
    for secret in ("pass123", "T01", "XyZ", "abc", "s3cret"):
        assert secret not in told
        assert secret not in repr(hook)
    mail = Target(name="mail", kind="apprise", url="mailto://user%40x:p%40ss@smtp.example/?to=a@b.org")
    assert mail.address == "mailto://…"
    assert "p@ss" not in mail.without_secrets("login p@ss for user@x")


def test_a_webhook_has_to_be_a_url_of_http():
    for url in ("ftp://x/", "x", "http://", "https://a b/", "http://h:99999/", "http://[::1"):
        assert webhook_refusal(url) is not None
        assert url not in str(webhook_refusal(url)) or len(url) < 4
    assert webhook_refusal("http://127.0.0.1:80/x?y=1") is None
