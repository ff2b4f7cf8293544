"""Every row carries the set of queries it still matters to; every operator works once for all of them.

This module finds the query-set of a row without evaluating each query. All constants that live queries compare an expression with
cut its domain into *segments*; predicates that are not comparisons become boolean *atoms* with three segments. Each such
expression is a `Dimension`; a combination of one segment of each dimension is a *cell*. On a cell, every predicate over these
atoms has one truth value, so a cell number stands for a query-set. Finding it costs one look-up per dimension, regardless of the
number of queries.

    price:      <10      10..20     ≥20      NULL         dimension with boundaries (10, 20)
    segment:     0         1         2         3
    price>=10:   F         T         T         –
    price<20:    T         T         F         –

Truth is three-valued and encoded so that AND is minimum and OR is maximum: FALSE 0, NULL 1, TRUE 2.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.expression import COMPARISON_FUNCTIONS, TRUE, Call, Expression, Literal
from headrace.model.record import record

FALSE_CODE, NULL_CODE, TRUE_CODE = 0, 1, 2
Boundary: TypeAlias = int | float | str
TruthCodes: TypeAlias = npt.NDArray[np.int8]

_MIRRORED_COMPARISON = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_EXACT_INT_BITS = {pa.float64(): 53, pa.float32(): 24}
_EPOCH_DAY, _EPOCH = date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)


@record("dimension")
@dataclass(frozen=True, slots=True)
class Dimension:
    """An expression whose value decides atoms.

    Ordered (`boundaries` is a sorted tuple): segment i holds the values that reach exactly i boundaries; the last segment holds
    NULL. Boolean (`boundaries` is None): the segments are FALSE, NULL, TRUE.
    """

    expression: Expression
    boundaries: tuple[Boundary, ...] | None

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return 3 if self.boundaries is None else len(self.boundaries) + 2


@dataclass(frozen=True, slots=True)
class OrderedAtom:
    """TRUE where the value of `expression` lies in one of the half-open `spans` (None is unbounded)."""

    expression: Expression
    spans: tuple[tuple[Boundary | None, Boundary | None], ...]
    null_is_true: bool = False


@dataclass(frozen=True, slots=True)
class BooleanAtom:
    """TRUE where the boolean `expression` is TRUE."""

    expression: Expression


Atom: TypeAlias = OrderedAtom | BooleanAtom


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether segments of that type can be bounded by 64-bit numbers or strings."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= 18)
    return not pa.types.is_null(kind)


def to_atom(expression: Expression) -> Atom:
    """Return the atom of a predicate without AND, OR and NOT at its top."""
    if isinstance(expression, Call):
        if expression.function == "is_null" and is_ordered(expression.args[0].type):
            return OrderedAtom(expression.args[0], (), null_is_true=True)
        if expression.function in COMPARISON_FUNCTIONS:
            return _atom_of_comparison(expression) or BooleanAtom(expression)
        if expression.function == "in":
            return _atom_of_in_list(expression) or BooleanAtom(expression)
    return BooleanAtom(expression)


def iter_atoms(predicate: Expression) -> Iterable[Atom]:
    """Yield the atoms of a predicate."""
    if isinstance(predicate, Call) and predicate.function in {"and", "or", "not"}:
        for arg in predicate.args:
            yield from iter_atoms(arg)
    elif predicate != TRUE:
        yield to_atom(predicate)


def derive_dimensions(predicates: Iterable[Expression]) -> tuple[Dimension, ...]:
    """Return the dimensions that decide all the predicates, in a canonical order."""
    return combine_dimensions(map(_list_dimensions, predicates))


def combine_dimensions(parts: Iterable[Iterable[Dimension]]) -> tuple[Dimension, ...]:
    """Return the dimensions that decide what each of the parts decides, in a canonical order."""
    cuts: dict[Expression, set[Boundary]] = {}
    booleans: dict[Expression, None] = {}
    for dimensions in parts:
        for dimension in dimensions:
            if dimension.boundaries is None:
                booleans[dimension.expression] = None
            else:
                cuts.setdefault(dimension.expression, set()).update(dimension.boundaries)
    ordered = [Dimension(expression, tuple(sorted(bounds))) for expression, bounds in cuts.items()]
    return tuple(sorted([*ordered, *(Dimension(e, None) for e in booleans)], key=lambda d: str(d.expression)))


def _list_dimensions(predicate: Expression) -> Iterator[Dimension]:
    """Yield a dimension for each atom of a predicate."""
    for atom in iter_atoms(predicate):
        if isinstance(atom, BooleanAtom):
            yield Dimension(atom.expression, None)
        else:
            yield Dimension(atom.expression, tuple(bound for span in atom.spans for bound in span if bound is not None))


def evaluate_truth(predicate: Expression, dims: Sequence[Dimension], segments: Sequence[npt.NDArray[np.int64]]) -> TruthCodes:
    """Return the truth of a predicate on cells, given each dimension's segment numbers (arrays that broadcast)."""
    if predicate == TRUE:
        return np.full(np.broadcast_shapes((1,), *(s.shape for s in segments)), TRUE_CODE, np.int8)
    if isinstance(predicate, Call) and predicate.function in {"and", "or"}:
        left, right = (evaluate_truth(arg, dims, segments) for arg in predicate.args)
        return np.minimum(left, right) if predicate.function == "and" else np.maximum(left, right)
    if isinstance(predicate, Call) and predicate.function == "not":
        inner: TruthCodes = TRUE_CODE - evaluate_truth(predicate.args[0], dims, segments)
        return inner
    atom = to_atom(predicate)
    position = next(
        i
        for i, d in enumerate(dims)
        if d.expression == atom.expression and (d.boundaries is None) == isinstance(atom, BooleanAtom)
    )
    table: TruthCodes = _build_truth_table(atom, dims[position])[segments[position]]
    return table


