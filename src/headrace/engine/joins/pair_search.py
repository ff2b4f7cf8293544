"""The pairs of rows that queries compare at one step without equalities, found together for queries with different conditions.

A query with bounds searches the sorted values of one attribute of the build side: for each probe row it has a range of positions.
Queries that search the same attribute visit the union of their ranges once; where ranges of several queries overlap, they are
divided into pieces, each with the set of the queries whose ranges contain it:

    positions of the build rows by attribute   0 1 2 3 4 5 6 7 8
    range of query A for a probe row               ├───┤             the probe row is paired with position 2 for A,
    range of query B                                 ├───────┤       with 3 and 4 for A and B, and with 5 to 7 for B

Each query searches the attribute that it would search alone, and each pair of positions is visited at most once for an attribute.
So queries together never compare more pairs than apart. The pairs of a query's range are those that satisfy the condition;
`PairSearch.checks` has the conditions that are still to be evaluated: those without bounds, those on another attribute, and those
whose chain may overflow or be NaN. A query without bounds compares all pairs, in nested loops, which evaluate one condition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.budgets import BudgetMeter
from headrace.engine.compute.columns import combine_chunks, to_numbers, valid_mask
from headrace.engine.joins.bounds import RangeBound, find_bounds
from headrace.engine.joins.index import (
    NO_LIMITS,
    Candidates,
    IndexKeys,
    Integers,
    PairLimits,
    RowIds,
    RowIndexes,
    RowPairs,
    SortedIndex,
    find_pairs,
)
from headrace.engine.joins.joined_rows import JoinedRows
from headrace.engine.joins.nested_loops import loop_over_pairs
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps, make_bitmap
from headrace.model.expression import TRUE, Call, Expression, Literal, column_names

MAX_RANGES = 1 << 20  # limit of ranges in memory at once
_MAX_PAIRED_ATTRIBUTES = 4  # pairs of attributes that are tried as a band
_LEAST = np.iinfo(np.int64).min
_UNKNOWN, _SEARCHED, _KEPT = 0, 1, 2  # states of a probe row, see `kernels.join.narrow_ranges`


@dataclass(frozen=True, slots=True, eq=False)
class SearchGroup:
    """Queries that have the same conditions with bounds, and the attributes by which they may search: one, or two as a band.

    Without `choices`, all pairs of rows are compared.
    """

    query_ids: tuple[int, ...]
    users: QueryBitmaps
    bounds: Mapping[Expression, tuple[RangeBound, ...]]
    choices: tuple[IndexKeys, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SearchPlan:
    """The groups of the queries of a step, and the conditions that have no bounds, each with the queries that have it.

    `looped` are those that nested loops evaluate, `conditions` the others.
    """

    groups: tuple[SearchGroup, ...]
    looped: Mapping[Expression, QueryBitmaps]
    conditions: Mapping[Expression, QueryBitmaps]

    @property
    def attributes(self) -> frozenset[Expression]:
        """The attributes of which an index is certain to be read."""
        return frozenset(choice[0] for group in self.groups for choice in group.choices if len(choice) == 1)


@dataclass(frozen=True, slots=True)
class StepUser:
    """A query at a step: its bit, and its conditions between the two sides."""

    query_id: int
    bit: int
    conditions: tuple[Expression, ...]


def plan_search(users: Iterable[StepUser], is_stored: Callable[[str], bool], width: int) -> SearchPlan:
    """Return the plan of a step without equalities; `is_stored` tells the columns of the build side."""
    members: dict[frozenset[Expression], list[StepUser]] = defaultdict(list)
    bounds: dict[Expression, tuple[RangeBound, ...]] = {}
    unbounded: dict[Expression, list[int]] = defaultdict(list)
    for user in users:
        for condition in user.conditions:
            if condition not in bounds:
                bounds[condition] = find_bounds(condition, frozenset(filter(is_stored, column_names(condition))))
            if not bounds[condition] and condition != TRUE:
                unbounded[condition].append(user.bit)
        members[frozenset(condition for condition in user.conditions if bounds[condition])].append(user)
    groups = [
        SearchGroup(
            tuple(user.query_id for user in group),
            make_bitmap([user.bit for user in group], width),
            own_bounds := {condition: bounds[condition] for condition in sorted(conditions, key=str)},
            _list_choices(own_bounds),
        )
        for conditions, group in members.items()
    ]
    looped = _choose_looped({user.bit for user in members.get(frozenset(), ())}, unbounded)
    return SearchPlan(
        tuple(groups),
        {condition: make_bitmap(bits, width) for condition, bits in looped.items()},
        {
            condition: make_bitmap(others, width)
            for condition, bits in unbounded.items()
            if (others := [bit for bit in bits if bit not in looped.get(condition, ())])
        },
    )


def _choose_looped(looping: set[int], conditions: Mapping[Expression, list[int]]) -> dict[Expression, list[int]]:
    """Return conditions, each with its queries, of which every looping query has one: those of most queries, `<>` last."""
    looped: dict[Expression, list[int]] = {}
    waiting = set(looping)
    shared = {condition: [bit for bit in bits if bit in looping] for condition, bits in conditions.items()}
    for condition in sorted(shared, key=lambda one: (isinstance(one, Call) and one.function == "ne", -len(shared[one]))):
        if not waiting.isdisjoint(shared[condition]):
            waiting.difference_update(shared[condition])
            looped[condition] = shared[condition]
    return looped


def _list_choices(bounds: Mapping[Expression, tuple[RangeBound, ...]]) -> tuple[IndexKeys, ...]:
    """Return the attributes that are bounded on both sides; if there are none, all, and pairs of them that may be a band."""
    upper, lower = (
        dict.fromkeys(bound.attribute for solved in bounds.values() for bound in solved if bound.is_upper is is_upper)
        for is_upper in (True, False)
    )
    bands = [(attribute,) for attribute in upper if attribute in lower]
    if bands:
        return tuple(bands)
    pairs = [(first, second) for first in lower for second in upper][:_MAX_PAIRED_ATTRIBUTES]
    return (*((attribute,) for attribute in (*lower, *upper)), *pairs)


@dataclass(frozen=True, slots=True, eq=False)
class _Ranges:
    """A range of positions in an order of the build rows for each probe row; the conditions that it does not decide."""

    begins: RowIds
    ends: RowIds
    undecided: tuple[Expression, ...]

    def count_pairs(self) -> int:
        return int((self.ends - self.begins).sum(dtype=np.int64))


class PairSearch:
    """The search of the rows that probe at a step without equalities."""

    def __init__(self, plan: SearchPlan, probe: JoinedRows, meter: BudgetMeter) -> None:
        """Search for all of these rows; `meter` counts the pairs that each query compares."""
        self._plan, self._meter = plan, meter
        self._row_count, self._probe = probe.row_count, probe
        self._block_size = 1 << max(0, (MAX_RANGES // (2 * max(1, len(plan.groups)))).bit_length() - 1)
        self.pair_count = 0
        """The pairs of rows that were compared so far, for all queries together."""
        self.checks: dict[Expression, QueryBitmaps] = dict(plan.conditions)
        """The conditions still to be evaluated on the pairs found so far, each for the queries that need it."""

    def find_pairs(self, indexes: RowIndexes, build_sets: QueryBitmaps, limits: PairLimits = NO_LIMITS) -> Iterator[RowPairs]:
        """Yield the pairs within limits and ranges whose query-sets intersect, a bounded number at a time."""
        for start in range(0, self._row_count, self._block_size):
            block, block_limits = self._probe, limits
            if self._block_size < self._row_count:
                rows = np.arange(start, min(self._row_count, start + self._block_size))
                block, block_limits = self._probe.take(rows), _take_limits(limits, rows)
            for pairs in self._search_block(block, indexes, build_sets, block_limits):
                yield replace(pairs, probe_ids=pairs.probe_ids + start) if start else pairs

    def _search_block(
        self, probe: JoinedRows, indexes: RowIndexes, build_sets: QueryBitmaps, limits: PairLimits
    ) -> Iterator[RowPairs]:
        by_choice: dict[IndexKeys, list[tuple[SearchGroup, _Ranges]]] = defaultdict(list)
        orders: dict[IndexKeys, Integers] = {}
        for group in self._plan.groups:
            is_used = np.any(probe.sets & group.users, axis=1)
            choice, ranges = min(
                (
                    (choice, found)
                    for choice in group.choices
                    if (found := _search(group, choice, probe, is_used, indexes, orders)) is not None
                ),
                key=lambda pair: pair[1].count_pairs(),
                default=((), _start_ranges(is_used, len(build_sets), tuple(group.bounds))),
            )
            self._meter.add_pairs(group.query_ids, ranges.count_pairs())
            for condition in ranges.undecided:
                self.checks[condition] = self.checks.get(condition, np.uint64(0)) | group.users
            by_choice[choice].append((group, ranges))
        for choice, parts in by_choice.items():
            if not choice and self._plan.looped:
                ((group, ranges),) = parts
                self.pair_count += ranges.count_pairs()
                yield from loop_over_pairs(probe, indexes.evaluate, build_sets, group.users, self._plan.looped, limits)
                continue
            order = _get_indexes(choice, indexes)[0].order if choice else None
            rows, pieces, sets = _merge_ranges(parts, probe.sets)
            candidates = Candidates(pieces, order)
            self.pair_count += candidates.pair_count
            for pairs in find_pairs(candidates, sets, build_sets, _take_limits(limits, rows)):
                yield pairs if rows is None else replace(pairs, probe_ids=rows[pairs.probe_ids])


def _search(
    group: SearchGroup,
    choice: IndexKeys,
    probe: JoinedRows,
    is_used: npt.NDArray[np.bool_],
    indexes: RowIndexes,
    orders: dict[IndexKeys, Integers],
) -> _Ranges | None:
    """Return the ranges of a group by its bounds on the chosen attributes; None if these have no common order.

    Rows that are not used have none. `orders` has the order in which rows search an attribute; the first group decides it.
    """
    found = _get_indexes(choice, indexes)
    if not found:
        return None
    ranges = _start_ranges(is_used, len(found[0].order))
    undecided = []
    for condition, bounds in group.bounds.items():
        is_decided = []
        for bound in bounds:
            if bound.attribute in choice:
                solved = _solve_bound(bound, probe)
                if choice not in orders:
                    orders[choice] = solved.order_rows()
                is_decided.append(_narrow(found[choice.index(bound.attribute)], solved, ranges, orders[choice]))
        if len(is_decided) < len(bounds) or not all(is_decided):
            undecided.append(condition)
    return _Ranges(ranges.begins, np.maximum(ranges.begins, ranges.ends), tuple(undecided))


def _take_limits(limits: PairLimits, rows: Integers | None) -> PairLimits:
    if rows is None or limits.low is None or limits.high is None:
        return limits
    return replace(limits, low=limits.low[rows], high=limits.high[rows])


def _merge_ranges(
    found: Sequence[tuple[SearchGroup, _Ranges]], sets: QueryBitmaps
) -> tuple[Integers | None, RowIds, QueryBitmaps]:
    """Return (rows, ranges, sets): the pieces of the ranges of several groups, each with the queries that need it."""
    if len(found) == 1:
        ((group, ranges),) = found
        return None, np.stack([ranges.begins, ranges.ends], axis=1), sets & group.users
    room = (2 * len(found) - 1) * len(sets)
    out_rows, out_ranges = np.empty(room, np.int64), np.empty((room, 2), np.int32)
    out_sets = np.empty((room, sets.shape[1]), np.uint64)
    begins, ends = np.stack([ranges.begins for _, ranges in found]), np.stack([ranges.ends for _, ranges in found])
    users = np.stack([group.users for group, _ in found])
    count = join_kernels.divide_ranges(begins, ends, users, np.ascontiguousarray(sets), out_rows, out_ranges, out_sets)
    return out_rows[:count], out_ranges[:count], out_sets[:count]


def _start_ranges(is_used: npt.NDArray[np.bool_], build_rows: int, undecided: tuple[Expression, ...] = ()) -> _Ranges:
    """Return the ranges of all build rows, empty for the probe rows that are not used."""
    return _Ranges(np.zeros(len(is_used), np.int32), np.where(is_used, build_rows, 0).astype(np.int32), undecided)


def _get_indexes(choice: IndexKeys, indexes: RowIndexes) -> tuple[SortedIndex, ...]:
    """Return the indexes of the attributes, which have one row order; none if two attributes have none."""
    return (indexes.get_sorted_index(choice[0]),) if len(choice) == 1 else indexes.get_band_indexes(*choice) or ()


def _narrow(index: SortedIndex, solved: _SolvedBound, ranges: _Ranges, order: Integers) -> bool:
    """Narrow ranges by a bound; return whether they then have exactly the rows that satisfy it."""
    bound, kind = solved.bound, solved.thresholds.dtype
    values = index.values.astype(kind)
    valid_count = len(values) - int(np.isnan(values).sum()) if bound.is_float else len(values)
    lows, highs = (np.array([step.limits[side] for step in bound.steps], kind) for side in (0, 1))
    factors = np.array([step.factor for step in bound.steps], np.int64)
    is_less, is_strict = bound.operator in ("lt", "le"), bound.operator in ("lt", "gt")
    is_exact: bool = join_kernels.narrow_ranges(
        values,
        valid_count,
        factors,
        solved.operands,
        lows,
        highs,
        solved.thresholds,
        solved.states,
        order,
        bound.falls,
        is_less,
        is_strict,
        ranges.begins,
        ranges.ends,
    )
    return is_exact


@dataclass(frozen=True, slots=True, eq=False)
class _SolvedBound:
    """A bound with the operands of its steps and the threshold of each probe row."""

    bound: RangeBound
    operands: npt.NDArray[Any]
    thresholds: npt.NDArray[Any]
    states: npt.NDArray[np.int8]

    def order_rows(self) -> Integers:
        """Return the probe rows in about the order of their places among the values of the attribute."""
        with np.errstate(all="ignore"):
            places = self.thresholds
            for step, operand in zip(reversed(self.bound.steps), self.operands[::-1], strict=True):
                places = (places - operand) * step.factor if abs(step.factor) == 1 else places // step.factor
        return np.argsort(places)


def _solve_bound(bound: RangeBound, probe: JoinedRows) -> _SolvedBound:
    kind = np.float64 if bound.is_float else np.int64
    states = np.full(probe.row_count, _SEARCHED, np.int8)
    operands = np.empty((len(bound.steps), probe.row_count), kind)
    for number, step in enumerate(bound.steps):
        operands[number] = _evaluate(step.operand, probe, kind, states)
        if step.operand_factor != 1:
            states[(operands[number] == _LEAST) & (states == _SEARCHED)] = _KEPT  # has no negative
            operands[number] *= step.operand_factor
    thresholds = np.ascontiguousarray(np.broadcast_to(_evaluate(bound.threshold, probe, kind, states), probe.row_count))
    if bound.is_float:
        is_odd = np.isnan(thresholds) | ~np.isfinite(operands).all(axis=0)
        states[is_odd & (states == _SEARCHED)] = _KEPT
    return _SolvedBound(bound, operands, thresholds, states)


def _evaluate(
    expression: Expression, probe: JoinedRows, kind: type[np.float64 | np.int64], states: npt.NDArray[np.int8]
) -> npt.NDArray[Any]:
    """Return the values of an expression for the probe rows, one alone for a constant; rows of NULL get the state of NULL."""
    is_constant = isinstance(expression, Literal)
    column = (
        pa.array([expression.value], expression.type)
        if isinstance(expression, Literal)
        else combine_chunks(probe.evaluate(expression))
    )
    if column.null_count:
        states[slice(None) if is_constant else ~valid_mask(column)] = _UNKNOWN
    return to_numbers(column).astype(kind)
