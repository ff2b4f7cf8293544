"""Kernels of partial aggregation against dictionaries, plain loops and exact fractions."""

from __future__ import annotations

import math
import statistics
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.engine.compute.accumulators import (
    Accumulator,
    PartialAggregate,
    allocate_neutral,
    combine_partials,
    neutral_extreme,
    reduce_listed,
)
from headrace.engine.compute.columns import from_numbers, narrow_integers, to_numbers, widen_integers
from headrace.engine.compute.keys import assign_partitions, encode_keys, unify_keys
from headrace.engine.compute.lower import lower_aggregate
from headrace.engine.kernels import select as select_kernels
from headrace.engine.kernels import window as window_kernels
from headrace.engine.operators.compaction import merge_partials
from headrace.errors import CheckpointError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import Column
from headrace.model.partition_map import PartitionMap
from headrace.planner.components import Component
from headrace.storage import container
from headrace.storage.posix import PosixStore
from support.examples import scale_examples

quick = settings(max_examples=scale_examples(60), deadline=None)
NAN, OTHER_NAN = math.nan, struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
TIME = datetime(2024, 1, 1, tzinfo=UTC)

# type → values, NULL always among them
KEYS: dict[pa.DataType, Sequence[Any]] = {
    pa.int32(): (0, 1, -1, 5, 2**31 - 1, -(2**31), None),
    pa.int64(): (0, 1, 2, -7, 2**63 - 1, -(2**63), None),
    pa.int8(): (0, 1, -128, 127, None),
    pa.string(): ("", "a", "b", "ab", "ba", "\x00null", "\x00", "é", None),
    pa.float64(): (0.0, -0.0, 1.5, NAN, OTHER_NAN, math.inf, -math.inf, 5e-324, None),
    pa.float32(): (0.0, -0.0, 1.5, NAN, None),
    pa.bool_(): (True, False, None),
    pa.date32(): (date(1970, 1, 1), date(2024, 2, 29), date(1969, 12, 31), date(9999, 12, 31), None),
    pa.timestamp("us", "UTC"): (TIME, datetime(1969, 12, 31, tzinfo=UTC), None),
    pa.decimal128(10, 2): (Decimal("0.00"), Decimal("1.50"), Decimal("-1.50"), None),
    pa.decimal128(38, 0): (Decimal(0), Decimal(10**30), Decimal(-(10**30)), None),
}


