"""Reference state of joins.

A window join buffers rows by window, and joins by nested loops when windows close. A sliding join compares each new row with all
earlier rows of the other inputs; an outer one compares a row with all rows of the other input again when no partner can come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.backends.reference.evaluate import Row, evaluate, is_true
from headrace.backends.reference.numbers import group_key
from headrace.backends.reference.windows import RowOutcome
from headrace.errors import EvaluationError
from headrace.model.expression import Expression
from headrace.plan.sliding_join import SlidingJoinQuery, referenced_inputs
from headrace.plan.window_join import JoinNode, JoinTree, WindowJoinQuery, present_column, split_joined_name

JoinedRow = dict[str, Any]


@dataclass(slots=True)
class WindowJoinState:
    """Rows in open windows: common end of the windows → rows of each input in order of arrival."""

    plan: WindowJoinQuery
    since: float
    _open_windows: dict[int, list[list[JoinedRow]]] = field(default_factory=dict)

    def add(self, index: int, time: int, watermark: float, row: Row) -> RowOutcome:
        """Add a row of an input to those of its windows that are open."""
        ends = [
            end
            for end in self.plan.ends.ends_containing(self.plan.inputs[index].window.size, time)
            if end - self.plan.longest_window >= self.since
        ]
        open_ends = [end for end in ends if end > watermark]
        if not open_ends:
            return RowOutcome.LATE if ends else RowOutcome.OUTSIDE
        joined = {f"{index}.{name}": value for name, value in row.items()} | {present_column(index).name: True}
        for end in open_ends:
            self._open_windows.setdefault(end, [[] for _ in self.plan.inputs])[index].append(joined)
        return RowOutcome.KEPT

    def close(self, watermark: float) -> Iterator[tuple[int, list[JoinedRow]]]:
        """Yield (end, joined rows) of all windows with end ≤ watermark, ascending, and drop their rows."""
        for end in sorted(end for end in self._open_windows if end <= watermark):
            yield end, _join_rows(self.plan.tree, self._open_windows.pop(end))


def _join_rows(tree: JoinTree, inputs: list[list[JoinedRow]]) -> list[JoinedRow]:
    if isinstance(tree, int):
        return inputs[tree]
    left, right = _join_rows(tree.left, inputs), _join_rows(tree.right, inputs)
    matches = [[number for number, candidate in enumerate(right) if _is_match(tree, row, candidate)] for row in left]
    joined: list[JoinedRow] = []
    if tree.kind.has_both_sides:
        joined += [{**row, **right[number]} for row, numbers in zip(left, matches, strict=True) for number in numbers]
    else:
        joined += [] if tree.kind.keeps_left else [row for row, numbers in zip(left, matches, strict=True) if numbers]
    if tree.kind.keeps_left:
        joined += [row for row, numbers in zip(left, matches, strict=True) if not numbers]
    if tree.kind.keeps_right:
        matched = {number for numbers in matches for number in numbers}
        joined += [candidate for number, candidate in enumerate(right) if number not in matched]
    return joined


def _is_match(node: JoinNode, left: JoinedRow, right: JoinedRow) -> bool:
    """Tell whether two rows match; a condition that overflows counts as NULL."""
    for equality in node.equalities:
        left_value, right_value = _evaluate_or_null(equality.left, left), _evaluate_or_null(equality.right, right)
        if left_value is None or right_value is None or group_key(left_value) != group_key(right_value):
            return False
    try:
        return is_true(node.residual, {**left, **right})
    except EvaluationError:
        return False


def _evaluate_or_null(expression: Expression, row: JoinedRow) -> Any:
    try:
        return evaluate(expression, row)
    except EvaluationError:
        return None


TimedRow = tuple[int, Row]


@dataclass(slots=True)
class SlidingJoinState:
    """All rows that were not late, by input, in order of arrival; without eviction.

    `_undecided` are the rows of each outer input that may still find their first partner.
    """

    plan: SlidingJoinQuery
    _rows: list[list[TimedRow]] = field(init=False)
    _undecided: dict[int, list[TimedRow]] = field(init=False)
    _condition_inputs: list[tuple[Expression, frozenset[int]]] = field(init=False)

    def __post_init__(self) -> None:
        """Start with no rows; find the inputs of each condition once."""
        self._rows = [[] for _ in self.plan.inputs]
        self._undecided = {index: [] for index in self.plan.outer_inputs}
        self._condition_inputs = [(condition, referenced_inputs(condition)) for condition in self.plan.conditions]

    def add(self, index: int, time: int, watermark: float, row: Row) -> tuple[RowOutcome, list[Row]]:
        """Add a row of an input; return its outcome, and the joined rows that it completes, if these are results."""
        if time < watermark - self.plan.inputs[index].lateness:
            return RowOutcome.LATE, []
        timed = (time, {f"{index}.{name}": value for name, value in row.items()})
        self._rows[index].append(timed)
        if index in self._undecided:
            self._undecided[index].append(timed)
        return RowOutcome.KEPT, list(self._join_arrival(index, timed)) if self.plan.emits_matches else []

    def take_unmatched(self, watermark: float) -> Iterator[Row]:
        """Yield the rows of outer inputs without a partner whose partners would all be late; drop those rows and their like."""
        for index, undecided in self._undecided.items():
            wait = self.plan.inputs[index].length + self.plan.inputs[1 - index].lateness
            self._undecided[index] = [(time, row) for time, row in undecided if time + wait >= watermark]
            for time, row in undecided:
                if time + wait < watermark and next(self._join_arrival(index, (time, row)), None) is None:
                    yield row

    def backfill(self, index: int, donor: SlidingJoinState, donor_index: int, since: float) -> None:
        """Backfill an input with the rows of another query's input from event time `since` on; emit no results for them."""
        for time, row in donor._rows[donor_index]:
            if time >= since:
                self._rows[index].append((time, {f"{index}.{split_joined_name(name)[1]}": value for name, value in row.items()}))

    def _join_arrival(self, index: int, arrived: TimedRow) -> Iterator[Row]:
        """Yield the joined rows that a new row completes: extend it by one other input after the other."""
        others = [number for number in range(len(self._rows)) if number != index]
        yield from self._extend_row({index: arrived[0]}, dict(arrived[1]), others)

    def _extend_row(self, times: dict[int, int], row: dict[str, Any], others: list[int]) -> Iterator[Row]:
        if not others:
            yield row
            return
        number = max(others, key=lambda other: len(self._list_conditions(times, other)))  # cross products last
        rest = [other for other in others if other != number]
        conditions = self._list_conditions(times, number)
        oldest, newest = self._find_range(times, number)
        for time, match in self._rows[number]:
            if oldest <= time <= newest:
                joined = {**row, **match}
                if all(_is_satisfied(condition, joined) for condition in conditions):
                    yield from self._extend_row({**times, number: time}, joined, rest)

    def _list_conditions(self, times: dict[int, int], number: int) -> list[Expression]:
        """Return the conditions between an input and those that are joined already; of an outer join, all conditions."""
        joined = {*times, number}
        is_outer = bool(self.plan.outer_inputs)
        return [condition for condition, inputs in self._condition_inputs if inputs <= joined and (is_outer or number in inputs)]

    def _find_range(self, times: dict[int, int], number: int) -> tuple[int, int]:
        """Return the oldest and newest time of a row of one more input such that each row is in its window before the newest."""
        oldest = max(times.values()) - self.plan.inputs[number].length
        return oldest, min(time + self.plan.inputs[other].length for other, time in times.items())


def _is_satisfied(condition: Expression, row: Row) -> bool:
    """Tell whether a condition is TRUE; one that overflows counts as NULL."""
    try:
        return is_true(condition, row)
    except EvaluationError:
        return False
