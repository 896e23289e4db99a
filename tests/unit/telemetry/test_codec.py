"""Columns come back as they went in, whatever is in them; what is damaged is refused, never misread."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpu.service.telemetry.batches import pack, unpack
from dgpu.service.telemetry.codec import MAX_NUMBER, Damaged, decode, encode

numbers = st.one_of(
    st.none(),
    st.integers(-300, 300),
    st.integers(-MAX_NUMBER + 1, MAX_NUMBER - 1),
    st.sampled_from([0, 1, -1]),
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[int | None]]:
    length = draw(st.integers(0, 120))
    column = st.lists(numbers, min_size=length, max_size=length)
    return draw(st.lists(column, min_size=1, max_size=8))


@given(tables())
def test_what_is_encoded_is_decoded(table):
    assert decode(encode(table)) == table


@given(tables(), st.data())
def test_a_cut_body_is_damaged(table, data):
    body = encode(table)
    with pytest.raises(Damaged):
        decode(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.binary(max_size=200))
def test_anything_else_is_damaged_also_where_it_is_packed_well(noise):
    with pytest.raises(Damaged):
        decode(noise)
    try:
        table = decode(zlib.compress(noise))
    except Damaged:
        return
    assert decode(encode(table)) == table  # it happens to be one


def test_extremes_and_gaps_keep_their_places():
    column = [None, MAX_NUMBER - 1, None, -MAX_NUMBER + 1, 0, None]
    assert decode(encode([column, [None] * 6, [7] * 6])) == [column, [None] * 6, [7] * 6]


def test_numbers_and_lengths_that_cannot_be_kept_are_refused():
    with pytest.raises(ValueError, match="62 bits"):
        encode([[MAX_NUMBER]])
    with pytest.raises(ValueError, match="equally long"):
        encode([[1, 2], [1]])


def test_a_quiet_quarter_of_an_hour_is_small():
    quiet = [[0] * 90, [3] * 90, [0] * 90, [0] * 90, [35] * 90, [70] * 90]
    assert len(encode(quiet)) < 60


@given(
    st.lists(
        st.tuples(st.integers(-(1 << 31) + 1, (1 << 31) - 1) | st.none(), st.integers(0, 99) | st.none())
    ),
)
def test_one_card_is_picked_out_of_a_packed_batch(rows):
    series = [number * 3 + 1 for number in range(len(rows))]
    columns = [[row[0] for row in rows], [row[1] for row in rows]]
    packed = unpack(pack(series, columns), 2)
    assert [packed.values_at(packed.place_of(number)) for number in series] == [list(row) for row in rows]
    assert packed.place_of(0) is None


def test_a_number_too_large_for_a_batch_is_the_largest_and_never_a_gap():
    packed = unpack(pack([1], [[1 << 40], [-(1 << 40)]]), 2)
    assert packed.values_at(0) == [(1 << 31) - 1, -(1 << 31) + 1]