def canonical_key(value: Any) -> Any:
    """Return the canonical form of a key value: all NaN are equal, −0.0 is 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


@st.composite
def key_columns(draw: st.DrawFn, most: int = 3) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=most))
    return types, draw(st.lists(st.tuples(*(st.sampled_from(KEYS[kind]) for kind in types)), max_size=30))


def arrays(types: Sequence[pa.DataType], rows: Sequence[tuple[Any, ...]], before: int = 0) -> list[pa.Array]:
    """Return the columns; with `before`, as slices with an offset into their buffers."""
    found = []
    for at, kind in enumerate(types):
        filler = [KEYS[kind][index % len(KEYS[kind])] for index in range(before)]
        found.append(pa.array([*filler, *(row[at] for row in rows)], kind).slice(before))
    return found


def tuples(columns: Sequence[pa.Array], codes: Sequence[int]) -> list[tuple[Any, ...]]:
    lists = [column.to_pylist() for column in columns]
    return [tuple(canonical_key(values[code]) for values in lists) for code in codes]


# Codes and keys


@quick
@given(st.lists(st.integers(-2, 40) | st.integers(0, 2**62), max_size=200))
def test_compress_numbers_the_distinct_values(values: list[int]):
    given_values = np.array(values, np.int64)
    distinct, codes = select_kernels.factorize_values(given_values)
    kept = given_values[given_values >= 0]
    assert sorted(distinct.tolist()) == np.unique(kept).tolist()
    assert distinct.tolist() == list(dict.fromkeys(kept.tolist())), "in the order of first occurrence"
    assert distinct[codes[given_values >= 0]].tolist() == kept.tolist()
    assert (codes[given_values < 0] == -1).all()


def test_compress_grows_its_table():
    values = np.random.default_rng(7).permutation(np.arange(300_000, dtype=np.int64) * 2**40 // 2**20)
    distinct, codes = select_kernels.factorize_values(np.concatenate([values, values]))
    assert len(distinct) == len(values)
    assert (distinct[codes] == np.concatenate([values, values])).all()


@quick
@given(key_columns(), st.integers(0, 3))
def test_codes_of_keys_are_equal_for_equal_keys_and_reversible(drawn, before: int):
    types, rows = drawn
    found = encode_keys(arrays(types, rows, before), len(rows))
    expected = [tuple(map(canonical_key, row)) for row in rows]
    assert tuples(found.columns, found.codes.tolist()) == expected
    assert len(set(found.codes.tolist())) == len(set(expected))
    assert [column.type for column in found.columns] == types
    assert all(len(column) == found.count for column in found.columns)


def test_without_key_columns_all_rows_have_the_same_key():
    found = encode_keys([], 3)
    assert (found.codes.tolist(), found.count) == ([0, 0, 0], 1)


@quick
@given(st.data(), key_columns(), st.integers(1, 4))
def test_unify_gives_keys_of_several_parts_common_codes(data, drawn, places: int):
    types, rows = drawn
    parts = []
    for place in range(places):
        chosen = data.draw(st.lists(st.sampled_from(rows), max_size=10)) if rows else []
        encoded = encode_keys(arrays(types, chosen, place), len(chosen))
        parts.append(encoded)
    columns, count, maps = unify_keys([(part.columns, part.count) for part in parts])
    meaning = tuples(columns, range(count))
    for part, numbering in zip(parts, maps, strict=True):
        assert [meaning[new] for new in numbering] == tuples(part.columns, range(part.count))
    everything = {key for part in parts for key in tuples(part.columns, range(part.count))}
    assert sorted({new for numbering in maps for new in numbering.tolist()}) == list(range(len(everything)))
    assert count == len(everything)  # of a range of integers, only those that occur


@quick
@given(st.data(), key_columns(), st.integers(1, 7))
def test_equal_keys_have_equal_partitions_in_any_array_layout(data, drawn, parts: int):
    types, rows = drawn
    place: dict[tuple[Any, ...], int] = {}
    for before in range(3):
        shuffled = data.draw(st.permutations(rows))
        raw = arrays(types, shuffled, before)
        encoded = encode_keys(raw, len(shuffled))
        for columns, count in ((raw, len(shuffled)), (encoded.columns, encoded.count)):
            found = assign_partitions(columns, count, PartitionMap(parts))
            assert all(0 <= part < parts for part in found.tolist())
            for key, part in zip(tuples(columns, range(count)), found.tolist(), strict=True):
                assert place.setdefault(key, part) == part, key


def test_values_below_nulls_do_not_affect_keys():
    """The buffer may hold any value below a NULL."""
    masks = pa.array([True, False]).buffers()[1]
    hidden = [pa.Array.from_buffers(pa.int64(), 2, [masks, pa.py_buffer(np.array([1, junk]))]) for junk in (0, 1, 77)]
    assert {tuple(assign_partitions([column], 2, PartitionMap(1 << 20)).tolist()) for column in hidden} == {
        tuple(assign_partitions([pa.array([1, None], pa.int64())], 2, PartitionMap(1 << 20)).tolist())
    }
    for column in hidden:
        assert tuples(encode_keys([column], 2).columns, encode_keys([column], 2).codes.tolist()) == [(1,), (None,)]


def test_many_keys_spread_over_partitions():
    for column in (
        pa.array(range(10_000)),
        pa.array([f"key-{i}" for i in range(10_000)]),
        pa.array([float(i) for i in range(10_000)]),
    ):
        counts = np.bincount(assign_partitions([column], 10_000, PartitionMap(8)), minlength=8)
        assert counts.min() > 800, "a partition has too few keys"


@quick
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(0, 40))
def test_narrow_and_wide_are_inverse(values: list[int], shift: int):
    given_values = np.array(values, np.int64) >> shift
    assert widen_integers(narrow_integers(given_values)).tolist() == given_values.tolist()


@pytest.mark.parametrize(
    "kind", [kind for kind in KEYS if not pa.types.is_string(kind) and kind != pa.decimal128(38, 0)], ids=str
)
def test_values_survive_the_conversion_to_numbers(kind: pa.DataType):
    column = pa.array([KEYS[kind][0], *KEYS[kind]], kind).slice(1)
    missing = np.array([value is None for value in KEYS[kind]])
    back = from_numbers(to_numbers(column), kind, missing)
    assert [canonical_key(value) for value in back.to_pylist()] == [canonical_key(value) for value in KEYS[kind]]


# Windows


@st.composite
def draw_partials(draw: st.DrawFn) -> dict[str, Any]:
    """Draw partials by slice, keys with ascending cells, queries with spans of cells and ranges of slices."""
    size, keys, parts = draw(st.integers(1, 12)), draw(st.integers(1, 10)), draw(st.integers(1, 4))
    held = [[sorted(draw(st.sets(st.integers(0, size - 1), max_size=size))) for _ in range(keys)] for _ in range(parts)]
    queries = draw(st.integers(1, 5))
    spans = []
    for _ in range(queries):
        edges = sorted(draw(st.sets(st.integers(0, size), max_size=6)))
        spans.append(list(zip(edges[::2], edges[1::2], strict=False)))
    ranges = [sorted(draw(st.tuples(st.integers(0, parts), st.integers(0, parts)))) for _ in range(queries)]
    return {
        "size": size,
        "keys": keys,
        "held": held,
        "spans": spans,
        "ranges": ranges,
        "targets": draw(st.permutations(range(queries))),
    }


def flatten_spans(spans: Sequence[Sequence[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *(len(query_spans) for query_spans in spans)])
    flat = [span for query_spans in spans for span in query_spans]
    return offsets.astype(np.int64), *(np.array([span[i] for span in flat], np.int64) for i in range(2))


def is_inside(cell: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(low <= cell < high for low, high in spans)


def place_cells(held: Sequence[Sequence[Sequence[int]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where the cells of each part and key begin and end, and all cells."""
    firsts, lasts = (np.zeros((len(held), len(held[0])), np.int64) for _ in range(2))
    cells: list[int] = []
    for part, of_part in enumerate(held):
        for key, found in enumerate(of_part):
            firsts[part, key], lasts[part, key] = len(cells), len(cells) + len(found)
            cells += found
    return firsts, lasts, np.array(cells, np.int32)


