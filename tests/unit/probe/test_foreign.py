from __future__ import annotations

import pytest

from dgpu.agent.probe.foreign import foreign_mb


@pytest.mark.parametrize(
    ("used", "holders", "ours", "foreign"),
    [
        (0, {}, frozenset(), 0),
        (500, {}, frozenset(), 0),  # the driver's own memory is nobody's
        (900, {1: 400, 2: 500}, frozenset({1}), 500),
        (900, {1: 400, 2: 500}, frozenset(), 900),
        (900, {1: 400, 2: None}, frozenset({1}), 500),
        (900, {2: None}, frozenset(), 900),
        (900, {1: None, 2: None}, frozenset({1}), 0),  # cannot be divided: nothing is certain
        (900, {1: None, 2: 300, 3: None}, frozenset({1}), 300),
        (100, {1: 400, 2: None}, frozenset({1}), 0),  # the two figures are not of the same moment
    ],
)
def test_memory_is_foreign_only_where_that_is_certain(used, holders, ours, foreign) -> None:
    assert foreign_mb(used_mb=used, holders=holders, ours=ours) == foreign
