"""The streams of agents that answer requests of people, as one value for the parts of a server."""

from __future__ import annotations

from typing import NamedTuple

from dgpu.service.content.copies import ContentCopies
from dgpu.service.content.store import ContentStore
from dgpu.service.task_channels import ChannelStreams
from dgpu.service.task_files import FileStreams


class NodeStreams(NamedTuple):
    files: FileStreams
    channels: ChannelStreams


def node_streams(content: ContentStore | None = None, *, is_shared: bool = False) -> NodeStreams:
    """`is_shared`: other schedulers take copies of the content."""
    files = FileStreams(content)
    if is_shared and content is not None:
        files.content_copies = ContentCopies(content)
    return NodeStreams(files, ChannelStreams())
