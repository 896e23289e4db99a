"""Bad histories are found, each by its own name, and a good one is not."""

from __future__ import annotations

from dgpu.entry.chaos import history
from dgpu.entry.chaos.history import HELD, LONG, RUN, FailedCall, Found, Leading, Read, Step, Submit


def submit(number, *, sent=None, acknowledged=None, by="a", key=None) -> Submit:
    sent = float(number) if sent is None else sent
    return Submit(
        key=key or f"k{number}",
        sent_s=sent,
        acknowledged_s=sent + 0.1 if acknowledged is None else acknowledged,
        by=by,
        number=number,
    )


def begin(number, *, attempt=1, node="n1") -> Step:
    return Step(at_s=0, begins=True, number=number, attempt=attempt, node=node)


def end(number, *, attempt=1, node="n1") -> Step:
    return Step(at_s=0, begins=False, number=number, attempt=attempt, node=node)


def run(status="success", *, attempt=1, name=RUN, reason="") -> Found:
    return Found(name=name, status=status, attempt=attempt, reason=reason)


def leading(at_s, scheduler, epoch) -> Leading:
    return Leading(at_s=at_s, scheduler=scheduler, epoch=epoch)


def test_an_acknowledged_task_that_a_scheduler_does_not_know_is_lost() -> None:
    submits = [submit(1), submit(2), submit(3)]
    assert list(history.lost(submits, {1: run(), 2: run(), 3: run()}, "a")) == []
    assert list(history.lost(submits, {1: run(), 3: run()}, "b")) == [
        "lost: 1 acknowledged tasks are unknown to b: task-2"
    ]


def test_two_submits_with_one_task_id_are_found() -> None:
    assert list(history.given_twice([submit(1), submit(1)])) == []  # the same key, acknowledged again
    (wrong,) = history.given_twice([submit(1), submit(1, key="other")])
    assert wrong.startswith("lost: 1 task ids were given to two submits: task-1")


def test_numbers_that_go_back_in_time_show_a_fork() -> None:
    """A new master that lacks the last groups gives their numbers again, or lower ones."""
    assert list(history.out_of_order([submit(1), submit(2), submit(3)])) == []
    forked = [submit(7, sent=1), submit(6, sent=2, by="b")]
    assert list(history.out_of_order(forked)) == [
        "forked: task 6 was submitted after task 7 was acknowledged"
    ]


def test_submits_at_the_same_time_may_have_any_order() -> None:
    together = [submit(7, sent=1, acknowledged=3), submit(6, sent=2, acknowledged=4)]
    assert list(history.out_of_order(together)) == []


def test_a_submit_that_was_repeated_counts_from_its_first_try() -> None:
    """Its group was committed by the old master; the new one only found the key."""
    repeated = [submit(6, sent=1, acknowledged=9, by="b"), submit(7, sent=2, acknowledged=2.1)]
    assert list(history.out_of_order(repeated)) == []


def test_two_runs_at_the_same_time_are_found() -> None:
    assert list(history.ran_twice([begin(1), end(1), begin(2), end(2)])) == []
    assert list(history.ran_twice([begin(1), begin(1, attempt=2, node="n2"), end(1), end(1)])) == [
        "doubled: task 1 began as attempt 2 on n2 while attempt 1 ran on n1"
    ]


def test_a_second_run_after_the_first_is_a_requeue() -> None:
    (wrong,) = history.ran_twice([begin(1), end(1), begin(1, attempt=2)])
    assert wrong == "requeued: task 1 had ended as attempt 1 and began again as attempt 2 on n1"


def test_a_task_that_failed_or_was_requeued_is_found() -> None:
    good = {
        1: run(),
        2: run("running"),
        3: run("pending", attempt=0),
        4: run("cancelled", attempt=0, name=HELD),
    }
    assert list(history.without_cause(good)) == []
    assert list(history.without_cause({5: run("failed", reason="node_lost")})) == [
        "failed: task 5 (chaos-run) is failed: node_lost"
    ]
    assert list(history.without_cause({6: run("running", attempt=2, name=LONG)})) == [
        "requeued: task 6 (chaos-long) is running in attempt 2"
    ]
    assert list(history.without_cause({7: run("cancelled")})) == [
        "failed: task 7 (chaos-run) is cancelled: no reason"
    ]
    assert list(history.without_cause({8: run("running", name=HELD)})) == [
        "failed: task 8 (chaos-held) is running: no reason"
    ]


def test_tasks_that_never_end_are_found() -> None:
    assert list(history.unfinished({1: run(), 2: run("pending", name=HELD)})) == []
    assert list(history.unfinished({3: run("pending")})) == ["stuck: 1 tasks did not end: task-3"]


def test_a_success_without_a_process_is_found() -> None:
    assert list(history.succeeded_without_a_run({1: run()}, [begin(1), end(1)])) == []
    (wrong,) = history.succeeded_without_a_run({1: run()}, [begin(1)])
    assert wrong.startswith("invented: 1 tasks")


def test_an_epoch_that_goes_back_is_found() -> None:
    assert list(history.epochs_go_back([leading(1, "a", 1), leading(2, "b", 2), leading(3, "a", 3)])) == []
    assert list(history.epochs_go_back([leading(1, "a", 3), leading(2, "b", 2)])) == [
        "epoch: b began to lead epoch 2 after epoch 3"
    ]


def test_two_masters_of_one_epoch_are_found() -> None:
    assert list(history.epochs_go_back([leading(1, "a", 3), leading(2, "b", 3)])) == [
        "epoch: a and b both led epoch 3"
    ]


def test_schedulers_that_show_different_tasks_have_diverged() -> None:
    assert list(history.differ({1: run()}, {1: run()})) == []
    assert list(history.differ({1: run()}, {1: run("running")})) == [
        "diverged: the schedulers differ in 1 tasks: task-1"
    ]
    assert list(history.differ({1: run()}, {})) != []


def test_a_failed_call_counts_only_within_the_fault() -> None:
    failed = [FailedCall(sent_s=1, failed_s=5, error="no master answers")]
    assert list(history.noticed(failed, 6, 9)) == []
    assert list(history.noticed(failed, 4, 9)) == [
        "noticed: 1 calls of the SDK failed, the first one with: no master answers"
    ]


def test_a_submit_without_a_majority_is_found() -> None:
    assert list(history.stored_without_majority([submit(1, sent=1, acknowledged=9)], 2, 8)) == []
    (wrong,) = history.stored_without_majority([submit(1, sent=3, acknowledged=4)], 2, 8)
    assert wrong.startswith("stored: 1 submits")


def read(sent_s, status, lag_ms=None, by="a") -> Read:
    return Read(sent_s=sent_s, answered_s=sent_s + 0.1, by=by, status=status, role="master", lag_ms=lag_ms)


def test_reads_of_a_stall_have_an_age_and_are_refused_when_they_are_too_old() -> None:
    good = [read(5, 200, 4_000), read(60, 503), read(5, 0, by="b"), read(200, 0)]
    assert list(history.reads_of_stall(good, "a", 1, 100)) == []
    for bad in (read(5, 0), read(5, 503), read(5, 200), read(60, 200, 59_000)):
        assert len(list(history.reads_of_stall([bad], "a", 1, 100))) == 1, bad
