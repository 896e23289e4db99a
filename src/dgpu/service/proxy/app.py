"""The proxy: an ASGI application on a port of its own. It passes requests on to programs of tasks.

Its origin is never that of the dashboard: a page of a task can do nothing with the dashboard's session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final, cast
from urllib.parse import parse_qs

import structlog

from dgpu.service.access.principal import Principal
from dgpu.service.leadership.standing import Standing
from dgpu.service.loop.runtime import Runtime
from dgpu.service.proxy.entry import ENTER_PATH, Entry
from dgpu.service.proxy.headers import answer_headers, request_head, switch_head
from dgpu.service.proxy.names import Site, Target
from dgpu.service.proxy.pages import send_problem, send_redirect
from dgpu.service.proxy.pool import Pool
from dgpu.service.proxy.routes import Find, Route, Routes, find
from dgpu.service.proxy.tunnel import RawEnd, tunnel
from dgpu.service.proxy.upstream import Head, Upstream, UpstreamFailed
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.open_streams import OpenStreams
from dgpu.service.rest.origins import problem, repeated_host
from dgpu.service.rest.turnstile import lane_of
from dgpu.service.task_channels import ChannelRefused, ChannelStreams
from dgpu.wire.answers import Problem
from dgpu.wire.proto import agent_pb2 as pb

MAX_REQUESTS: Final = 512  # in flight
_AGAIN: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})  # may be sent twice
_BAD_GATEWAY: Final = 502

_log = structlog.get_logger("dgpu.proxy")


class Proxy:
    def __init__(
        self,
        site: Site,
        entry: Entry,
        runtime: Runtime,
        channels: ChannelStreams,
        standing: Standing,
        finder: Find = find,
    ) -> None:
        self.site = site
        self.entry = entry
        self.streams = OpenStreams()
        self.in_flight: Counter[str] = Counter()  # by service
        self._busy: Counter[Route] = Counter()
        self._runtime = runtime
        self._channels = channels
        self._standing = standing
        self._find = finder
        self._pool = Pool()
        self._turn = 0

    def requests_of(self, route: Route) -> int:
        return self._busy[route]

    def close(self) -> None:
        self._pool.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        is_head = scope["method"] == "HEAD"
        host = headers.get(b"host", b"").decode("latin-1")
        target = self.site.target(host)
        refused = repeated_host(scope["headers"]) or self._refused(target, host)
        if refused is not None or target is None:
            await send_problem(send, refused or _no_host(host, self.site), headers, is_head=is_head)
        elif scope["path"].startswith("/.dgpu/"):
            await self._enter(scope, headers, target, send)
        else:
            await self._pass(scope, receive, send, headers, target)

    def _refused(self, target: Target | None, host: str) -> Problem | None:
        if target is None:
            return _no_host(host, self.site)
        if self._standing.role != "master":
            master = self._standing.master
            detail = (
                f"This scheduler is a standby. The master is at {master}."
                if master
                else "No scheduler leads."
            )
            return problem(503, "not_master", "Standby", detail)
        return None

    async def _enter(self, scope: Any, headers: dict[bytes, bytes], target: Target, send: Any) -> None:
        """A link sets the cookie of this host. The page then opens without the code in its address."""
        codes = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])
        redeemed = None
        if scope["path"] == ENTER_PATH and scope["method"] == "GET":
            redeemed = self.entry.redeem(codes[0], self.site.host_of(target), headers)
        if redeemed is not None:
            await send_redirect(send, *redeemed)
            return
        detail = (
            "This link was used, has expired, or is of another host. Get a new one: dashboard, or dgpu link."
        )
        await send_problem(send, problem(403, "wrong_link", "The link does not work", detail), headers)

    async def _pass(
        self, scope: Any, receive: Any, send: Any, headers: dict[bytes, bytes], target: Target
    ) -> None:
        state = scope["state"]
        peer = state.get("peer", Peer(uid=None))
        method = scope["method"]
        who = self.entry.admit(method, self.site.host_of(target), headers, peer)
        found = who if isinstance(who, Problem) else await self._routes(who, target)
        if isinstance(who, Problem) or isinstance(found, Problem):
            refused = who if isinstance(who, Problem) else found
            await send_problem(send, cast(Problem, refused), headers, is_head=method == "HEAD")
            return
        guest = state.get("guest")
        if guest is not None:
            guest.admitted()
        opened = self.streams.add(who, guest)
        self.in_flight[found.counted_as] += 1
        try:
            await self._answer(scope, receive, send, found, peer)
        finally:
            _less(self.in_flight, found.counted_as)
            opened.close()

    async def _routes(self, who: Principal, target: Target) -> Routes | Problem:
        if (full := self._full(who)) is not None:
            return full
        return await self._runtime.read(lambda state: self._find(state, who, target))

    def _full(self, who: Principal) -> Problem | None:
        """A tenant may have as many requests as it leaves free, so that others always find room."""
        own = self.streams.count_of(lane_of(who))
        if own < MAX_REQUESTS - self.streams.count:
            return None
        detail = f"{self.streams.count} requests are being passed on, {own} of them yours. Try again soon."
        return problem(503, "too_many_requests", "Too many requests", detail)

    async def _answer(self, scope: Any, receive: Any, send: Any, routes: Routes, peer: Peer) -> None:
        exchange = _Exchange(self, scope, receive, send, peer)
        last: Exception | None = None
        for route in self._least_busy(routes.choices):
            self._busy[route] += 1
            try:
                return await exchange.run(route)
            except (ChannelRefused, UpstreamFailed) as error:
                last = error
                if not exchange.may_repeat(error):
                    break
            finally:
                _less(self._busy, route)
        if exchange.has_begun:  # cut off: a clean end would look like the whole answer
            guest = scope["state"].get("guest")
            if guest is not None:
                guest.close()
            return None
        headers = dict(scope["headers"])
        return await send_problem(send, _failed(last), headers, is_head=scope["method"] == "HEAD")

    def _least_busy(self, choices: tuple[Route, ...]) -> list[Route]:
        """Equally busy replicas take turns."""
        self._turn += 1
        start = self._turn % max(1, len(choices))
        return sorted((*choices[start:], *choices[:start]), key=self.requests_of)

    async def connect(self, route: Route) -> Upstream:
        """Raises ChannelRefused."""
        if (kept := self._pool.take((route.lease_id, route.port))) is not None:
            return kept
        return await self.connect_anew(route)

    async def connect_anew(self, route: Route) -> Upstream:
        asked = pb.OpenChannel(lease_id=route.lease_id, port=pb.ConnectPort(port=route.port))
        return Upstream(await self._channels.open(route.node_id, asked))

    def give_back(self, route: Route, upstream: Upstream) -> None:
        self._pool.put((route.lease_id, route.port), upstream)


class _Exchange:
    """One request of a client, and its answer."""

    def __init__(self, proxy: Proxy, scope: Any, receive: Any, send: Any, peer: Peer) -> None:
        self._proxy = proxy
        self._scope = scope
        self._receive = receive
        self._send = send
        self.has_begun = False  # the client got a part of the answer
        self._has_read = False  # a part of the body was taken from the client
        self._is_read = False  # all of it was, even if it is empty
        headers = dict(scope["headers"])
        upgrade = (
            headers.get(b"upgrade", b"") if b"upgrade" in headers.get(b"connection", b"").lower() else b""
        )
        self._switches = bool(upgrade) and scope["state"].get("switch") is not None
        query = scope["query_string"]
        self._head, self._is_chunked = request_head(
            scope["method"],
            scope["raw_path"] + (b"?" + query if query else b""),
            scope["headers"],
            is_secret=proxy.entry.is_secret,
            scheme=proxy.site.scheme,
            address=peer.address,
            switches_to=upgrade if self._switches else b"",
        )

    def may_repeat(self, error: Exception) -> bool:
        """On another replica, or on a new connection."""
        if self.has_begun or self._has_read:
            return False
        return isinstance(error, ChannelRefused) or self._scope["method"] in _AGAIN

    async def run(self, route: Route) -> None:
        upstream = await self._proxy.connect(route)
        try:
            await self._run(upstream)
        except UpstreamFailed as error:
            # The program may have closed a kept connection just now.
            if not (upstream.is_reused and error.is_untouched and self.may_repeat(error)):
                raise
            upstream.channel.close()
            upstream = await self._proxy.connect_anew(route)
            await self._run(upstream)
        finally:
            self._proxy.give_back(route, upstream)

    async def _run(self, upstream: Upstream) -> None:
        sending = asyncio.ensure_future(self._send_request(upstream))
        answering = asyncio.ensure_future(self._give_answer(upstream))
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():  # the client has gone
                upstream.channel.close()
                return
            answering.result()
        finally:
            for part in (sending, answering):
                part.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send_request(self, upstream: Upstream) -> None:
        """Ends when the client has gone."""
        await upstream.send_head(self._head)
        if self._switches:
            await self._gone()
            if self.has_begun:  # of the other protocol now, which notices the end itself
                await asyncio.Event().wait()
            return
        while not self._is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if body := message.get("body", b""):
                self._has_read = True
                await upstream.send_body(body, chunked=self._is_chunked)
            self._is_read = not message.get("more_body")
        await upstream.end_request(chunked=self._is_chunked)
        await self._gone()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _give_answer(self, upstream: Upstream) -> None:
        head = await upstream.head(is_head_request=self._scope["method"] == "HEAD")
        if head.status == 101:
            if not self._switches:
                raise UpstreamFailed(
                    "bad_answer", "it switched to another protocol without a request to do so"
                )
            await self._switch(upstream, head)
            return
        self.has_begun = True
        headers = answer_headers(head.headers)
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})
        while piece := await upstream.piece():
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _switch(self, upstream: Upstream, head: Head) -> None:
        self.has_begun = True
        ends: list[RawEnd] = []

        def make(on_end: Any) -> RawEnd:
            ends.append(RawEnd(on_end))
            return ends[0]

        transport = self._scope["state"]["switch"](switch_head(head.status, head.headers), make)
        ends[0].transport = transport
        await tunnel(ends[0], upstream.channel, head.rest)


def _less(counts: Counter[Any], key: Any) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _no_host(host: str, site: Site) -> Problem:
    detail = f"{host[:100]!r} names no task and no service, expected a name like task-42-8888.{site.domain}."
    return problem(421, "wrong_host", "Nothing here", detail)


def _failed(error: Exception | None) -> Problem:
    if isinstance(error, ChannelRefused):
        return problem(503, error.code, "Not reachable", f"{error}.")
    if isinstance(error, UpstreamFailed):
        return problem(_BAD_GATEWAY, error.code, "No answer of the program", f"{error}.")
    return problem(503, "no_replica", "No replica", "No replica of this service is ready. Try again soon.")
