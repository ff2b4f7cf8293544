"""Rows of streams that are made of others: one for each element of a list, with everything its row has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.reference.evaluate import Row, evaluate
from headrace.plan.unfolded import Unfolded


def with_unfolded(rows: dict[str, Sequence[Row]], made: Sequence[Unfolded]) -> dict[str, Sequence[Row]]:
    """Return the rows of a batch with those of streams made of them; raises EvaluationError where a list has no value."""
    found = dict(rows)
    for one in made:
        found[one.name] = [new for row in found.get(one.base, ()) for new in _elements(one, row)]
    return found


def _elements(one: Unfolded, row: Row) -> list[dict[str, Any]]:
    return [{**row, one.element.name: element} for element in evaluate(one.values, row) or ()]