def _build_truth_table(atom: Atom, dimension: Dimension) -> TruthCodes:
    if isinstance(atom, BooleanAtom) or dimension.boundaries is None:
        return np.array([FALSE_CODE, NULL_CODE, TRUE_CODE], np.int8)
    table = np.zeros(dimension.segment_count, np.int8)
    for low, high in atom.spans:
        first = 0 if low is None else bisect.bisect_left(dimension.boundaries, low) + 1
        last = dimension.segment_count - 1 if high is None else bisect.bisect_left(dimension.boundaries, high) + 1
        table[first:last] = TRUE_CODE
    if atom.null_is_true:
        table[:-1], table[-1] = FALSE_CODE, TRUE_CODE
    else:
        table[-1] = NULL_CODE
    return table


def _atom_of_comparison(call: Call) -> OrderedAtom | None:
    function, (left, right) = call.function, call.args
    if isinstance(left, Literal):
        function, left, right = _MIRRORED_COMPARISON[function], right, left
    bounds = _find_bounds(left, right)
    if bounds is None:
        return None
    expression, low, high = bounds
    spans: dict[str, tuple[tuple[Boundary | None, Boundary | None], ...]] = {
        "lt": ((None, low),), "ge": ((low, None),), "le": ((None, high),), "gt": ((high, None),),
        "eq": ((low, high),), "ne": ((None, low), (high, None)),
    }  # fmt: skip
    return OrderedAtom(expression, spans[function])


def _atom_of_in_list(call: Call) -> OrderedAtom | None:
    spans = []
    expression = _strip_exact_casts(call.args[0])
    for literal in call.args[1:]:
        bounds = _find_bounds(call.args[0], literal)
        if bounds is None:
            return None
        spans.append((bounds[1], bounds[2]))
    return OrderedAtom(expression, tuple(spans))


def _find_bounds(left: Expression, right: Expression) -> tuple[Expression, Boundary, Boundary] | None:
    """Return (expression, v, the value just above v) if `left` can be cut at the constant `right`."""
    if not isinstance(right, Literal) or isinstance(left, Literal) or right.value is None:
        return None
    expression = _strip_exact_casts(left)
    if not is_ordered(expression.type):
        return None
    pair = _to_boundaries(expression.type, right.value)
    return None if pair is None else (expression, *pair)


def _strip_exact_casts(expression: Expression) -> Expression:
    """Remove casts that preserve order and value, so that `x > 1` and `x > 1.5` cut the same dimension."""
    while (
        isinstance(expression, Call)
        and expression.function == "cast"
        and _is_exact_cast(expression.args[0].type, expression.type)
    ):
        expression = expression.args[0]
    return expression


