"""The follower's part in forecasts: what is kept of predictions, and how they are scored."""

from __future__ import annotations

import sqlite3

import pytest

from building import cluster, do, finished, node, run_pass, task
from dgpu.core.commands import CancelTasks, Command, ReportStarted, RunPass
from dgpu.core.foresight.forecast import Prediction
from dgpu.core.model.task import Pool
from dgpu.core.state import ClusterState
from dgpu.service.follower.forecaster import FORECASTS_NAME, Forecaster
from dgpu.service.follower.forecasts import Forecasts, Foretold

MINUTE = 60_000


def waiting_task() -> ClusterState:
    state = cluster(node("n1"), task(timeout_ms=MINUTE), task(timeout_ms=MINUTE))
    run_pass(state)
    do(state, ReportStarted(lease_id=1))
    return state


def follow(forecaster: Forecaster, state: ClusterState, command: Command, at: int | None = None) -> None:
    for event in do(state, command, at):
        forecaster.note(event)


def rows(directory) -> list[tuple]:
    with sqlite3.connect(directory / FORECASTS_NAME) as connection:
        query = "SELECT task_id, p50_at, started_at, error_ms FROM predictions ORDER BY task_id, made_at"
        return connection.execute(query).fetchall()


def test_a_prediction_is_kept_and_scored_when_the_task_starts(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path), waiting_task()
    told = forecaster.make(state, index=5)
    expected_at = state.last_at + MINUTE + 11_000
    assert told.predictions == (Prediction(2, expected_at, expected_at),)
    assert (told.index, told.median_error_ms) == (5, None)
    # It ends half a minute early, so the guess was off by as much.
    follow(forecaster, state, finished(1), at=expected_at - 30_000)
    follow(forecaster, state, RunPass(), at=expected_at - 30_000)
    told = forecaster.make(state, index=6)
    assert (told.predictions, told.median_error_ms) == ((), 30_000)
    assert rows(tmp_path) == [(2, expected_at, expected_at - 30_000, -30_000)]
    forecaster.close()
    assert Forecaster(tmp_path).median_error_ms == 30_000  # also after a restart


def test_what_was_predicted_before_a_restart_is_scored_after_it(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path), waiting_task()
    expected_at = forecaster.make(state, index=1).predictions[0].p50_at
    forecaster.close()
    again = Forecaster(tmp_path)
    follow(again, state, finished(1), at=expected_at)
    follow(again, state, RunPass(), at=expected_at + 7)
    again.make(state, index=2)
    assert again.median_error_ms == 7


def test_a_replay_of_earlier_starts_scores_nothing(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path), waiting_task()
    earlier = do(cluster(node("n1"), task(count=2)), RunPass(), at=state.last_at - 5)
    forecaster.make(state, index=1)
    for event in earlier:
        forecaster.note(
            type(event)(**{**{f: getattr(event, f) for f in event.__struct_fields__}, "task_id": 2})
        )
    forecaster.make(state, index=2)
    assert forecaster.median_error_ms is None
    assert [row[2] for row in rows(tmp_path)] == [None]


def test_a_prediction_of_a_task_that_is_cancelled_goes_without_a_score(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path), waiting_task()
    forecaster.make(state, index=1)
    follow(forecaster, state, CancelTasks(task_ids=(2,)))
    told = forecaster.make(state, index=2)
    assert (told.predictions, told.median_error_ms, rows(tmp_path)) == ((), None, [])
    assert forecaster.make(state, index=3) is None  # nothing was said before, and nothing is to be said


def test_a_prediction_is_kept_again_only_when_it_moved(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path), waiting_task()
    forecaster.make(state, index=1)
    forecaster.make(state, index=2)
    assert len(rows(tmp_path)) == 1
    follow(forecaster, state, task(priority=90, timeout_ms=10 * MINUTE))
    forecaster.make(state, index=3)
    assert [row[0] for row in rows(tmp_path)] == [2, 2, 3]


