"""A node of a RestWorld that answers calls of functions without running them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgpu.wire.proto import agent_pb2 as pb
from rest_world import Deaf, RestWorld


class FunctionAgent(Deaf):
    """A node whose workers are ready at once. `answers` says what a call returns: its arguments."""

    def __init__(self, world: RestWorld) -> None:
        self._world = world
        self._seq = 0
        self.calls: list[pb.Call] = []
        self.starts: list[pb.Start] = []
        self.answers: Callable[[pb.Call], pb.Returned | None] = lambda call: pb.Returned(
            lease_id=call.lease_id, outcome="returned", result=call.args or b"\xc0", encoding="msgpack"
        )

    def send(self, message: pb.FromScheduler) -> None:
        for start in message.orders.starts:
            self.starts.append(start)
            self.report(started=[pb.Started(lease_id=start.lease_id)])
            ready = pb.WorkerState(lease_id=start.lease_id, ready=True)
            self.say(pb.FromAgent(workers=pb.Workers(states=[ready])))
        self.calls += message.orders.calls
        returned = [told for call in message.orders.calls if (told := self.answers(call)) is not None]
        if returned:
            self.report(returned=returned)

    def report(self, **reports: Any) -> None:
        self._seq += 1
        self.say(pb.FromAgent(reports=pb.Reports(seq=self._seq, **reports)))

    def say(self, message: pb.FromAgent) -> None:
        loop = self._world.loop
        loop.call_soon_threadsafe(self._world.runtime.agent_said, self.connection_id, message)