def _is_exact_cast(inner: pa.DataType, outer: pa.DataType) -> bool:
    if pa.types.is_integer(inner):
        if pa.types.is_decimal(outer):
            return bool(outer.precision - outer.scale >= len(str(2 ** (inner.bit_width - 1))))
        width = outer.bit_width if pa.types.is_integer(outer) else _EXACT_INT_BITS.get(outer, 0)
        return bool(width >= inner.bit_width)
    if pa.types.is_decimal(inner) and pa.types.is_decimal(outer):
        return bool(outer.scale >= inner.scale and outer.precision - outer.scale >= inner.precision - inner.scale)
    return bool(inner == pa.float32() and outer == pa.float64())


def _to_boundaries(kind: pa.DataType, value: object) -> tuple[Boundary, Boundary] | None:
    """Return the boundaries at and just above a constant, in the units in which a dimension of that type is stored."""
    if isinstance(value, str):
        return (value, value + "\0") if pa.types.is_string(kind) else None
    if isinstance(value, datetime):
        micros = (value - _EPOCH) // (datetime.resolution)
        return micros, micros + 1
    if isinstance(value, date):
        days = (value - _EPOCH_DAY).days
        return days, days + 1
    if not isinstance(value, int | float | Decimal) or (isinstance(value, float | Decimal) and not math.isfinite(value)):
        return None
    if pa.types.is_floating(kind):
        number = float(value) + 0.0
        return (number, math.nextafter(number, math.inf)) if number < 1.7e308 else None
    scaled = Fraction(value) * 10 ** (kind.scale if pa.types.is_decimal(kind) else 0)
    return math.ceil(scaled), math.floor(scaled) + 1


@record("cell-layout")
class CellLayout(StrEnum):
    """Numbering schemes for the cells of a predicate index."""

    GRID = "grid"  # every combination of segments has a number; with one dimension, cells are segments
    SIGNATURES = "signatures"  # too many combinations: those that occur are numbered in the order of their occurrence
    PER_QUERY = "per query"  # each predicate is evaluated separately; a row counts once for each that holds


@record("predicate-index")
@dataclass(frozen=True, slots=True)
class PredicateIndex:
    """The predicate index of a shared selection: distinct predicates over one stream, their dimensions, and the cell layout."""

    predicates: tuple[Expression, ...]
    dimensions: tuple[Dimension, ...]
    layout: CellLayout

    @property
    def cell_count(self) -> int:
        """The number of possible cells."""
        return math.prod(d.segment_count for d in self.dimensions)

    @property
    def strides(self) -> tuple[int, ...]:
        """The cell number difference between adjacent segments of each dimension."""
        sizes = [d.segment_count for d in self.dimensions]
        return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


@dataclass(frozen=True, slots=True)
class CellSpans:
    """For predicate i, the cells on which it holds: [low, high) for the entries offsets[i] … offsets[i + 1] − 1."""

    offsets: npt.NDArray[np.int64]
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]
    cell_count: int

    def get_spans(self, index: int) -> list[tuple[int, int]]:
        """Return the spans of one predicate."""
        entries = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return list(zip(self.lows[entries].tolist(), self.highs[entries].tolist(), strict=True))

    def find_covered_cells(self) -> npt.NDArray[np.bool_]:
        """Return, for each cell, whether any predicate holds on it; rows of other cells are dropped."""
        steps = np.zeros(self.cell_count + 1, np.int64)
        np.add.at(steps, self.lows, 1)
        np.add.at(steps, self.highs, -1)
        return np.cumsum(steps[:-1]) > 0


def compute_grid_spans(selection: PredicateIndex) -> CellSpans:
    """Return the spans of every predicate over the complete grid."""
    if selection.layout is CellLayout.PER_QUERY:
        count = len(selection.predicates)
        return CellSpans(np.arange(count + 1), np.arange(count), np.arange(1, count + 1), count)
    return _evaluate_grid(selection, selection.predicates)


def _evaluate_grid(selection: PredicateIndex, predicates: Iterable[Expression]) -> CellSpans:
    sizes = [d.segment_count for d in selection.dimensions]
    mesh = [m.astype(np.int64) for m in np.ix_(*(np.arange(s) for s in sizes))] if sizes else []
    spans_by_predicate = [
        _find_single_span(p, selection)
        or _find_true_runs(np.broadcast_to(evaluate_truth(p, selection.dimensions, mesh), sizes or (1,)))
        for p in predicates
    ]
    return _pack_spans(spans_by_predicate, selection.cell_count)


