"""Questions about the future: the service answers small ones from its own state, the follower all others."""

from __future__ import annotations

from dgpu.core.state import ClusterState
from dgpu.service.follower.foresight import answer, is_small
from dgpu.service.follower.link import FollowerAway
from dgpu.service.rest.backend import Backend
from dgpu.wire.questions import Hastening, Question

_MAX_LAG_S = 1.0


async def ask_ahead(rest: Backend, question: Question, patience_s: float) -> bytes:
    """JSON, as `service.follower.foresight.answer` makes it. Raises FollowerAway."""
    now = rest.runtime.now_ms()

    def look(state: ClusterState) -> bytes | None:
        if not is_small(state, question):
            return None
        return bytes(answer(state, question, now, rest.runtime.committed_index))

    told = await rest.runtime.read(look)
    if told is not None:
        return told
    if rest.follower is None:
        raise FollowerAway
    if isinstance(question, Hastening) and rest.follower.lag_s > _MAX_LAG_S:
        raise FollowerAway  # it must read more of the journal first; `why` answers without it
    return await rest.follower.ask(question, at=now, patience_s=patience_s)
