"""Reference state of a sliding join: compares each new row with all earlier rows of the other inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.backends.reference.evaluate import Row, is_true
from headrace.backends.reference.windows import RowOutcome
from headrace.errors import EvaluationError
from headrace.model.expression import Expression
from headrace.plan.join import split_joined_name
from headrace.plan.multiway import SlidingJoinQuery, referenced_inputs

TimedRow = tuple[int, Row]


@dataclass(slots=True)
class SlidingJoinState:
    """All rows that were not late, by input, in order of arrival; without eviction."""

    plan: SlidingJoinQuery
    _rows: list[list[TimedRow]] = field(init=False)

    def __post_init__(self) -> None:
        """Start with no rows."""
        self._rows = [[] for _ in self.plan.inputs]

    def add(self, index: int, time: int, watermark: float, row: Row) -> tuple[RowOutcome, list[Row]]:
        """Add a row of an input; return its outcome, and the joined rows that it completes."""
        if time < watermark - self.plan.inputs[index].lateness:
            return RowOutcome.LATE, []
        timed = (time, {f"{index}.{name}": value for name, value in row.items()})
        self._rows[index].append(timed)
        return RowOutcome.KEPT, list(self._join_arrival(index, timed))

    def backfill(self, index: int, donor: SlidingJoinState, donor_index: int, since: float) -> None:
        """Backfill an input with the rows of another query's input from event time `since` on; emit no results for them."""
        for time, row in donor._rows[donor_index]:
            if time >= since:
                self._rows[index].append((time, {f"{index}.{split_joined_name(name)[1]}": value for name, value in row.items()}))

    def _join_arrival(self, index: int, arrived: TimedRow) -> Iterator[Row]:
        """Yield the joined rows that a new row completes: extend it by each other input in turn, checking conditions early."""
        others = [number for number in range(len(self._rows)) if number != index]
        yield from self._extend_row({index: arrived[0]}, dict(arrived[1]), others)

    def _extend_row(self, times: dict[int, int], row: dict[str, Any], others: list[int]) -> Iterator[Row]:
        if not others:
            yield row
            return
        number, *rest = others
        conditions = [
            condition
            for condition in self.plan.conditions
            if number in referenced_inputs(condition) and referenced_inputs(condition) <= {*times, number}
        ]
        for time, match in self._rows[number]:
            joined = {**row, **match}
            if self._is_in_range({**times, number: time}) and all(_is_satisfied(condition, joined) for condition in conditions):
                yield from self._extend_row({**times, number: time}, joined, rest)

    def _is_in_range(self, times: dict[int, int]) -> bool:
        """Tell whether every row is within the range of its input before the newest row."""
        newest = max(times.values())
        return all(time >= newest - self.plan.inputs[number].length for number, time in times.items())


def _is_satisfied(condition: Expression, row: Row) -> bool:
    """Tell whether a condition is TRUE; one that overflows counts as NULL."""
    try:
        return is_true(condition, row)
    except EvaluationError:
        return False
