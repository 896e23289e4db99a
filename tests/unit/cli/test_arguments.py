"""What people type, and what is said when it makes no sense."""

from __future__ import annotations

import pytest
import typer

from dgpu.cli import arguments


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("2h", 7_200),
        ("1d", 86_400),
        ("1h30m", 5_400),
        ("1.5h", 5_400),
        ("0.5s", 0.5),
        (" 2H ", 7_200),
        ("2:00:00", 7_200),
        ("0:00:30", 30),
        ("100:00:00", 360_000),
        ("1-12:00:00", 129_600),
    ],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert arguments.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "0", "soon", "-5", "1h30", "5x", "1e9", "99999d", "m", "1 h", "NaN", "2:00", "1:60:00", "0:00:00"],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(typer.BadParameter):
        arguments.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        ("8000", 8_000),
        ("8000M", 8_000),
        ("8G", 8_192),
        ("8GiB", 8_192),
        ("0.5g", 512),
        ("1T", 1 << 20),
        ("0", 0),
    ],
)
def test_memory_is_megabytes_unless_a_unit_says_otherwise(text, megabytes):
    assert arguments.parse_memory_mb(text) == megabytes


@pytest.mark.parametrize("text", ["", "much", "-1", "8X", "1k", "99999999T", "8 G B"])
def test_what_is_no_amount_of_memory_is_refused(text):
    with pytest.raises(typer.BadParameter):
        arguments.parse_memory_mb(text)


@pytest.mark.parametrize("text", ["16", "1", "511", " 80 "])
def test_a_small_number_without_a_unit_is_refused_with_both_readings(text):
    with pytest.raises(typer.BadParameter) as refused:
        arguments.parse_plain_memory_mb(text)
    number = text.strip()
    assert f"write {number}G, or {number}M" in refused.value.message


@pytest.mark.parametrize(("text", "megabytes"), [("16M", 16), ("16G", 16_384), ("512", 512), ("0", 0)])
def test_a_number_with_a_unit_or_a_large_one_is_taken(text, megabytes):
    assert arguments.parse_plain_memory_mb(text) == megabytes


def test_ids_come_with_or_without_their_prefix_and_once_each():
    assert arguments.parse_ids(["7", "task-9", "task-7"]) == ["task-7", "task-9"]


@pytest.mark.parametrize("text", ["", "task-", "0", "-1", "3-7", "seven", "7/../8", "task-7\n", "\u0661"])
def test_what_is_no_id_is_refused_before_anything_is_asked(text):
    with pytest.raises(typer.BadParameter):
        arguments.parse_ids([text])


def test_a_level_and_a_number_are_priorities():
    assert arguments.parse_priority("High") == "high"
    assert arguments.parse_priority("70") == 70
    with pytest.raises(typer.BadParameter):
        arguments.parse_priority("very high!")


def test_a_name_alone_takes_the_value_it_has_here():
    assert arguments.parse_env(["A=1", "B", "C="], {"B": "two"}) == {"A": "1", "B": "two", "C": ""}


@pytest.mark.parametrize("entry", ["=1", "1A=2", "A B=1", "MISSING", ""])
def test_what_is_no_variable_is_refused(entry):
    with pytest.raises(typer.BadParameter):
        arguments.parse_env([entry], {})


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["python", "train.py", "--lr", "3"], ["python", "train.py", "--lr", "3"]),
        (["true"], ["true"]),
        (["./run.sh"], ["./run.sh"]),
        (["make data && make"], "make data && make"),
        (["echo $HOME"], "echo $HOME"),
        (["echo", "a b"], ["echo", "a b"]),
    ],
)
def test_only_a_single_text_with_signs_in_it_goes_to_the_shell(words, command):
    assert arguments.parse_command(words) == command


def test_a_dependency_may_say_which_end_it_waits_for():
    assert arguments.parse_after(["7", "task-8:any", "9:failed"]) == [
        "task-7",
        {"task_id": "task-8", "when": "any"},
        {"task_id": "task-9", "when": "failed"},
    ]


@pytest.mark.parametrize("text", ["7:maybe", "7:", ":ok", "x", "7:ok:any"])
def test_what_is_no_dependency_is_refused(text):
    with pytest.raises(typer.BadParameter):
        arguments.parse_after([text])
