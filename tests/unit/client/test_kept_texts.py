"""Texts that the scheduler keeps as they are, without a code: steps of services, and why tasks ended."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

import dgpu
from dgpu.agent.output_files import _no_file
from dgpu.agent.spawn import no_directory
from dgpu.client import language
from dgpu.core.commands import ReportFinished
from dgpu.core.decide.endings import in_words
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.task import Outcome

SOURCES = pathlib.Path(dgpu.__file__).parent


@pytest.fixture(autouse=True)
def chinese(monkeypatch) -> None:
    monkeypatch.setattr(language, "language", lambda: "zh")


def test_steps_of_services_are_translated() -> None:
    """Each text that the core writes about a service has a pattern."""
    written = [*steps_in("rules/replicas.py"), *steps_in("decide/services.py")]
    assert len(written) >= 13
    for english in written:
        assert language.step_text(english) != english, f"no translation of {english!r}"
    assert language.step_text("something new") == "something new"


def steps_in(name: str) -> Iterator[str]:
    """The f-strings with fixed words that are given to `noted`, also through a variable `text`."""
    tree = ast.parse((SOURCES / "core" / name).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "noted":
            yield from filled(node.args[2])
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "text":
            yield from filled(node.value)


def filled(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else value_of(each) for each in node.values]
        text = "".join(parts)
        if not re.match(r"\d+ requests in progress", text):  # a part of the texts about another number
            yield text


def value_of(node: ast.expr) -> str:
    said = ast.unparse(node.value) if isinstance(node, ast.FormattedValue) else ""
    if "'not ready'" in said:
        return "not ready"
    if "_why_failed" in said:
        return "not ready for 7 s"
    return "3 requests in progress, 2 per replica" if said == "text" else "7"


@pytest.mark.parametrize("outcome", sorted(Outcome))
def test_ends_of_attempts_are_translated(outcome) -> None:
    class Limited:
        timeout_ms = 60_000

    for error in ("", "it said so"):
        report = ReportFinished(lease_id=LeaseId(1), outcome=outcome, exit_code=3, signal=9, error=error)
        english = in_words(Limited(), report)
        assert no_words(language.error_text(english).replace("it said so", "").replace("SIGKILL", "")), (
            english
        )


def test_causes_of_the_keeper_are_translated_also_as_parts() -> None:
    found = {text for path in (SOURCES / "agent").rglob("*.py") for text in causes_in(path)}
    assert len(found) >= 8
    for english in [
        *found,
        no_directory("/x", "Permission denied").error,
        _no_file("/x", "Is a directory").error,
    ]:
        for told in (english, f"could not be started: {english}"):
            assert language.error_text(told) != told, f"no translation of {english!r}"
    whole = language.error_text(
        f"could not be started: {no_directory('/data', 'No such file or directory').error}"
    )
    assert "/data" in whole
    assert no_words(whole.replace("/data", "").split("-w DIR")[0].strip()), whole


def test_texts_of_programs_stay_and_ends_use_the_translation() -> None:
    assert language.error_text("ValueError: no luck") == "ValueError: no luck"
    assert "ValueError: no luck" in (said := language.error_text("raised an exception: ValueError: no luck"))
    assert "exception" not in said
    killed = {"error": "killed by signal 9 (SIGKILL)"}
    assert language.told("ended", "signal", killed, "english") == language.error_text(killed["error"])


def no_words(text: str) -> bool:
    return not re.search(r"[A-Za-z]{2,}", text.replace("GPU", ""))


def causes_in(path: pathlib.Path) -> Iterator[str]:
    """Third arguments of CannotStart with words of their own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "CannotStart" and len(node.args) == 3:
            cause = node.args[2]
            text = (
                next(filled(cause), "") if isinstance(cause, ast.JoinedStr) else getattr(cause, "value", "")
            )
            if (
                isinstance(text, str)
                and "help_text" not in ast.unparse(cause)
                and len(re.findall("[a-z]{2,}", text)) > 1
            ):
                yield text
