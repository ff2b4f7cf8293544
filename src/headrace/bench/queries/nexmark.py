"""Generate Nexmark queries: aggregations over the auction streams, and two queries that join bids with their auctions.

HPPA returns the highest bid of each auction among the bids above its reserve; HotCat returns the category with the most bids.
Both use tumbling windows of five seconds. If categories tie, headrace returns all of them and the other engines return one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.bench.queries.dialects import SECOND_US, BenchAggregate, ColumnComparison, build_select
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.queries.window_joins import (
    JoinAggregateCall,
    StreamChain,
    WindowJoinSpec,
    build_window_join,
    render_duckdb_join,
    render_flink_join,
    render_headrace_join,
    render_spark_join,
)
from headrace.model.time import parse_duration

_BID_COUNT = BenchAggregate("COUNT", None, "bids")
_BID_VOLUME = BenchAggregate("SUM", "price", "volume", integer=True)
_HIGHEST_PRICE = BenchAggregate("MAX", "price", "highest", integer=True)
_HIGHEST_RESERVE = BenchAggregate("MAX", "reserve", "highest", integer=True)


@dataclass(frozen=True, slots=True)
class _QueryTemplate:
    """A query template: stream, keys, aggregates, window in seconds, and the column that further queries compare with a price."""

    stream: str
    keys: tuple[str, ...]
    aggregates: tuple[BenchAggregate, ...]
    size: int
    slide: int
    compared_column: str = ""

    def make_query(self, number: int, predicate: ColumnComparison | None) -> BenchQuery:
        size, slide = self.size * SECOND_US, self.slide * SECOND_US
        return build_window_aggregation(f"q{number}", self.stream, self.keys, self.aggregates, predicate, size, slide)


_TEMPLATES = (
    _QueryTemplate("bids", ("auction",), (_HIGHEST_PRICE,), 5, 5, "price"),
    _QueryTemplate("bids", ("auction",), (_BID_COUNT,), 10, 2, "price"),
    _QueryTemplate("auctions", ("category",), (BenchAggregate("COUNT", None, "auctions"), _HIGHEST_RESERVE), 10, 10, "reserve"),
    _QueryTemplate("persons", ("state",), (BenchAggregate("COUNT", None, "persons"),), 10, 10),
    _QueryTemplate("bids", ("bidder",), (_BID_COUNT, _BID_VOLUME), 10, 10, "price"),
    _QueryTemplate("bids", (), (_HIGHEST_PRICE, _BID_COUNT), 10, 1, "price"),
)
_COMPARABLE_TEMPLATES = tuple(kind for kind in _TEMPLATES if kind.compared_column)
_BID_AUCTION_CHAIN = StreamChain(("bids", "auctions"), ((("auction", "id"),),))


@dataclass(frozen=True, slots=True)
class NexmarkAggregations:
    """Aggregations over bids, auctions and persons: six templates, then those with a price column again, above a drawn price.

    Thresholds follow the distribution of bid prices: uniform on a logarithmic scale.
    """

    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        queries = [kind.make_query(number, None) for number, kind in enumerate(_TEMPLATES, 1)]
        rng = random.Random(self.seed)  # noqa: S311  a workload, not a secret
        for number in range(len(_TEMPLATES), count):
            kind = _COMPARABLE_TEMPLATES[number % len(_COMPARABLE_TEMPLATES)]
            queries.append(
                kind.make_query(number + 1, ColumnComparison(kind.compared_column, ">", round(10 ** rng.uniform(2, 8))))
            )
        return tuple(queries[:count])


@dataclass(frozen=True, slots=True)
class HighestBidQueries:
    """The highest bid of each auction above its reserve; queries after the first also require a minimum price."""

    size: str = "5 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        size = parse_duration(self.size)
        return tuple(
            build_window_join(f"q{number}", _make_highest_bid_join(predicate), size, size)
            for number, predicate in _draw_price_predicates(count, self.seed)
        )


@dataclass(frozen=True, slots=True)
class HotCategoryQueries:
    """The category with the most bids: the first query counts all bids, each other one those above a price."""

    size: str = "5 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        size = parse_duration(self.size)
        return tuple(
            _make_hot_category_query(f"q{number}", predicate, size)
            for number, predicate in _draw_price_predicates(count, self.seed)
        )


def _draw_price_predicates(count: int, seed: int) -> list[tuple[int, ColumnComparison | None]]:
    rng = random.Random(seed)  # noqa: S311  a workload, not a secret
    prices = [round(10 ** rng.uniform(2, 8)) for _ in range(1, count)]
    predicates: list[ColumnComparison | None] = [None, *(ColumnComparison("price", ">", price) for price in prices)]
    return list(enumerate(predicates[:count], 1))


def _make_highest_bid_join(predicate: ColumnComparison | None) -> WindowJoinSpec:
    return WindowJoinSpec(
        _BID_AUCTION_CHAIN,
        (predicate, None),
        ((1, "auction"),),
        JoinAggregateCall("MAX", (1, "price"), "highest"),
        "s1.price > s2.reserve",
    )


def _select_largest_counts(counts: str) -> str:
    """Return SQL that selects the rows of each window whose count equals the largest count."""
    largest = f"({build_select(['MAX(bids) AS bids'], 'counts')})"
    return f"WITH counts AS ({counts}) " + build_select(
        ["c.window_start", "c.window_end", "c.category", "c.bids"], f"counts c JOIN {largest} m ON c.bids = m.bids"
    )


def _make_hot_category_query(name: str, predicate: ColumnComparison | None, size_us: int) -> BenchQuery:
    counts = WindowJoinSpec(_BID_AUCTION_CHAIN, (predicate, None), ((2, "category"),), JoinAggregateCall("COUNT", None, "bids"))
    hottest = ["MAX_BY(category, bids) AS category", "MAX(bids) AS bids"]
    row_number = "ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY bids DESC) AS place"
    ranked = f"({render_flink_join(counts, size_us, size_us, ('s1.window_start', 's1.window_end'))})"
    texts = {
        "headrace": _select_largest_counts(render_headrace_join(counts, size_us, size_us)),
        "spark": build_select(
            ["window.start AS window_start", "window.end AS window_end", *hottest],
            f"({render_spark_join(counts, size_us, size_us, ('s1.window AS window',))})",
            group=["window"],
        ),
        "flink": build_select(["window_end", "category", "bids"], f"({build_select(['*', row_number], ranked)})", "place <= 1"),
        "duckdb": build_select(["? AS window_end", *hottest], f"({render_duckdb_join(counts, ())})", having="COUNT(*) > 0"),
    }
    return BenchQuery(name, _BID_AUCTION_CHAIN.streams, texts, size_us, size_us)
