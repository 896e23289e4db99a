"""Messages between schedulers about copies of content. Both ends are this program, so they are MessagePack."""

from __future__ import annotations

import msgspec

from dgpu.service.content.store import ContentKey

SERVICE = "dgpu.scheduler.v1.ContentCopies"
PIECE_BYTES = 1 << 20
PAGE = 500  # offers in a message


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Content that a scheduler has."""

    key: ContentKey
    size: int
    used_s: int  # wall clock of its last use


class FreshAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A standby asks for content that was stored since its last question."""

    name: str
    after: int  # FreshOffers.seen of the last answer; -1: nothing yet, only tell the present number
    held: tuple[ContentKey, ...] = ()  # durable at the standby since its last question
    refused: tuple[ContentKey, ...] = ()  # that it cannot take
    is_whole: bool = False  # it has everything that the master had at some time of this connection
    wait_ms: int = 0  # for content, if there is none


class FreshOffers(msgspec.Struct, frozen=True, kw_only=True):
    seen: int
    offers: tuple[Offer, ...] = ()
    is_gap: bool = False  # keys since the question's number are forgotten: compare everything again


class PageAsk(msgspec.Struct, frozen=True, kw_only=True):
    after: ContentKey | None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of the keys. An empty page is the last one."""

    offers: tuple[Offer, ...] = ()


class PieceAsk(msgspec.Struct, frozen=True, kw_only=True):
    key: ContentKey
    offset: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    data: bytes = b""
    is_gone: bool = False


class OwnPage(msgspec.Struct, frozen=True, kw_only=True):
    """A standby offers its own content to the master."""

    offers: tuple[Offer, ...] = ()


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    keys: tuple[ContentKey, ...] = ()


class GivenPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces of one content come in order. A piece at offset 0 begins anew."""

    name: str  # of the standby
    offer: Offer
    offset: int
    data: bytes


class Done(msgspec.Struct, frozen=True, kw_only=True):
    is_refused: bool = False  # the rest need not be sent