def sum_plainly(partials: dict[str, Any], values: Sequence[int], query: int, key: int) -> int:
    firsts, lasts, cells = place_cells(partials["held"])
    total = 0
    for part in range(*partials["ranges"][query]):
        places = range(firsts[part, key], lasts[part, key])
        total += sum(values[place] for place in places if is_inside(cells[place], partials["spans"][query]))
    return total


def list_uses(partials: dict[str, Any]) -> tuple[Any, ...]:
    begins, ends = (np.array([r[i] for r in partials["ranges"]], np.int64) for i in range(2))
    return partials["size"], begins, ends, np.array(partials["targets"], np.int64), *flatten_spans(partials["spans"])


@quick
@given(st.data(), draw_partials())
def test_window_sums_equal_plain_sums(data, partials: dict[str, Any]):
    places = place_cells(partials["held"])
    values = [data.draw(st.integers(-(2**62), 2**62)) for _ in places[2]]
    out = np.full((len(partials["spans"]), partials["keys"]), 7, np.int64)
    window_kernels.window_sums_prefix(*places, np.array(values, np.int64), *list_uses(partials), out)
    for query, target in enumerate(partials["targets"]):
        for key in range(partials["keys"]):
            wrapped = (7 + sum_plainly(partials, values, query, key) + 2**63) % 2**64 - 2**63
            assert out[target, key] == wrapped


