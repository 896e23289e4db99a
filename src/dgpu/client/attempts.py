"""The schedulers of a client, and the attempts of one call. No I/O, so both clients share it.

A read goes to the scheduler that answered last. Any other call goes to the master, which answers name in a header or
in a refusal. An attempt that fails moves on to the next address at once; after a round over all addresses there is a
pause. Credentials go only to addresses that the user gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from dgpu.client import repeats
from dgpu.client.errors import NO_HTTP, NotMaster, Unreachable, why_unreachable
from dgpu.client.server import Server, checked_url

CONNECT_SECONDS = (
    3.0  # with several addresses: a machine that vanished must not use up the time of the others
)
FIRST_ROUND_SECONDS = 5.0  # a scheduler that is paused accepts connections and says nothing
MASTER = "master"
STANDBY = "standby"
_MAX_ROUNDS = 10_000  # while no master is elected; the time limit of the call ends it long before
_LEAST_SECONDS = 0.001
# Of a scheduler that has just lost the lead. Like a standby, it asks for a pause of a whole second, the least that the
# header can say. A hand-over is done sooner, so the client's own pauses count, which begin short and double.
_OUTCOME_UNKNOWN = b'"outcome_unknown"'


class Answer(NamedTuple):
    """The answer of one scheduler."""

    status: int
    body: bytes
    role: str = ""  # empty: an older scheduler, or no scheduler at all
    lag_ms: int = 0  # age of a standby's data
    asked_seconds: int = 0  # the pause that the scheduler asks for


def answer_of(status: int, body: bytes, header: Callable[[str], str | None]) -> Answer:
    lag = header("Dgpu-Lag-Ms") or ""
    return Answer(
        status=status,
        body=body,
        role=header("Dgpu-Role") or "",
        lag_ms=int(lag) if lag.isascii() and lag.isdigit() else 0,
        asked_seconds=repeats.asked_seconds(header("Retry-After")),
    )


class Failure(NamedTuple):
    """No answer."""

    error: BaseException
    was_sent: bool  # True: the request may have been carried out
    is_http: bool = True


class AnsweredBy(NamedTuple):
    url: str
    role: str  # master, standby, or empty if the scheduler did not tell
    lag_ms: int  # age of a standby's data


class Turn(NamedTuple):
    """The next attempt."""

    server: Server
    timeout_seconds: float
    connect_seconds: float


class Schedulers:
    """All calls of a client share it. Threads may use it at once: each attribute is replaced as a whole."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = tuple(servers)
        self.current = self.servers[0]
        self.master: Server | None = None
        self.answered_by: AnsweredBy | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self.servers)

    def in_order(self, *, is_read: bool) -> list[Server]:
        first = self.current if is_read or self.master is None else self.master
        return [first, *(server for server in self.servers if server is not first)]

    def named(self, url: str) -> Server | None:
        """The given address that is equal to this one; None: the user did not give it."""
        wanted = _address(url)
        return next((server for server in self.servers if _address(server.url) == wanted), None)

    def on_answer(self, server: Server, answer: Answer) -> None:
        self.current = server
        self.answered_by = AnsweredBy(server.url, answer.role, answer.lag_ms)
        if answer.role == MASTER:
            self.master = server
        elif answer.role == STANDBY:
            self.on_no_master(server)

    def on_no_master(self, server: Server) -> None:
        if self.master is server:
            self.master = None


