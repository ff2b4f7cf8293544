"""Generate profit queries: the revenue of each key minus the cost of its advertisements.

The query is the inner join of two aggregations. Where an engine lacks that join, or an aggregation over both streams is
cheaper, the text is an equivalent aggregation over a union: a key has a result if both streams have rows with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bench.queries.dialects import (
    AggregationShape,
    BenchAggregate,
    ColumnComparison,
    backtick_name,
    build_flink_source,
    build_select,
    build_spark_window,
    is_flink_window,
    quote_name,
)
from headrace.bench.queries.query import BenchQuery
from headrace.model.time import parse_duration


@dataclass(frozen=True, slots=True)
class ProfitQueries:
    """Profit by key in HOP windows; query n excludes key n − 1, so the first query excludes key 0."""

    key: str = "user_id"
    size: str = "5 seconds"
    slide: str = "1 second"

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        return tuple(self._make_query(number) for number in range(1, count + 1))

    def _make_query(self, number: int) -> BenchQuery:
        size, slide = parse_duration(self.size), parse_duration(self.slide)
        predicate = ColumnComparison(self.key, "<>", number - 1)
        costs = AggregationShape("ads", (self.key,), (BenchAggregate("SUM", "cost", "cost"),), predicate)
        shape = AggregationShape("purchases", (self.key,), (BenchAggregate("SUM", "price", "price"),), predicate, costs)
        union = _render_union(self.key, predicate.to_sql(str), size, slide)
        texts = {"headrace": union, "spark": union}
        if is_flink_window(size, slide):
            texts["flink"] = _render_flink_join(shape, costs, size, slide)
        texts["duckdb"] = _render_duckdb(self.key, predicate.to_sql(quote_name))
        return BenchQuery(f"q{number}", ("purchases", "ads"), texts, size, slide, shape)


def _union_streams(key: str, where: str, *more: str) -> str:
    """Return SQL for the union of both streams; each row has NULL as the amount of the other stream."""
    null = "CAST(NULL AS DOUBLE)"
    purchases = build_select([key, "price", f"{null} AS cost", *more], "purchases", where)
    ads = build_select([key, f"{null} AS price", "cost", *more], "ads", where)
    return f"({purchases} UNION ALL {ads})"


_PROFIT_COLUMN, _IN_BOTH_STREAMS = "SUM(price) - SUM(cost) AS profit", "COUNT(price) > 0 AND COUNT(cost) > 0"


def _render_union(key: str, where: str, size_us: int, slide_us: int) -> str:
    outputs = ["window.start AS window_start", "window.end AS window_end", key, _PROFIT_COLUMN]
    return build_select(
        outputs, _union_streams(key, where, "time"), group=[key, build_spark_window(size_us, slide_us)], having=_IN_BOTH_STREAMS
    )


def _render_duckdb(key: str, where: str) -> str:
    return build_select(
        ["? AS window_end", key, _PROFIT_COLUMN], _union_streams(key, where), group=[key], having=_IN_BOTH_STREAMS
    )


def _render_flink_join(purchases: AggregationShape, ads: AggregationShape, size_us: int, slide_us: int) -> str:
    """Return the join of the two aggregations, the fastest form in Flink."""
    key = backtick_name(purchases.keys[0])
    condition = " AND ".join(f"p.{name} = a.{name}" for name in ("window_start", "window_end", key))
    sides = (
        f"{_render_flink_side(purchases, size_us, slide_us)} p JOIN {_render_flink_side(ads, size_us, slide_us)} a ON {condition}"
    )
    return build_select(["p.window_end", f"p.{key}", "p.total - a.total AS profit"], sides)


def _render_flink_side(shape: AggregationShape, size_us: int, slide_us: int) -> str:
    assert shape.predicate is not None
    group = ["window_start", "window_end", backtick_name(shape.keys[0])]
    outputs = [*group, f"SUM({backtick_name(shape.aggregates[0].name)}) AS total"]
    source = build_flink_source(shape.stream, size_us, slide_us)
    return f"({build_select(outputs, source, shape.predicate.to_sql(backtick_name), group)})"