@quick
@given(draw_partials(), st.integers(0, 2**32))
def test_window_counts_and_sums_in_one_word_equal_plain_sums(partials: dict[str, Any], seed: int):
    places = place_cells(partials["held"])
    limit = (2**39 - 1) // (len(partials["held"]) * partials["size"])  # the caller ensures that all of a key fit
    random = Random(seed)
    counts = [random.randrange(1, 2**17) for _ in places[2]]
    sums = [random.choice([random.randint(-5, 5), random.randint(-min(limit, 2**31), min(limit, 2**31 - 1))]) for _ in places[2]]
    shape = len(partials["spans"]), partials["keys"]
    count_out, sum_out = np.full(shape, 3, np.int64), np.full(shape, -4, np.int64)
    window_kernels.window_counts_and_sums_prefix(
        *places, np.array(counts, np.int32), np.array(sums, np.int32), *list_uses(partials), count_out, sum_out
    )
    for query, target in enumerate(partials["targets"]):
        for key in range(partials["keys"]):
            assert count_out[target, key] == 3 + sum_plainly(partials, counts, query, key)
            assert sum_out[target, key] == -4 + sum_plainly(partials, sums, query, key)


@quick
@given(st.lists(st.lists(st.sampled_from([0, 0, 1, -3]), min_size=3, max_size=3), max_size=5))
def test_nonzero_entries_are_picked_row_by_row(rows: list[list[int]]):
    matrix = np.array(rows, np.int64).reshape(-1, 3)
    counts = window_kernels.count_nonzero_entries(matrix)
    total = int(counts.sum())
    assert counts.tolist() == np.count_nonzero(matrix, axis=1).tolist()
    assert window_kernels.list_nonzero_columns(matrix, total).tolist() == np.nonzero(matrix)[1].tolist()
    values = np.arange(matrix.size, dtype=np.float64).reshape(matrix.shape)
    assert window_kernels.pick_nonzero_entries(matrix, values, total).tolist() == values[matrix != 0].tolist()


