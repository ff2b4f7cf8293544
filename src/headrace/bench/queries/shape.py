"""Describe a windowed aggregation independently of any SQL dialect: keys, aggregates and a predicate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError

AGGREGATE_FUNCTIONS = ("SUM", "COUNT", "AVG", "MIN", "MAX")
COMPARISON_OPERATORS = ("<", ">", "=", "<=", ">=", "<>")


@dataclass(frozen=True, slots=True)
class BenchAggregate:
    """An aggregate: `column` is None for COUNT(*); `integer` is true if the column holds integers."""

    function: str
    column: str | None
    name: str
    integer: bool = False

    def __post_init__(self) -> None:
        """Reject functions that some engine lacks."""
        if self.function not in AGGREGATE_FUNCTIONS:
            raise HeadraceError(f"unknown aggregate '{self.function}'", detail=f"aggregates: {', '.join(AGGREGATE_FUNCTIONS)}")
        if self.column is None and self.function != "COUNT":
            raise HeadraceError(f"aggregate '{self.function}' needs a column")


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """A comparison of a column with a number."""

    column: str
    operator: str
    value: float

    def __post_init__(self) -> None:
        """Reject operators that some engine lacks."""
        if self.operator not in COMPARISON_OPERATORS:
            raise HeadraceError(f"unknown operator '{self.operator}'", detail=f"operators: {', '.join(COMPARISON_OPERATORS)}")

    def to_sql(self, quote: Callable[[str], str]) -> str:
        """Return the condition in SQL; integers stay integer literals."""
        return f"{quote(self.column)} {self.operator} {self.value!r}"


@dataclass(frozen=True, slots=True)
class AggregationShape:
    """Aggregates by keys over the rows of a stream that satisfy the predicate.

    With `minus`, a shape with the same keys, the result has a row for each key that both have: the only aggregate of this shape
    minus the only aggregate of the other.
    """

    stream: str
    keys: tuple[str, ...]
    aggregates: tuple[BenchAggregate, ...]
    predicate: ColumnComparison | None = None
    minus: AggregationShape | None = None

    def __post_init__(self) -> None:
        """Reject an undefined difference."""
        if self.minus is None:
            return
        if self.keys != self.minus.keys or {len(self.aggregates), len(self.minus.aggregates)} != {1}:
            raise HeadraceError("a difference needs the same keys and one aggregate on both sides")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AggregationShape:
        """Return the shape from the JSON form of `BenchQuery.to_json`."""
        predicate, minus = value["predicate"], value["minus"]
        return cls(
            value["stream"],
            tuple(value["keys"]),
            tuple(BenchAggregate(**aggregate) for aggregate in value["aggregates"]),
            None if predicate is None else ColumnComparison(**predicate),
            None if minus is None else cls.from_json(minus),
        )
