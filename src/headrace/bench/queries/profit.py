"""Generate profit queries: the revenue of each key minus the cost of its advertisements.

The query is the inner join of two aggregations. Where an engine lacks that join, or an aggregation over both streams is
cheaper, the text is an equivalent aggregation over a union: a key has a result if both streams have rows with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bench.queries.dialect import flink_source, flink_takes, quoted, select, spark_window, ticked
from headrace.bench.queries.shape import Comparison, Measure, Shape
from headrace.bench.query import BenchQuery
from headrace.model.duration import parse_duration


@dataclass(frozen=True, slots=True)
class Profit:
    """Profit by key in HOP windows; query n excludes key n − 1, so the first query excludes key 0."""

    key: str = "user_id"
    size: str = "5 seconds"
    slide: str = "1 second"

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        return tuple(self._query(number) for number in range(1, count + 1))

    def _query(self, number: int) -> BenchQuery:
        size, slide = parse_duration(self.size), parse_duration(self.slide)
        predicate = Comparison(self.key, "<>", number - 1)
        costs = Shape("ads", (self.key,), (Measure("SUM", "cost", "cost"),), predicate)
        shape = Shape("purchases", (self.key,), (Measure("SUM", "price", "price"),), predicate, costs)
        union = _union(self.key, predicate.sql(str), size, slide)
        texts = {"headrace": union, "spark": union}
        if flink_takes(size, slide):
            texts["flink"] = _join(shape, costs, size, slide)
        texts["duckdb"] = _one_window(self.key, predicate.sql(quoted))
        return BenchQuery(f"q{number}", ("purchases", "ads"), texts, size, slide, shape)


def _both(key: str, where: str, *more: str) -> str:
    """Return SQL for the union of both streams; each row has NULL as the amount of the other stream."""
    null = "CAST(NULL AS DOUBLE)"
    purchases = select([key, "price", f"{null} AS cost", *more], "purchases", where)
    ads = select([key, f"{null} AS price", "cost", *more], "ads", where)
    return f"({purchases} UNION ALL {ads})"


_PROFIT, _BOTH = "SUM(price) - SUM(cost) AS profit", "COUNT(price) > 0 AND COUNT(cost) > 0"


def _union(key: str, where: str, size_us: int, slide_us: int) -> str:
    outputs = ["window.start AS window_start", "window.end AS window_end", key, _PROFIT]
    return select(outputs, _both(key, where, "time"), group=[key, spark_window(size_us, slide_us)], having=_BOTH)


def _one_window(key: str, where: str) -> str:
    return select(["? AS window_end", key, _PROFIT], _both(key, where), group=[key], having=_BOTH)


def _join(purchases: Shape, ads: Shape, size_us: int, slide_us: int) -> str:
    """Return the join of the two aggregations, the fastest form in Flink."""
    key = ticked(purchases.keys[0])
    condition = " AND ".join(f"p.{name} = a.{name}" for name in ("window_start", "window_end", key))
    sides = f"{_side(purchases, size_us, slide_us)} p JOIN {_side(ads, size_us, slide_us)} a ON {condition}"
    return select(["p.window_end", f"p.{key}", "p.total - a.total AS profit"], sides)


def _side(shape: Shape, size_us: int, slide_us: int) -> str:
    assert shape.predicate is not None
    group = ["window_start", "window_end", ticked(shape.keys[0])]
    outputs = [*group, f"SUM({ticked(shape.aggregates[0].name)}) AS total"]
    return f"({select(outputs, flink_source(shape.stream, size_us, slide_us), shape.predicate.sql(ticked), group)})"
