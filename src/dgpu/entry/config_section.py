"""The base of all sections of a configuration file."""

from __future__ import annotations

from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(max_length=253, pattern=r"^[A-Za-z0-9._-]*$")]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file. Its fields are keys or further sections."""
