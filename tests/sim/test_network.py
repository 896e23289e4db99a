"""The simulated network keeps what TCP keeps."""

from __future__ import annotations

from dgpu.sim.network import Connection, Network
from dgpu.sim.world import World
from dgpu.wire.proto.agent_pb2 import FromAgent, Heartbeat


class Hearer:
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.broken = 0

    def on_message(self, _connection: Connection, content: bytes) -> None:
        self.heard.append(FromAgent.FromString(content).heartbeat.seq)

    def on_broken(self, _connection: Connection) -> None:
        self.broken += 1


def test_messages_of_one_connection_arrive_in_order_also_after_a_partition() -> None:
    """A partition that ended between two retransmissions let later messages overtake earlier ones."""
    for seed in range(50):
        world = World(seed)
        network = Network(world)
        scheduler = Hearer()
        connection = network.connect("n1", Hearer(), scheduler)

        def send(seq: int, connection: Connection = connection) -> None:
            connection.send_up(FromAgent(heartbeat=Heartbeat(seq=seq)))

        for seq in range(100):
            world.at(seq * 37, lambda seq=seq: send(seq))  # type: ignore[misc]
        world.at(world.between(0, 1_000), lambda network=network: network.cut_off("n1"))  # type: ignore[misc]
        world.at(world.between(1_000, 3_000), lambda network=network: network.heal("n1"))  # type: ignore[misc]
        world.at(3_700, lambda connection=connection: connection.close("agent"))  # type: ignore[misc]
        world.run_until(10_000)
        assert scheduler.heard == list(range(100))
        assert scheduler.broken == 1
