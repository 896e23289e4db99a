"""With `isolation.users: none` or `auth.mode: none`, every view says that users are not kept apart."""

from __future__ import annotations

import pytest

from dgpu.cli.live.board import Board
from dgpu.wire.isolation import NOTICES

WHO = {"user": "ann", "role": "user", "tenants": ["lab"], "source": "token", "token_id": "t"}
VIEWS = (("whoami",), ("ps",), ("nodes",))


@pytest.mark.parametrize("verb", VIEWS)
@pytest.mark.parametrize("word", ["none", "open", "users", ""])
def test_a_view_tells_it_on_stderr(dgpu, server, verb, word):
    server.answers["GET", "/api/v1/whoami"] = (200, {**WHO, "isolation": word})
    server.answers["GET", "/api/v1/tasks"] = (200, {"total": 0, "tasks": []})
    server.answers["GET", "/api/v1/nodes"] = (200, {"total": 0, "nodes": [], "isolation": word})
    code, out, err = dgpu(*verb, "--server", server.url)
    assert code == 0
    assert [each for each, notice in NOTICES.items() if notice in err] == [word] * (word in {"none", "open"})
    assert not [notice for notice in NOTICES.values() if notice in out]


def test_machine_readable_output_needs_no_second_request(dgpu, server):
    server.answers["GET", "/api/v1/tasks"] = (200, {"total": 0, "tasks": []})
    assert dgpu("ps", "--json", "--server", server.url)[0] == 0
    assert not [path for _, path, _ in server.requests if "whoami" in path]


def test_the_live_screen_knows_it_from_the_board():
    columns = {"gpus": {"id": []}, "nodes": {"id": []}}
    assert Board({"seq": 1, "isolation": "none", **columns}).isolation == "none"
    assert Board({"seq": 1, **columns}).isolation == ""