def draw_slice(data: st.DataObject, partials: dict[str, Any], values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
    of_part = partials["held"][0]
    starts = np.cumsum([0, *(len(found) for found in of_part)])
    cells = [cell for found in of_part for cell in found]
    drawn = [data.draw(values) for _ in cells]
    rows = np.array(data.draw(st.permutations(range(partials["keys"]))), np.int64)
    return starts.astype(np.int64), np.array(cells, np.int64), drawn, rows


@quick
@given(st.data(), draw_partials(), st.sampled_from(["min", "max"]), st.booleans())
def test_window_extremes_equal_min_and_max(data, partials: dict[str, Any], kind: str, floating: bool):
    simple = st.sampled_from([0.0, 1.5, -2.0, NAN, math.inf, -math.inf]) if floating else st.integers(-(2**63), 2**63 - 1)
    starts, cells, drawn, rows = draw_slice(data, partials, simple)
    dtype, none = (np.float64, neutral_extreme(kind, pa.float64())) if floating else (np.int64, neutral_extreme(kind, pa.int64()))
    out = np.full((len(partials["spans"]), partials["keys"]), none)
    targets = np.array(partials["targets"], np.int64)
    window_kernels.window_extremes_tree(
        int(kind == "max"),
        none,
        starts,
        cells,
        np.array(drawn, dtype),
        rows,
        partials["size"],
        targets,
        *flatten_spans(partials["spans"]),
        out,
    )
    rank = lambda value: (math.isnan(value), value if not math.isnan(value) else 0) if floating else value  # noqa: E731
    for query, spans in enumerate(partials["spans"]):
        for key in range(partials["keys"]):
            found = [drawn[place] for place in range(starts[key], starts[key + 1]) if is_inside(int(cells[place]), spans)]
            expected = (min if kind == "min" else max)(found, key=rank) if found else none
            assert canonical_key(float(out[targets[query], rows[key]])) == canonical_key(float(expected))


@quick
@given(st.data(), draw_partials())
def test_window_float_sums_have_twice_the_precision_of_doubles(data, partials: dict[str, Any]):
    starts, cells, drawn, rows = draw_slice(data, partials, st.sampled_from([1e18, -1e18, 1.0, 0.1, -0.3, 1e-6]))
    high, low = np.array(drawn, np.float64), np.array([value * 1e-17 for value in drawn])
    out_high, out_low = np.zeros((len(partials["spans"]), partials["keys"])), np.zeros((len(partials["spans"]), partials["keys"]))
    targets = np.array(partials["targets"], np.int64)
    window_kernels.window_floats_tree(
        starts, cells, high, low, rows, partials["size"], targets, *flatten_spans(partials["spans"]), out_high, out_low
    )
    for query, spans in enumerate(partials["spans"]):
        for key in range(partials["keys"]):
            places = [place for place in range(starts[key], starts[key + 1]) if is_inside(int(cells[place]), spans)]
            expected = math.fsum([*(high[p] for p in places), *(low[p] for p in places)])
            at = targets[query], rows[key]
            assert out_high[at] + out_low[at] == pytest.approx(expected, rel=1e-12, abs=1e-9)


# Components

VALUES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "integers": (pa.int32(), (0, 1, -5, 2**31 - 1, -(2**31), None)),
    "longs": (pa.int64(), (0, 1, 2**63 - 1, -(2**63), None)),
    "decimals": (pa.decimal128(12, 2), (Decimal("0.01"), Decimal("-9999999999.99"), None)),
    "large decimals": (pa.decimal128(38, 0), (Decimal(1), Decimal(-1), Decimal(10**37), Decimal(-(10**37)), None)),
    "doubles": (pa.float64(), (0.0, 0.1, 1e18, -1e18, 1.0, None)),
    "floats": (pa.float32(), (0.0, 0.5, -2.25, None)),
}
KINDS = [
    *((kind, name) for kind in ("rows", "count") for name in ("integers", "doubles")),
    *((kind, name) for kind in ("add", "min", "max") for name in ("integers", "longs", "decimals")),
    ("add", "large decimals"),
    *((kind, name) for kind in ("float", "square", "min", "max") for name in ("doubles", "floats")),
]


def accumulate(kind: str, of: pa.DataType, rows: Sequence[tuple[Any, int]], count: int = 1, batches: int = 1) -> list[np.ndarray]:
    """Return the arrays of a component accumulated from rows (value, group), in several batches."""
    accumulator = Accumulator([("rows", ()), (kind, (of,))], count)
    for batch in range(batches):
        mine = rows[batch::batches]
        column = pa.array([value for value, _ in mine], of)
        accumulator.add(np.array([place for _, place in mine], np.int64), [[], [column]], None)
    return accumulator.export_arrays(np.arange(count))[1]


