"""The port of the proxy."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator

import structlog

from dgpu.service.options import ProxyOptions
from dgpu.service.proxy.app import Proxy
from dgpu.service.proxy.entry import Entry
from dgpu.service.proxy.names import Site, parse_site
from dgpu.service.rest.access import Access
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.http_server import HttpServer
from dgpu.service.services.watch import watched_services
from dgpu.wire.address import Address

_log = structlog.get_logger("dgpu.proxy")


@contextlib.asynccontextmanager
async def proxy_port(
    options: ProxyOptions | None, backend: Backend, access: Access, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Sets `backend.proxy`. Without a port, services have no address, but their replicas are kept and checked."""
    if options is None:
        unreachable = _proxy(Site(), backend, access)
        async with watched_services(backend.runtime, unreachable, backend.options.standing):
            yield
        return
    listening = _listen(options)
    port: int = listening.getsockname()[1]
    site = parse_site(options.url, port=port, has_tls=tls is not None)
    proxy = backend.proxy = _proxy(site, backend, access)
    proxy.streams.still_admits = access.still_admits
    server = HttpServer(proxy, backend.doors, backend.turns, tls)
    await server.start(listening)
    _log.info("proxy_ready", address=str(Address(host=options.address.host, port=port)), domain=site.domain)
    try:
        async with watched_services(backend.runtime, proxy, backend.options.standing):
            yield
    finally:
        await server.stop()
        proxy.close()


def _proxy(site: Site, backend: Backend, access: Access) -> Proxy:
    entry = Entry(access, time.monotonic, over_tls=site.scheme == "https")
    return Proxy(site, entry, backend.runtime, backend.channels, backend.options.standing)


def _listen(options: ProxyOptions) -> socket.socket:
    address = options.address
    try:
        return _bound(address.host, address.port)
    except OSError as error:
        if options.may_move and address.port:
            return _bound(address.host, 0)
        detail = f"server.proxy_address: cannot listen on {address}: {error.strerror}"
        raise OSError(error.errno, detail) from error


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not host:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind((host, port))
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