class Attempts:
    """The attempts of one call.

    The caller makes the attempt of `next`, and reports it by `on_answer` or `on_failure`. Both return the final answer,
    or the pause before the next attempt.
    """

    def __init__(
        self,
        schedulers: Schedulers,
        *,
        is_read: bool,
        is_repeatable: bool,
        retries: int,
        timeout_seconds: float,
        now: float,
    ) -> None:
        self._schedulers = schedulers
        self._is_read = is_read
        self._is_repeatable = is_repeatable
        self._until = now + timeout_seconds
        # Only if another round can follow: a scheduler that needs longer gets the rest of the time then.
        self._is_brief = is_repeatable and retries > 0 and len(schedulers.servers) > 1
        self._pauses = repeats.pauses(retries)
        self._pauses_of_election = repeats.pauses(_MAX_ROUNDS)
        self._reasons: dict[str, str] = {}  # of the last whole attempt at each address
        self._begin_round()

    def _begin_round(self) -> None:
        self._round = self._schedulers.in_order(is_read=self._is_read)
        self._server = self._round[0]
        self._best: tuple[Server, Answer] | None = None  # final, if no other scheduler has a better one
        self._masters: list[str] = []  # named by standbys; empty: none is elected
        self._failures = 0
        self._asked_seconds = 0

    def next(self, now: float) -> Turn:
        """The time left is shared by the rest of the round, so that one silent scheduler cannot use all of it. The
        first round of a call that may be repeated gives each scheduler a few seconds only.
        """
        self._server = self._round.pop(0)
        seconds = max(_LEAST_SECONDS, self._until - now) / (1 + len(self._round))
        if self._is_brief:
            seconds = min(seconds, FIRST_ROUND_SECONDS)
        is_only = len(self._schedulers.servers) == 1
        return Turn(self._server, seconds, seconds if is_only else min(seconds, CONNECT_SECONDS))

    def on_answer(self, answer: Answer, now: float) -> Answer | float:
        if (master := _master_named(answer)) is not None:
            return self._on_standby(master, now)
        if repeats.is_worth_repeating(answer.status, answer.body) and self._is_repeatable:
            self._reasons[self._server.url] = f"answered {answer.status}"
            if _OUTCOME_UNKNOWN not in answer.body:
                self._asked_seconds = max(self._asked_seconds, answer.asked_seconds)
            self._best = self._server, answer
            if answer.status == 429:
                self._round.clear()  # only the master knows the keys
            return self._go_on(now, None)
        if answer.status == 404 and answer.role == STANDBY and self._round:
            self._best = self._server, answer  # it may lag behind: the others may know the thing
            return 0.0
        return self._final(self._server, answer)

    def on_failure(self, failure: Failure, now: float) -> Answer | float:
        """Raises Unreachable if no attempt is left, or if another one could do the thing twice."""
        self._schedulers.on_no_master(self._server)
        reason = why_unreachable(failure.error, is_http=failure.is_http)
        if now < self._until:
            self._reasons[self._server.url] = reason
        else:  # the end of the call cut the attempt short: an earlier reason says more
            self._reasons.setdefault(self._server.url, reason)
        self._failures += 1
        if failure.was_sent and not self._is_repeatable:
            raise self._unreachable(
                "It is not known whether the request was carried out. It is not sent again: that could do it twice."
            ) from failure.error
        return self._go_on(now, failure)

    def _on_standby(self, master: str, now: float) -> Answer | float:
        self._schedulers.on_no_master(self._server)
        self._masters.append(master)
        self._reasons[self._server.url] = f"standby; the master is {master}" if master else "standby"
        known = self._schedulers.named(master) if master else None
        if known is not None and known in self._round:
            self._round.remove(known)
            self._round.insert(0, known)
        return self._go_on(now, None)

    def _go_on(self, now: float, failure: Failure | None) -> Answer | float:
        if self._round and now < self._until:
            return 0.0
        if self._best is not None and self._best[1].status == 404:
            return self._final(*self._best)
        self._check_named()
        pause = next(self._pauses, None)
        if pause is None and self._masters:
            pause = next(self._pauses_of_election, None)  # standbys answer: a master will be elected soon
        if pause is not None:
            pause = max(pause, self._asked_seconds)
        if pause is None or pause > repeats.MAX_RETRY_AFTER_SECONDS or now + pause >= self._until:
            if self._best is not None:
                return self._final(*self._best)
            raise self._unreachable() from (failure.error if failure else None)
        self._is_brief = False
        self._begin_round()
        return pause

    def _final(self, server: Server, answer: Answer) -> Answer:
        self._schedulers.on_answer(server, answer)
        return answer

    def _check_named(self) -> None:
        """Raises if all addresses are standbys of a master that the user did not give: waiting cannot help."""
        if self._failures or self._best is not None:
            return
        unknown = [master for master in self._masters if master and self._schedulers.named(master) is None]
        if unknown and len(unknown) == len(self._masters):
            urls = self._schedulers.urls
            are = "is a standby" if len(urls) == 1 else "are standbys"
            raise NotMaster(
                f"{', '.join(urls)} {are}. The master is {unknown[-1]}, which is not one of the given addresses; "
                f"credentials are not sent to it. Add it to the addresses: {','.join((*urls, unknown[-1]))}"
            )

    def _unreachable(self, remark: str = "") -> Unreachable:
        tried = [f"{url} ({why})" for url, why in self._reasons.items()]
        if len(self._schedulers.servers) > 1:
            text = f"No {'scheduler answers' if self._is_read else 'master answers'}: {', '.join(tried)}."
        elif self._masters:
            text = f"{self._server.url} is a standby, and no master is elected."
        elif NO_HTTP in self._reasons.values():
            text = f"The server at {self._server.url} {NO_HTTP}: it is not the HTTP port of a scheduler."
        else:
            text = f"No scheduler answers at {tried[0]}."
        return Unreachable(f"{text} {remark}".rstrip())


class _NotMaster(msgspec.Struct, frozen=True):
    code: str = ""
    master: str = ""


def _master_named(answer: Answer) -> str | None:
    """None: this answer is not the refusal of a standby. Empty: no master is elected."""
    if answer.status != 503 or b'"not_master"' not in answer.body:
        return None
    try:
        refusal = msgspec.json.decode(answer.body, type=_NotMaster)
    except msgspec.MsgspecError:
        return None
    if refusal.code != "not_master":
        return None
    try:
        return checked_url(refusal.master) if refusal.master.isprintable() and refusal.master else ""
    except ValueError:
        return ""


def _address(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port, parts.path
