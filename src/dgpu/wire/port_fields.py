"""TCP ports of tasks: the field of a submit, and the variables that name them to the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgpu.wire.fields import Unacceptable, whole

MAX_PORT = 65_535
MAX_PORTS = 8  # of one task

FIRST_PORT_VARIABLE = "DGPU_PORT"

port = whole(1, MAX_PORT)


def ports(value: Any) -> tuple[int, ...]:
    if type(value) is not list or len(value) > MAX_PORTS:
        raise Unacceptable(f"a list of at most {MAX_PORTS} port numbers, like [8888]")
    for number, each in enumerate(value):
        try:
            port(each)
        except Unacceptable:
            expected = f"a port number from 1 to {MAX_PORT}"
            raise Unacceptable(expected, at=f"[{number}]", value=each) from None
        if each in value[:number]:
            raise Unacceptable("each port once", at=f"[{number}]", value=each)
    return tuple(value)


def port_variables(given: Mapping[int, int]) -> dict[str, str]:
    """`given`: for each port of the task, in its order, the port of the node."""
    if not given:
        return {}
    variables = {f"{FIRST_PORT_VARIABLE}_{asked}": str(node_port) for asked, node_port in given.items()}
    return {FIRST_PORT_VARIABLE: str(next(iter(given.values()))), **variables}