def test_it_rests_until_something_happens(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path), waiting_task()
    assert forecaster.is_due(7, now_s=0.0)
    forecaster.make(state, index=7)
    assert not forecaster.is_due(7, now_s=1e12)
    assert not forecaster.is_due(8, now_s=0.0)
    assert forecaster.is_due(8, now_s=forecaster.due_s)


def test_a_damaged_file_costs_the_score_only(tmp_path) -> None:
    (tmp_path / FORECASTS_NAME).write_bytes(b"not a database" * 100)
    forecaster = Forecaster(tmp_path)
    assert forecaster.make(waiting_task(), index=1) is not None
    assert len(rows(tmp_path)) == 1


@pytest.mark.parametrize("suffixes", [("",), ("", "-wal", "-shm")])
def test_a_file_that_is_deleted_meanwhile_is_made_again_with_what_still_waits(tmp_path, suffixes) -> None:
    said: list[str] = []
    forecaster, state = Forecaster(tmp_path, said.append), waiting_task()
    expected_at = forecaster.make(state, index=1).predictions[0].p50_at
    for suffix in suffixes:
        (tmp_path / f"{FORECASTS_NAME}{suffix}").unlink()
    forecaster.make(state, index=2)  # nothing new to keep, and still
    assert rows(tmp_path) == [(2, expected_at, None, None)]
    assert (tmp_path / FORECASTS_NAME).stat().st_mode & 0o777 == 0o600
    follow(forecaster, state, finished(1), at=expected_at)
    follow(forecaster, state, RunPass(), at=expected_at + 7)
    forecaster.make(state, index=3)
    assert [row[3] for row in rows(tmp_path)] == [7]
    assert len(said) == 1


def test_a_file_that_is_damaged_meanwhile_is_made_again(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path), waiting_task()
    forecaster.make(state, index=1)
    for order in ("wal_checkpoint(TRUNCATE)", "shrink_memory"):  # so that it has to read the file
        forecaster._connection.execute(f"PRAGMA {order}").fetchall()
    with (tmp_path / FORECASTS_NAME).open("r+b") as file:
        file.write(b"not a database" * 2_000)
    follow(forecaster, state, task(priority=90, timeout_ms=10 * MINUTE))
    for index in (2, 3):
        forecaster.make(state, index=index)
    assert [row[0] for row in rows(tmp_path)] == [2, 2, 3]


def test_a_directory_that_could_not_be_written_is_tried_again(tmp_path) -> None:
    forecaster, state = Forecaster(tmp_path / "later"), waiting_task()
    assert forecaster.make(state, index=1) is not None
    (tmp_path / "later").mkdir()
    forecaster.make(state, index=2)
    assert len(rows(tmp_path / "later")) == 1


def test_the_service_keeps_the_latest_and_a_time_that_passed_becomes_now() -> None:
    forecasts = Forecasts()
    assert forecasts.expected(2, now=0) is None
    forecasts.take(
        Foretold(index=3, at=1_000, predictions=(Prediction(2, 5_000, 9_000),), median_error_ms=1_500)
    )
    told = forecasts.expected(2, now=6_000)
    assert (told.p50, told.p90) == ("1970-01-01T00:00:06.000Z", "1970-01-01T00:00:09.000Z")
    assert told.median_error_seconds == 1.5
    assert told.age_seconds >= 0
    assert forecasts.expected(3, now=0) is None


def test_what_came_after_the_latest_forecast_was_not_looked_at_yet() -> None:
    forecasts = Forecasts()
    assert not forecasts.knows(1)
    forecasts.take(Foretold(index=3, at=1_000, predictions=()))
    assert forecasts.knows(1_000)
    assert not forecasts.knows(1_001)


def test_a_look_that_can_say_nothing_about_who_waits_is_told_all_the_same(tmp_path) -> None:
    """Else nobody could tell a task that was looked at in vain from one that was not looked at."""
    endless = cluster(node("n1"), task(pool=Pool.ONLINE), task(pool=Pool.ONLINE))
    run_pass(endless)
    do(endless, ReportStarted(lease_id=1))
    told = Forecaster(tmp_path).make(endless, index=1)
    assert told is not None
    assert told.predictions == ()
    assert Forecaster(tmp_path).make(cluster(node("n1")), index=1) is None
