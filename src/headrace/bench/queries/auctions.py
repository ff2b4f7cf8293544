"""Generate Nexmark queries: aggregations over the auction streams, and two queries that join bids with their auctions.

HPPA returns the highest bid of each auction among the bids above its reserve; HotCat returns the category with the most bids.
Both use tumbling windows of five seconds. If categories tie, headrace returns all of them and the other engines return one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.bench.queries.dialect import SECOND, select
from headrace.bench.queries.join import Chain, Join, Top, duckdb, flink, headrace, joined, spark
from headrace.bench.queries.shape import Comparison, Measure
from headrace.bench.query import BenchQuery, build_window_aggregation
from headrace.model.duration import parse_duration

_BIDS = Measure("COUNT", None, "bids")
_VOLUME = Measure("SUM", "price", "volume", integer=True)
_HIGHEST = Measure("MAX", "price", "highest", integer=True)
_HIGHEST_RESERVE = Measure("MAX", "reserve", "highest", integer=True)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A query template: stream, keys, aggregates, window in seconds, and the column that further queries compare with a price."""

    stream: str
    keys: tuple[str, ...]
    aggregates: tuple[Measure, ...]
    size: int
    slide: int
    compared: str = ""

    def query(self, number: int, predicate: Comparison | None) -> BenchQuery:
        size, slide = self.size * SECOND, self.slide * SECOND
        return build_window_aggregation(f"q{number}", self.stream, self.keys, self.aggregates, predicate, size, slide)


_KINDS = (
    _Kind("bids", ("auction",), (_HIGHEST,), 5, 5, "price"),
    _Kind("bids", ("auction",), (_BIDS,), 10, 2, "price"),
    _Kind("auctions", ("category",), (Measure("COUNT", None, "auctions"), _HIGHEST_RESERVE), 10, 10, "reserve"),
    _Kind("persons", ("state",), (Measure("COUNT", None, "persons"),), 10, 10),
    _Kind("bids", ("bidder",), (_BIDS, _VOLUME), 10, 10, "price"),
    _Kind("bids", (), (_HIGHEST, _BIDS), 10, 1, "price"),
)
_COMPARED = tuple(kind for kind in _KINDS if kind.compared)
_CHAIN = Chain(("bids", "auctions"), ((("auction", "id"),),))


@dataclass(frozen=True, slots=True)
class Nexmark:
    """Aggregations over bids, auctions and persons: six templates, then those with a price column again, above a drawn price.

    Thresholds follow the distribution of bid prices: uniform on a logarithmic scale.
    """

    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        queries = [kind.query(number, None) for number, kind in enumerate(_KINDS, 1)]
        rng = random.Random(self.seed)  # noqa: S311  a workload, not a secret
        for number in range(len(_KINDS), count):
            kind = _COMPARED[number % len(_COMPARED)]
            queries.append(kind.query(number + 1, Comparison(kind.compared, ">", round(10 ** rng.uniform(2, 8)))))
        return tuple(queries[:count])


@dataclass(frozen=True, slots=True)
class Hppa:
    """The highest bid of each auction above its reserve; queries after the first also require a minimum price."""

    size: str = "5 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        size = parse_duration(self.size)
        return tuple(joined(f"q{number}", _hppa(predicate), size, size) for number, predicate in _drawn(count, self.seed))


@dataclass(frozen=True, slots=True)
class HotCat:
    """The category with the most bids: the first query counts all bids, each other one those above a price."""

    size: str = "5 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        size = parse_duration(self.size)
        return tuple(_hottest(f"q{number}", predicate, size) for number, predicate in _drawn(count, self.seed))


def _drawn(count: int, seed: int) -> list[tuple[int, Comparison | None]]:
    rng = random.Random(seed)  # noqa: S311  a workload, not a secret
    prices = [round(10 ** rng.uniform(2, 8)) for _ in range(1, count)]
    predicates: list[Comparison | None] = [None, *(Comparison("price", ">", price) for price in prices)]
    return list(enumerate(predicates[:count], 1))


def _hppa(predicate: Comparison | None) -> Join:
    return Join(_CHAIN, (predicate, None), ((1, "auction"),), Top("MAX", (1, "price"), "highest"), "s1.price > s2.reserve")


def _most(counts: str) -> str:
    """Return SQL that selects the rows of each window whose count equals the largest count."""
    largest = f"({select(['MAX(bids) AS bids'], 'counts')})"
    return f"WITH counts AS ({counts}) " + select(
        ["c.window_start", "c.window_end", "c.category", "c.bids"], f"counts c JOIN {largest} m ON c.bids = m.bids"
    )


def _hottest(name: str, predicate: Comparison | None, size_us: int) -> BenchQuery:
    counts = Join(_CHAIN, (predicate, None), ((2, "category"),), Top("COUNT", None, "bids"))
    hottest = ["MAX_BY(category, bids) AS category", "MAX(bids) AS bids"]
    row_number = "ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY bids DESC) AS place"
    ranked = f"({flink(counts, size_us, size_us, ('s1.window_start', 's1.window_end'))})"
    texts = {
        "headrace": _most(headrace(counts, size_us, size_us)),
        "spark": select(
            ["window.start AS window_start", "window.end AS window_end", *hottest],
            f"({spark(counts, size_us, size_us, ('s1.window AS window',))})",
            group=["window"],
        ),
        "flink": select(["window_end", "category", "bids"], f"({select(['*', row_number], ranked)})", "place <= 1"),
        "duckdb": select(["? AS window_end", *hottest], f"({duckdb(counts, ())})", having="COUNT(*) > 0"),
    }
    return BenchQuery(name, _CHAIN.streams, texts, size_us, size_us)
