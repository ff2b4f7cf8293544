"""The bits of queries: which are compacted when, and what a stored query-set means after bits were moved and reused."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.operators.query_sets import count_words, make_bitmap, mask_bit, translate_sets
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.changelog import Changelog, QueryAddition, apply_changelog, compact_bits
from headrace.planner.query_bits import FormerBit, choose_bit_limit, find_bit_at, move_bits, translate_bits
from headrace.planner.shared_plan import LiveQuery
from headrace.sql import Catalog, bind_query

CATALOG = Catalog((
    Stream("a", Schema.parse("k INT, time TIMESTAMP"), "time"),
    Stream("b", Schema.parse("k INT, time TIMESTAMP"), "time"),
))  # fmt: skip
WINDOW_JOIN = bind_query("SELECT x.k FROM TUMBLE(a, '5 seconds') x JOIN TUMBLE(b, '5 seconds') y ON x.k = y.k", CATALOG)
SLIDING_JOIN = bind_query("SELECT x.k FROM SLIDING(a, '5 seconds') x JOIN SLIDING(b, '5 seconds') y ON x.k = y.k", CATALOG)
AGGREGATION = bind_query("SELECT COUNT(*) AS c FROM TUMBLE(a, '5 seconds')", CATALOG)


def make_joins(*bits: int, plan=SLIDING_JOIN, first_id: int = 0) -> list[LiveQuery]:
    return [LiveQuery(first_id + n, f"q{first_id + n}", plan, bit=bit) for n, bit in enumerate(bits)]


def test_bits_are_compacted_if_that_saves_a_word_and_leaves_a_quarter_free():
    assert choose_bit_limit([]) is None
    assert choose_bit_limit([63]) is None
    assert choose_bit_limit([64]) == 64
    assert choose_bit_limit([69]) == 64
    assert choose_bit_limit(range(17, 65)) == 64  # 48 queries
    assert choose_bit_limit(range(16, 65)) is None  # 49 queries: 15 free bits of one word are too few
    assert choose_bit_limit([*range(48), 190]) == 128
    assert choose_bit_limit(range(128)) is None


@given(st.sets(st.integers(0, 300), min_size=1))
def test_after_a_compaction_the_next_one_is_sixteen_additions_away(bits: set[int]):
    limit = choose_bit_limit(bits)
    if limit is not None:
        moved = move_bits({bit: bit for bit in bits}, limit)
        compacted = [moved.get(bit, bit) for bit in bits]
        assert len(set(compacted)) == len(bits)
        assert max(compacted) < limit
        assert choose_bit_limit(compacted) is None
        assert limit - len(bits) >= 16


def test_only_the_bits_of_the_words_saved_move_and_take_the_lowest_free_ones():
    assert move_bits({7: 0, 8: 3, 9: 70, 10: 65}, 64) == {10: 1, 9: 2}


def test_a_compaction_records_the_bit_that_stored_rows_of_a_sliding_join_have():
    #   batch   5: bit 69   9: bit 0
    (query,) = compact_bits(make_joins(69), batch=9)
    assert (query.bit, query.former_bits) == (0, (FormerBit(69, 9),))
    assert [find_bit_at(query.bit, query.former_bits, batch) for batch in (5, 8, 9, 10)] == [69, 69, 0, 0]


def test_a_window_join_needs_no_former_bit():
    (query,) = compact_bits(make_joins(69, plan=WINDOW_JOIN), batch=9)
    assert (query.bit, query.former_bits) == (0, ())


def test_only_joins_of_one_kind_share_bits():
    additions = [AGGREGATION, WINDOW_JOIN, SLIDING_JOIN, AGGREGATION, SLIDING_JOIN]
    live = apply_changelog((), Changelog(tuple(QueryAddition(n, f"q{n}", plan, 0) for n, plan in enumerate(additions))))
    assert [query.bit for query in live] == [0, 0, 0, 1, 1]


def test_queries_that_are_no_joins_are_not_compacted():
    live = make_joins(69, plan=AGGREGATION)
    assert compact_bits(live, batch=9) == tuple(live)


def test_the_changelog_set_has_the_bits_that_stand_for_the_same_query():
    #   query       1  2  3  4
    #   bit before  0  1  2  -
    #   bit after   0  5  -  1
    translation = translate_bits({1: 0, 2: 1, 3: 2}, {1: 0, 2: 5, 4: 1})
    assert translation.changelog_set == {0}
    assert translation.moved == ((1, 5),)
    assert translation.keeps([0])
    assert not translation.keeps([0, 1])


_BITS = st.dictionaries(st.integers(0, 9), st.integers(0, 150), max_size=8).map(
    lambda bits: {query: bit for bit, query in {bit: query for query, bit in bits.items()}.items()}
)


@given(_BITS, _BITS, st.lists(st.sets(st.integers(0, 9)), max_size=20))
def test_a_translated_set_has_the_same_queries_as_far_as_they_are_live(before, after, rows):
    width_before, width_after = count_words(before.values()), count_words(after.values())
    sets = np.array([make_bitmap([before[q] for q in row if q in before], width_before) for row in rows], np.uint64)
    translated = translate_sets(sets.reshape(len(rows), width_before), translate_bits(before, after), width_after)
    assert translated.shape == (len(rows), width_after)
    for query, bit in after.items():
        assert mask_bit(translated, bit).tolist() == [query in row and query in before for row in rows]
    assert not any(mask_bit(translated, bit).any() for bit in range(width_after * 64) if bit not in after.values())
