"""A windowed join alone: rows wait in the windows they count in; when windows close, everything is tried with everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.backends.reference.evaluate import Row, evaluate, holds
from headrace.backends.reference.numeric import canonical
from headrace.backends.reference.windows import Outcome
from headrace.errors import EvaluationError
from headrace.model.expression import Expression
from headrace.plan.join import JoinNode, JoinQuery, JoinTree, present_column

Joined = dict[str, Any]


@dataclass(slots=True)
class JoinState:
    """Common end of windows → for each input its rows, in order of arrival."""

    plan: JoinQuery
    since: float
    _open: dict[int, list[list[Joined]]] = field(default_factory=dict)

    def add(self, index: int, time: int, watermark: float, row: Row) -> Outcome:
        """Put a row of an input into those of its windows that are open."""
        ends = [
            end
            for end in self.plan.ends.containing(self.plan.inputs[index].window.size, time)
            if end - self.plan.size >= self.since
        ]
        open_ends = [end for end in ends if end > watermark]
        if not open_ends:
            return Outcome.LATE if ends else Outcome.OUTSIDE
        joined = {f"{index}.{name}": value for name, value in row.items()} | {present_column(index).name: True}
        for end in open_ends:
            self._open.setdefault(end, [[] for _ in self.plan.inputs])[index].append(joined)
        return Outcome.KEPT

    def close(self, watermark: float) -> Iterator[tuple[int, list[Joined]]]:
        """Yield (end, joined rows) for all windows with end ≤ watermark, ascending, and forget them."""
        for end in sorted(end for end in self._open if end <= watermark):
            yield end, _rows(self.plan.tree, self._open.pop(end))


def _rows(tree: JoinTree, inputs: list[list[Joined]]) -> list[Joined]:
    if isinstance(tree, int):
        return inputs[tree]
    left, right = _rows(tree.left, inputs), _rows(tree.right, inputs)
    partners = [[number for number, other in enumerate(right) if _partners(tree, one, other)] for one in left]
    found: list[Joined] = []
    if tree.kind.pairs:
        found += [{**one, **right[number]} for one, numbers in zip(left, partners, strict=True) for number in numbers]
    else:
        found += [] if tree.kind.keeps_left else [one for one, numbers in zip(left, partners, strict=True) if numbers]
    if tree.kind.keeps_left:
        found += [one for one, numbers in zip(left, partners, strict=True) if not numbers]
    if tree.kind.keeps_right:
        taken = {number for numbers in partners for number in numbers}
        found += [other for number, other in enumerate(right) if number not in taken]
    return found


def _partners(node: JoinNode, left: Joined, right: Joined) -> bool:
    """Tell whether two rows belong together; a condition that overflows is unknown, as NULL is."""
    for equality in node.equalities:
        one, other = _value(equality.left, left), _value(equality.right, right)
        if one is None or other is None or canonical(one) != canonical(other):
            return False
    try:
        return holds(node.rest, {**left, **right})
    except EvaluationError:
        return False


def _value(expression: Expression, row: Joined) -> Any:
    try:
        return evaluate(expression, row)
    except EvaluationError:
        return None