def combine(kind: str, of: pa.DataType, *parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    into = allocate_neutral(kind, (of,), len(parts[0][0]))
    for part in parts:
        combine_partials(kind, part, np.arange(len(part[0])), into)
    return into


def to_values(kind: str, parts: Sequence[np.ndarray]) -> list[Any]:
    """Return the values of a component: limbs and pairs of doubles are added up."""
    if kind == "add":
        return [sum(int(limb[i]) << (32 * place) for place, limb in enumerate(parts)) for i in range(len(parts[0]))]
    if kind in {"float", "square"}:
        return (parts[0] + parts[1]).tolist()
    return [canonical_key(value) for value in parts[0].tolist()]


@pytest.mark.parametrize(("kind", "name"), KINDS)
@settings(max_examples=scale_examples(25), deadline=None)
@given(st.data())
def test_combining_partials_is_associative(kind: str, name: str, data):
    """(a + b) + c = a + (b + c) = all rows at once = all rows in batches."""
    of, pool = VALUES[name]
    pieces = [data.draw(st.lists(st.tuples(st.sampled_from(pool), st.integers(-1, 2)), max_size=8)) for _ in range(3)]
    rows = [row for piece in pieces for row in piece]
    whole = to_values(kind, accumulate(kind, of, rows, 3))
    expected = pytest.approx(whole, rel=1e-12, abs=1e-9, nan_ok=True) if kind in {"float", "square"} else whole
    a, b, c = (accumulate(kind, of, piece, 3) for piece in pieces)
    ways = (
        combine(kind, of, a, b, c),
        combine(kind, of, combine(kind, of, a, b), c),
        combine(kind, of, a, combine(kind, of, b, c)),
        combine(kind, of, c, b, a),
        accumulate(kind, of, rows, 3, batches=4),
    )
    for way in ways:
        assert to_values(kind, way) == expected


@pytest.mark.parametrize(("kind", "name"), KINDS)
@settings(max_examples=scale_examples(25), deadline=None)
@given(st.data())
def test_components_equal_plain_aggregates(kind: str, name: str, data):
    of, pool = VALUES[name]
    values = data.draw(st.lists(st.sampled_from(pool), max_size=20))
    there = [value for value in pa.array(values, of).to_pylist() if value is not None]
    scale = 10**of.scale if pa.types.is_decimal(of) else 1
    exact = [value if isinstance(value, float) else int(value * scale) for value in there]
    none = neutral_extreme(kind, of) if kind in {"min", "max"} else 0
    obvious = {
        "rows": lambda: len(values),
        "count": lambda: len(there),
        "add": lambda: sum(exact),
        "float": lambda: math.fsum(there),
        "square": lambda: float(sum(Fraction(value) ** 2 for value in there)),
        "min": lambda: min(exact, default=none),
        "max": lambda: max(exact, default=none),
    }[kind]()
    found = to_values(kind, accumulate(kind, of, [(value, 0) for value in values]))[0]
    assert found == (pytest.approx(obvious, rel=1e-12, abs=1e-9) if kind in {"float", "square"} else canonical_key(obvious))


def test_several_components_over_selected_and_repeated_rows():
    x, y = pa.array([1, None, 3], pa.int32()), pa.array([1.5, 2.5, None])
    signatures = [
        ("rows", ()),
        ("count", (x.type,)),
        ("add", (x.type,)),
        None,
        ("float", (y.type,)),
        ("count", (y.type,)),
        ("add", (x.type,)),
    ]
    accumulator = Accumulator(signatures, 2)
    columns = [[], [x], [x], [x], [y], [y], [pa.array([10, 20, 30], pa.int32())]]
    accumulator.add(np.array([0, 1, 1, -1]), columns, np.array([0, 1, 2, 0]))
    accumulator.add(np.array([1]), columns, np.array([2]))
    found = [[array.tolist() for array in arrays] for arrays in accumulator.export_arrays(np.arange(2))]
    assert found[:3] == [[[1, 3]], [[1, 2]], [[1, 6]]]
    assert found[4:] == [[[1.5, 2.5], [0.0, 0.0]], [[1, 1]], [[10, 80]]]


@pytest.mark.parametrize("name", ["integers", "longs", "decimals", "large decimals"])
@quick
@given(st.data())
def test_exact_sums_never_wrap(name: str, data):
    of, pool = VALUES[name]
    values = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=40))
    scale = 10**of.scale if pa.types.is_decimal(of) else 1
    assert to_values("add", accumulate("add", of, [(value, 0) for value in values])) == [
        sum(int(v * scale) for v in values if v is not None)
    ]


@quick
@given(st.lists(st.sampled_from([1e18, -1e18, 1.0, -1.0, 0.1, 1e-9, 3e17]), min_size=1, max_size=60), st.integers(1, 5))
def test_float_sums_survive_cancellation(values: list[float], pieces: int):
    parts = [accumulate("float", pa.float64(), [(value, 0) for value in values[piece::pieces]]) for piece in range(pieces)]
    assert to_values("float", combine("float", pa.float64(), *parts)) == pytest.approx([math.fsum(values)], rel=1e-12, abs=1e-9)


