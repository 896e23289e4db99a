"""Who is at the other end of a stream, and the nodes it may act for."""

from __future__ import annotations

import msgspec

from dgpu.wire.machines import MachineNames


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Without a certificate, a caller that is let in may act for every node: it is a user of this machine."""

    names: MachineNames | None = None

    def why_not_for(self, node_id: str) -> str:
        """Why it may not act for this node; empty: it may."""
        if self.names is None or node_id in self.names.nodes:
            return ""
        return f"the certificate does not name node {node_id[:128]!r}"

    @property
    def join_id(self) -> str:
        return "" if self.names is None else self.names.join_id


class Refused(Exception):  # noqa: N818 - it says what happened
    """The call is refused; the text is for the caller."""
