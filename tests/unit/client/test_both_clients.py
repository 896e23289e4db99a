"""`Client` and `AsyncClient` offer the same calls, with the same parameters, documentation and types."""

from __future__ import annotations

import inspect
import pathlib
import pydoc
import subprocess
import sys
import textwrap
import typing

import pytest

from dgpu.client import AsyncClient, Client
from dgpu.client.calls import Calls
from dgpu.wire import answers

ROOT = pathlib.Path(__file__).parents[3]
# Each client has connections of its own kind.
OWN = {"close"}
ITERATORS = {"list", "files", "stream_logs", "download", "events", "board_events"}


def calls_of(client: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(client, callable) if not name.startswith("_")}


NAMES = sorted(set(calls_of(Client)) - OWN)


def test_both_clients_have_the_same_calls() -> None:
    assert set(NAMES) == set(calls_of(AsyncClient)) - OWN
    assert {"submit", "wait", "gpus", "alerts", "usage", "file_page"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_has_one_signature_and_one_description(name) -> None:
    blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(blocking).parameters == inspect.signature(awaited).parameters
    assert inspect.getdoc(blocking)
    assert inspect.getdoc(blocking) == inspect.getdoc(awaited)
    if name not in ITERATORS:
        assert inspect.iscoroutinefunction(awaited)
        assert not inspect.iscoroutinefunction(blocking)
        assert typing.get_type_hints(blocking)["return"] == typing.get_type_hints(awaited)["return"]


@pytest.mark.parametrize("name", sorted(name for name in dir(Calls) if not name.startswith("_")))
def test_each_call_of_the_table_is_described(name) -> None:
    assert inspect.getdoc(getattr(Client, name))


def test_help_shows_parameters_and_answer() -> None:
    """The answer, not the request that the definition returns."""
    assert typing.get_type_hints(Client.get) == {"task_id": str | int, "return": answers.TaskAnswer}
    assert typing.get_type_hints(Client.submit_copies)["return"] == list[str]
    text = pydoc.plain(pydoc.render_doc(Client))
    assert "set_priority(self, task_id:" in text
    assert "Changes the priority of a waiting task, or" in text
    assert "Request" not in text
    assert "async set_priority(self, task_id:" in pydoc.plain(pydoc.render_doc(AsyncClient))


USE = """
    from dgpu.client import AsyncClient, Client

    def blocking(client: Client) -> None:
        reveal_type(client.submit(command="x", gpu_count=1))
        reveal_type(client.submit_copies(2, command="x"))
        reveal_type(client.task_events("task-1"))
        reveal_type(client.remove_node("n1"))
        reveal_type(client.drain)
        client.submit(gpu_count="one")
        client.submit(gpus=1)
        client.get()

    async def awaited(client: AsyncClient) -> None:
        reveal_type(await client.submit(command="x", gpu_count=1))
        reveal_type(await client.submit_copies(2, command="x"))
        reveal_type(await client.task_events("task-1"))
        reveal_type(await client.remove_node("n1"))
        reveal_type(client.drain)
        await client.submit(gpu_count="one")
        await client.submit(gpus=1)
        client.submit(command="x")
    """

NODE_ANSWER = "dgpu.wire.cluster_answers.NodeAnswer"
FOUND = f"""
    5: note: Revealed type is "dgpu.wire.answers.Submitted"
    6: note: Revealed type is "list[str]"
    7: note: Revealed type is "typing.Sequence[dgpu.wire.answers.TaskEvent]"
    8: note: Revealed type is "None"
    9: note: Revealed type is "def (node_id: str, *, reason: str =) -> dgpu.wire.cluster_answers.NodeAnswer"
    10: error: Argument "gpu_count" has incompatible type "str"; expected "int"  [arg-type]
    11: error: Unexpected keyword argument "gpus"  [call-arg]
    12: error: Too few arguments  [call-arg]
    15: note: Revealed type is "dgpu.wire.answers.Submitted"
    16: note: Revealed type is "list[str]"
    17: note: Revealed type is "typing.Sequence[dgpu.wire.answers.TaskEvent]"
    18: note: Revealed type is "None"
    19: note: Revealed type is "def (node_id: str, *, reason: str =) -> typing.Coroutine[Any, Any, {NODE_ANSWER}]"
    20: error: Argument "gpu_count" has incompatible type "str"; expected "int"  [arg-type]
    21: error: Unexpected keyword argument "gpus"  [call-arg]
    22: error: Value of type "Coroutine[Any, Any, Submitted]" must be used  [unused-coroutine]
    22: note: Are you missing an await?
    """


def test_type_checkers_know_parameters_and_answers(tmp_path) -> None:
    """A wrong field, or a call that nobody awaits, must show before the program runs."""
    user = tmp_path / "user.py"
    user.write_text(textwrap.dedent(USE))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(user)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = [line.partition("user.py:")[2] for line in done.stdout.splitlines() if "user.py:" in line]
    assert found == textwrap.dedent(FOUND).strip().splitlines(), done.stdout + done.stderr
