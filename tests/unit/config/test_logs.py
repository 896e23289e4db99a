from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from dgpu.entry.config_types import Logging
from dgpu.entry.logs import set_up_logging

SECRET = "dgpu_s3cr3t-t0ken"


@pytest.fixture(autouse=True)
def undo() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    for line_writer in root.handlers[:]:
        if line_writer not in before:
            line_writer.close()
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def written(tmp_path: Path, form: str = "json", level: str = "info"):
    path = tmp_path / "sub" / "log"
    set_up_logging(Logging(format=form, level=level, output=str(path)))
    return path


def test_a_json_line_has_time_level_event_and_the_fields(tmp_path: Path) -> None:
    path = written(tmp_path)
    structlog.get_logger("dgpu").info("task_submitted", task="task-1", gpus=2)
    line = json.loads(path.read_text())
    assert line["event"] == "task_submitted"
    assert (line["level"], line["task"], line["gpus"]) == ("info", "task-1", 2)
    assert line["time"].endswith("Z")


def test_a_text_line_is_one_line_whatever_a_name_holds(tmp_path: Path) -> None:
    path = written(tmp_path, "text")
    forged = "x\n2024-01-01 info agent_offline node=n1\x1b[31m"
    structlog.get_logger("dgpu").info("task_submitted", name=forged, gpus=2)
    logging.getLogger("lib").warning("it said %s", forged)
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert "task_submitted name=" in lines[0]
    assert "\x1b" not in path.read_text()


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_never_reach_a_line(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    log = structlog.get_logger("dgpu")
    log.info("a", token=SECRET, authorization=f"Bearer {SECRET}", env={"KEY": SECRET}, api_token=SECRET)
    log.info(
        "b", request={"headers": {"Authorization": SECRET, "x": [{"password": SECRET}]}, "env": [SECRET]}
    )
    log.info("c", said=f"Authorization: Bearer {SECRET}")
    logging.getLogger("lib").warning("header was Bearer %s", SECRET)
    text = path.read_text()
    assert SECRET not in text
    assert text.count("\n") == 4
    assert "[hidden]" in text


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, level="warning")
    structlog.get_logger("dgpu").info("task_submitted")
    logging.getLogger("lib").info("chatter")
    structlog.get_logger("dgpu").warning("agent_offline")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["agent_offline"]


def test_an_exception_is_told_with_its_trace(tmp_path: Path) -> None:
    path = written(tmp_path)
    try:
        int("boom")
    except ValueError:
        structlog.get_logger("dgpu").exception("command_failed")
    assert "ValueError: invalid literal" in json.loads(path.read_text())["exception"]


def test_a_very_long_value_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path)
    structlog.get_logger("dgpu").info("a", error="x" * 1_000_000)
    assert len(path.read_text()) < 5_000


def test_values_that_json_does_not_know_are_written_as_text(tmp_path: Path) -> None:
    path = written(tmp_path)
    structlog.get_logger("dgpu").info("a", path=Path("/x"), error=ValueError("no"))
    assert json.loads(path.read_text())["path"] == "/x"


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = written(tmp_path)
    structlog.get_logger("dgpu").info("a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("form", ["json", "text"])
def test_bytes_that_are_no_text_do_not_stop_who_tells_of_them(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    name = os.fsdecode(b"disk\xff")
    structlog.get_logger("dgpu").info("probe_failed", error=name, files=[name])
    structlog.get_logger("dgpu").error("command_failed", exc_info=ValueError(name))
    told = path.read_text()
    assert told.count("probe_failed") == 1
    assert "disk\\udcff" in told
    assert "ValueError: disk\\udcff" in told.replace("\\\\", "\\")


def test_a_log_that_could_not_be_opened_for_a_while_is_written_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    log = structlog.get_logger("dgpu")
    log.info("first")
    path.parent.rename(tmp_path / "away")
    log.info("lost")
    path.parent.mkdir()
    log.info("second")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["second"]
