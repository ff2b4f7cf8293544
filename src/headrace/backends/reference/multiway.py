"""A join over sliding windows alone: whoever arrives is tried with everybody who arrived before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.backends.reference.evaluate import Row, holds
from headrace.backends.reference.windows import Outcome
from headrace.errors import EvaluationError
from headrace.model.expression import Expression
from headrace.plan.join import owner
from headrace.plan.multiway import MultiwayQuery, inputs_of

Timed = tuple[int, Row]


@dataclass(slots=True)
class MultiwayState:
    """All rows that came in time, by input, in order of arrival; nothing is ever forgotten."""

    plan: MultiwayQuery
    _rows: list[list[Timed]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self._rows = [[] for _ in self.plan.inputs]

    def add(self, index: int, time: int, watermark: float, row: Row) -> tuple[Outcome, list[Row]]:
        """Take a row of an input; return what became of it, and the joined rows it is the last of."""
        if time < watermark - self.plan.inputs[index].lateness:
            return Outcome.LATE, []
        joined = (time, {f"{index}.{name}": value for name, value in row.items()})
        self._rows[index].append(joined)
        return Outcome.KEPT, list(self._completed(index, joined))

    def borrow(self, index: int, lender: MultiwayState, theirs: int, since: float) -> None:
        """Take the rows of an input of another query, from an event time on; nothing is given out for them."""
        for time, row in lender._rows[theirs]:
            if time >= since:
                self._rows[index].append((time, {f"{index}.{owner(name)[1]}": value for name, value in row.items()}))

    def _completed(self, index: int, arrived: Timed) -> Iterator[Row]:
        """Yield the joined rows of one that arrived: every other input in turn, as long as nothing speaks against it."""
        others = [number for number in range(len(self._rows)) if number != index]
        yield from self._extended({index: arrived[0]}, dict(arrived[1]), others)

    def _extended(self, times: dict[int, int], row: dict[str, Any], others: list[int]) -> Iterator[Row]:
        if not others:
            yield row
            return
        here, *rest = others
        due = [one for one in self.plan.conditions if here in inputs_of(one) and inputs_of(one) <= {*times, here}]
        for time, found in self._rows[here]:
            joined = {**row, **found}
            if self._meet({**times, here: time}) and all(_holds(condition, joined) for condition in due):
                yield from self._extended({**times, here: time}, joined, rest)

    def _meet(self, times: dict[int, int]) -> bool:
        """Tell whether nobody is older than the newest by more than its range."""
        newest = max(times.values())
        return all(time >= newest - self.plan.inputs[number].range for number, time in times.items())


def _holds(condition: Expression, row: Row) -> bool:
    """Tell whether a condition holds; one that overflows is unknown, as NULL is."""
    try:
        return holds(condition, row)
    except EvaluationError:
        return False