def test_a_sum_that_plain_addition_rounds_away_is_exact():
    assert to_values("float", accumulate("float", pa.float64(), [(1e18, 0), (1.0, 0), (-1e18, 0)])) == [1.0]


@pytest.mark.parametrize("function", ["stddev_samp", "stddev_pop", "var_samp", "var_pop", "avg", "sum"])
@pytest.mark.parametrize("mean", [0.0, 1e9, -1e10])
@settings(max_examples=scale_examples(25), deadline=None)
@given(noise=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=50), pieces=st.integers(1, 4))
def test_variance_around_a_large_mean_is_precise(function: str, mean: float, noise: list[float], pieces: int):
    """Two doubles hold sums of squares to 32 digits: a spread of 10⁻¹¹ of the mean still has nine of its own."""
    values = [mean + value for value in noise]
    assume(function in {"avg", "sum"} or statistics.pstdev(values) >= 1e-11 * abs(mean))
    obvious = {
        "stddev_samp": statistics.stdev,
        "stddev_pop": statistics.pstdev,
        "var_samp": statistics.variance,
        "var_pop": statistics.pvariance,
        "avg": statistics.fmean,
        "sum": math.fsum,
    }[function](values)
    kinds = ("float", "count") if function in {"avg", "sum"} else ("float", "square", "count")
    rows = [[(value, 0) for value in values[piece::pieces]] for piece in range(pieces)]
    totals = [combine(kind, pa.float64(), *(accumulate(kind, pa.float64(), piece) for piece in rows)) for kind in kinds]
    found, bad = lower_aggregate(AggregateCall(function, (Column("x", pa.float64()),), pa.float64()), totals)
    assert bad is None
    assert found.to_pylist()[0] == pytest.approx(obvious, rel=1e-9, abs=1e-9)


def test_squares_as_two_doubles_are_exact():
    """x² as two doubles is x² exactly: the base of variances around large means."""
    for value in (1e9 + 0.1, 123456789.123456789, -1e12 - 0.7):
        high, low = accumulate("square", pa.float64(), [(value, 0)])
        assert Fraction(float(high[0])) + Fraction(float(low[0])) == Fraction(value) ** 2


@quick
@given(st.data(), st.sampled_from([pa.string(), pa.int32(), pa.float64(), pa.decimal128(10, 2)]))
def test_listed_values_are_counted_by_group(data, kind: pa.DataType):
    rows = data.draw(st.lists(st.tuples(st.sampled_from(KEYS[kind]), st.integers(-1, 3), st.integers(1, 5)), max_size=30))
    column, at = pa.array([row[0] for row in rows], kind), np.array([row[1] for row in rows], np.int64)
    places, values, counts = reduce_listed("values", [column], at, np.array([row[2] for row in rows], np.int64))
    found = dict(zip(zip(places.tolist(), map(canonical_key, values[0].to_pylist()), strict=True), counts.tolist(), strict=True))
    expected: dict[Any, int] = {}
    for value, place, count in rows:
        if value is not None and place >= 0:
            at_key = place, canonical_key(value)
            expected[at_key] = expected.get(at_key, 0) + count
    assert found == expected
    assert len(found) == len(places)


