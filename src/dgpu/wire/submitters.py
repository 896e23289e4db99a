"""The principal of a submit, as far as it shapes the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

USER_LABEL = "user"  # reports group by it


class Submitter(NamedTuple):
    """Empty: the body decides."""

    tenant: str  # of tasks that name none
    user: str  # the label `user`
    body_wins: bool = False  # a label `user` in the body is kept

    def labelled(self, labels: Mapping[str, str]) -> dict[str, str]:
        own = {USER_LABEL: self.user}
        return {**own, **labels} if self.body_wins else {**labels, **own}
