"""Produces the rows of unnested streams: one row per list element, with all columns of the original row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.reference.evaluate import Row, evaluate
from headrace.plan.unfolded import UnnestedStream


def unnest_rows(rows: dict[str, Sequence[Row]], streams: Sequence[UnnestedStream]) -> dict[str, Sequence[Row]]:
    """Return the rows of a batch with those of the unnested streams added; raises EvaluationError if a list fails."""
    result = dict(rows)
    for unnested in streams:
        result[unnested.name] = [
            element_row for row in result.get(unnested.base, ()) for element_row in _unnest_row(unnested, row)
        ]
    return result


def _unnest_row(unnested: UnnestedStream, row: Row) -> list[dict[str, Any]]:
    return [{**row, unnested.element.name: element} for element in evaluate(unnested.list_expression, row) or ()]
