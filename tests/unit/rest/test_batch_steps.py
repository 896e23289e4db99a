"""A batch is decoded in steps, so that other requests get their turn."""

from __future__ import annotations

import json

from dgpu.wire import requests
from dgpu.wire.requests import Entries


def decode_batch(body: bytes) -> Entries:
    decoding = requests.decode_batch(body)
    while True:
        try:
            next(decoding)
        except StopIteration as done:
            return done.value


def test_a_large_batch_is_decoded_in_steps() -> None:
    """Each step leaves the loop to other requests."""
    tasks = [{"command": "x"}] * (3 * requests.TASKS_PER_STEP)
    assert len(list(requests.decode_batch(json.dumps({"tasks": tasks}).encode()))) == 3