@quick
@given(st.data(), st.integers(1, 4))
def test_compaction_preserves_partials(data, count: int):
    components = (Component("rows"), Component("add", (Column("n", pa.int64()),)), Component("min", (Column("n", pa.int64()),)))
    expected: dict[tuple[str, int], list[int]] = {}
    parts = []
    for _ in range(count):
        held = data.draw(
            st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), st.integers(-(2**40), 2**40), min_size=1)
        )
        keys = sorted({key for key, _ in held})
        cells = sorted(held, key=lambda at: (keys.index(at[0]), at[1]))
        starts = np.searchsorted([keys.index(key) for key, _ in cells], np.arange(len(keys) + 1))
        values = np.array([held[at] for at in cells], np.int64)
        dense = [[np.ones(len(cells), np.int64)], [values & 0xFFFFFFFF, values >> 32], [narrow_integers(values)]]
        parts.append(PartialAggregate(5, [pa.array(keys)], starts, narrow_integers(np.array([cell for _, cell in cells])), dense))
        for at in cells:
            expected.setdefault(at, []).append(held[at])
    found = merge_partials(components, parts)
    keys = found.keys[0].to_pylist()
    at = [
        (keys[key], int(found.cells[i]))
        for key in range(found.key_count)
        for i in range(found.starts[key], found.starts[key + 1])
    ]
    assert len(at) == len(set(at)) == len(found.cells)
    assert dict(zip(at, widen_integers(found.dense[0][0]).tolist(), strict=True)) == {
        key: len(values) for key, values in expected.items()
    }
    assert dict(zip(at, to_values("add", found.dense[1]), strict=True)) == {key: sum(values) for key, values in expected.items()}
    assert dict(zip(at, widen_integers(found.dense[2][0]).tolist(), strict=True)) == {
        key: min(values) for key, values in expected.items()
    }
    for key in range(found.key_count):
        mine = found.cells[found.starts[key] : found.starts[key + 1]].tolist()
        assert mine == sorted(mine)


# Packing


def example() -> dict[str, Any]:
    return {
        "numbers": np.arange(100),
        "floats": np.linspace(0, 1, 7),
        "nothing": np.zeros(0, np.int8),
        "strings": pa.array(["a", None, "é" * 20]),
        "slice": pa.array(range(50)).slice(7, 9),
        "text": "x",
    }


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        np.array_equal(a, right[name])
        if isinstance(a, np.ndarray)
        else a.equals(right[name])
        if isinstance(a, pa.Array)
        else a == right[name]
        for name, a in left.items()
    )


def test_unpacking_reverses_packing():
    assert same(example(), container.unpack(container.pack(example())))


@quick
@given(key_columns())
def test_columns_of_every_type_survive_packing(drawn):
    types, rows = drawn
    columns = arrays(types, rows, 2)
    for before, after in zip(columns, container.unpack(container.pack(columns)), strict=True):
        assert after.type == before.type
        after.validate(full=True)
        assert [canonical_key(value) for value in after.to_pylist()] == [canonical_key(value) for value in before.to_pylist()]


def test_truncated_content_is_detected():
    whole = container.pack(example())
    for size in range(len(whole)):
        try:
            found = container.unpack(whole[:size])
        except ValueError:
            continue
        assert same(example(), found), f"{size} of {len(whole)} bytes are read without an error"


def test_a_damaged_header_is_detected():
    whole = container.pack(example())
    (head,) = struct.unpack("<Q", whole[8:16])
    for place in range(24 + head):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(ValueError, match="container"):
            container.unpack(bytes(damaged))


def test_damaged_arrays_are_detected():
    whole = container.pack({"numbers": np.arange(100), "texts": pa.array(["a", None, "bcd"])})
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        try:
            found = container.unpack(bytes(damaged))
        except ValueError:
            continue
        assert found["numbers"].tolist() == list(range(100)), f"byte {place} is not covered"
        assert found["texts"].to_pylist() == ["a", None, "bcd"], f"byte {place} is not covered"


@pytest.mark.parametrize(
    "content", [b"", b"HR", b"HRCONT1\0", b"HRCONT1\0" + b"\xff" * 40, b"something else entirely, and long enough"]
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "x.part").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"file '.*x\.part' of the checkpoint is damaged"):
        container.read(PosixStore(tmp_path), "x.part")


def test_a_file_is_memory_mapped_and_replaced_atomically(tmp_path: Path):
    container.write(PosixStore(tmp_path), "x", np.arange(5))
    first = container.read(PosixStore(tmp_path), "x")
    container.write(PosixStore(tmp_path), "x", np.arange(9))
    assert first.tolist() == list(range(5)), "readers that have mapped the old file keep its content"
    assert container.read(PosixStore(tmp_path), "x").tolist() == list(range(9))
    assert not first.flags.writeable
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