def extend_grid_spans(selection: PredicateIndex, before: PredicateIndex, spans: CellSpans) -> CellSpans:
    """Return the spans over the complete grid, given those of a predicate index before a change.

    If the cells are segments of one dimension, the spans of predicates in both are translated, and only new ones are evaluated.
    A predicate is in both if it is one object.
    """
    translation = _translate_cells(before, selection)
    if translation is None:
        return compute_grid_spans(selection)
    known = {id(predicate): number for number, predicate in enumerate(before.predicates)}
    sources = np.array([known.get(id(predicate), -1) for predicate in selection.predicates], np.int64)
    is_new = sources < 0
    added = _evaluate_grid(selection, [selection.predicates[number] for number in np.flatnonzero(is_new).tolist()])
    sources[is_new] = len(before.predicates) + np.arange(int(is_new.sum()))
    all_offsets = np.concatenate([spans.offsets, spans.offsets[-1] + added.offsets[1:]])
    firsts, counts = all_offsets[sources], (all_offsets[1:] - all_offsets[:-1])[sources]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    entries = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts) + np.repeat(firsts, counts)
    lows, highs = np.concatenate([translation[spans.lows], added.lows]), np.concatenate([translation[spans.highs], added.highs])
    return CellSpans(offsets, lows[entries], highs[entries], selection.cell_count)


def _translate_cells(before: PredicateIndex, after: PredicateIndex) -> npt.NDArray[np.int64] | None:
    """Return where the cells of a grid, and their end, are in another grid of the same dimension; None for other grids.

    A boundary that only one of the two has is no edge of a span that both have.
    """
    if before.layout is not CellLayout.GRID or after.layout is not CellLayout.GRID:
        return None
    if before.dimensions == after.dimensions:
        return np.arange(before.cell_count + 1)
    if [d.expression for d in before.dimensions] != [d.expression for d in after.dimensions] or len(after.dimensions) != 1:
        return None
    old, new = before.dimensions[0].boundaries, after.dimensions[0].boundaries
    if old is None or new is None:
        return None
    edges = [bisect.bisect_left(new, bound) + 1 for bound in old]
    return np.array([0, *edges, len(new) + 1, len(new) + 2], np.int64)


def compute_cell_spans(selection: PredicateIndex, cells: npt.NDArray[np.int64]) -> CellSpans:
    """Return the spans of every predicate over a sorted list of occurring cells, by position in that list."""
    segments = [cells // stride % d.segment_count for d, stride in zip(selection.dimensions, selection.strides, strict=True)]
    spans_by_predicate = [
        _find_true_runs(np.broadcast_to(evaluate_truth(p, selection.dimensions, segments), cells.shape))
        for p in selection.predicates
    ]
    return _pack_spans(spans_by_predicate, len(cells))


def _find_single_span(predicate: Expression, selection: PredicateIndex) -> list[tuple[int, int]] | None:
    """Return the span of a single comparison over a single dimension, the common case; None for any other predicate."""
    if len(selection.dimensions) != 1 or not isinstance(predicate, Call) or predicate.function in {"and", "or", "not"}:
        return None
    atom, bounds = to_atom(predicate), selection.dimensions[0].boundaries
    if isinstance(atom, BooleanAtom) or bounds is None or atom.null_is_true or len(atom.spans) != 1:
        return None
    low, high = atom.spans[0]
    first = 0 if low is None else bisect.bisect_left(bounds, low) + 1
    last = len(bounds) + 1 if high is None else bisect.bisect_left(bounds, high) + 1
    return [(first, last)]


def _find_true_runs(values: TruthCodes) -> list[tuple[int, int]]:
    holds = np.concatenate([[False], values.reshape(-1) == TRUE_CODE, [False]])
    edges = np.flatnonzero(holds[1:] != holds[:-1])
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _pack_spans(spans_by_predicate: Sequence[Sequence[tuple[int, int]]], size: int) -> CellSpans:
    nonempty = [[span for span in spans if span[0] < span[1]] for spans in spans_by_predicate]
    offsets = np.cumsum([0, *map(len, nonempty)])
    flat = np.array([span for spans in nonempty for span in spans], np.int64).reshape(-1, 2)
    return CellSpans(offsets.astype(np.int64), np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]), size)
