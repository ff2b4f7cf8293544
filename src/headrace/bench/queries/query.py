"""A benchmark query: one question with its SQL text in the dialect of every engine.

`sql` maps a dialect to its text. Without an entry the engine does not support the query, and its adapter rejects it. `shape` is
the structure of the query for a hand-written kernel, which rejects queries without a shape. Stream names are table names in all
dialects; event time is the column `time`; every result has `window_end`: the end of its window or, for windows that slide with
every row, the event time of its newest contributing row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.bench.queries import dialects
from headrace.bench.queries.dialects import AggregationShape, BenchAggregate, ColumnComparison
from headrace.errors import HeadraceError

__all__ = ["DIALECTS", "AggregationShape", "BenchAggregate", "BenchQuery", "ColumnComparison", "build_window_aggregation"]

DIALECTS = ("headrace", "spark", "flink", "duckdb")


@dataclass(frozen=True, slots=True)
class BenchQuery:
    """A query: name, streams, texts, window size and slide in microseconds and, for simple aggregations, its shape."""

    name: str
    streams: tuple[str, ...]
    sql: Mapping[str, str]
    size_us: int
    slide_us: int
    shape: AggregationShape | None = None

    def __post_init__(self) -> None:
        """Reject unknown dialects and windows that are not positive."""
        unknown = sorted(set(self.sql) - set(DIALECTS))
        if unknown:
            raise HeadraceError(
                f"unknown dialect '{unknown[0]}' in query '{self.name}'", detail=f"dialects: {', '.join(DIALECTS)}"
            )
        if self.size_us < 1 or self.slide_us < 1:
            raise HeadraceError(f"query '{self.name}' has an invalid window of {self.size_us} µs every {self.slide_us} µs")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return {
            "name": self.name,
            "streams": list(self.streams),
            "sql": dict(self.sql),
            "size_us": self.size_us,
            "slide_us": self.slide_us,
            "shape": None if self.shape is None else asdict(self.shape),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BenchQuery:
        """Read the JSON form of `to_json`."""
        shape = value.get("shape")
        return cls(
            value["name"],
            tuple(value["streams"]),
            dict(value["sql"]),
            value["size_us"],
            value["slide_us"],
            None if shape is None else AggregationShape.from_json(shape),
        )


def build_window_aggregation(
    name: str,
    stream: str,
    keys: Sequence[str],
    aggregates: Sequence[BenchAggregate],
    predicate: ColumnComparison | None,
    size_us: int,
    slide_us: int,
) -> BenchQuery:
    """Build a windowed aggregation in all dialects that support its window."""
    shape = AggregationShape(stream, tuple(keys), tuple(aggregates), predicate)
    texts = {
        "headrace": dialects.render_headrace_aggregation(shape, size_us, slide_us),
        "spark": dialects.render_spark_aggregation(shape, size_us, slide_us),
    }
    if dialects.is_flink_window(size_us, slide_us):
        texts["flink"] = dialects.render_flink_aggregation(shape, size_us, slide_us)
    texts["duckdb"] = dialects.render_duckdb_aggregation(shape)
    return BenchQuery(name, (stream,), texts, size_us, slide_us, shape)
