"""The errors of managed high availability. Each text names the action to take."""

from __future__ import annotations


class HaFailure(Exception):  # noqa: N818 - it says what happened
    """The text says what to do."""


class MemberRefused(HaFailure):
    """The member does not start until an operator acts."""


class EngineSilent(HaFailure):
    """No member answered, or no majority of them."""


class NotSettled(HaFailure):
    """A member is silent, or has been connected for a short time only."""
