"""Questions to the auction site: aggregations over its streams, and two that join bids with their auctions.

HPPA is the highest bid of each auction among those above its reserve, HotCat the category that got most bids; both in
tumbling windows of five seconds. Of categories with equally many bids headrace gives all, the others one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.bench.queries.dialect import SECOND, select
from headrace.bench.queries.join import Chain, Join, Top, duckdb, flink, headrace, joined, spark
from headrace.bench.queries.shape import Comparison, Measure
from headrace.bench.query import BenchQuery, windowed
from headrace.model.duration import parse_duration

_BIDS = Measure("COUNT", None, "bids")
_VOLUME = Measure("SUM", "price", "volume", integer=True)
_HIGHEST = Measure("MAX", "price", "highest", integer=True)
_HIGHEST_RESERVE = Measure("MAX", "reserve", "highest", integer=True)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A question: stream, keys, aggregates, window in seconds, and the column that others of the kind compare with a price."""

    stream: str
    keys: tuple[str, ...]
    aggregates: tuple[Measure, ...]
    size: int
    slide: int
    compared: str = ""

    def query(self, number: int, above: Comparison | None) -> BenchQuery:
        size, slide = self.size * SECOND, self.slide * SECOND
        return windowed(f"q{number}", self.stream, self.keys, self.aggregates, above, size, slide)


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
    """Aggregations over bids, auctions and persons: six kinds, and then again those that can be asked above a price.

    Prices are drawn as the prices of bids are: evenly on a logarithmic scale.
    """

    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        found = [kind.query(number, None) for number, kind in enumerate(_KINDS, 1)]
        chance = random.Random(self.seed)  # noqa: S311  a workload, not a secret
        for number in range(len(_KINDS), count):
            kind = _COMPARED[number % len(_COMPARED)]
            found.append(kind.query(number + 1, Comparison(kind.compared, ">", round(10 ** chance.uniform(2, 8)))))
        return tuple(found[:count])


@dataclass(frozen=True, slots=True)
class Hppa:
    """The highest bid of each auction; the first query for all bids above the reserve, the others above a higher price too."""

    size: str = "5 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        size = parse_duration(self.size)
        return tuple(joined(f"q{number}", _hppa(above), size, size) for number, above in _drawn(count, self.seed))


@dataclass(frozen=True, slots=True)
class HotCat:
    """The category with most bids; the first query counts all bids, the others those above a price."""

    size: str = "5 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        size = parse_duration(self.size)
        return tuple(_hottest(f"q{number}", above, size) for number, above in _drawn(count, self.seed))


def _drawn(count: int, seed: int) -> list[tuple[int, Comparison | None]]:
    chance = random.Random(seed)  # noqa: S311  a workload, not a secret
    prices = [round(10 ** chance.uniform(2, 8)) for _ in range(1, count)]
    found: list[Comparison | None] = [None, *(Comparison("price", ">", price) for price in prices)]
    return list(enumerate(found[:count], 1))


def _hppa(above: Comparison | None) -> Join:
    return Join(_CHAIN, (above, None), ((1, "auction"),), Top("MAX", (1, "price"), "highest"), "s1.price > s2.reserve")


def _most(counts: str) -> str:
    """Return, of the counts of each window, those that are as large as the largest."""
    largest = f"({select(['MAX(bids) AS bids'], 'counts')})"
    return f"WITH counts AS ({counts}) " + select(
        ["c.window_start", "c.window_end", "c.category", "c.bids"], f"counts c JOIN {largest} m ON c.bids = m.bids"
    )


def _hottest(name: str, above: Comparison | None, size_us: int) -> BenchQuery:
    counts = Join(_CHAIN, (above, None), ((2, "category"),), Top("COUNT", None, "bids"))
    hottest = ["MAX_BY(category, bids) AS category", "MAX(bids) AS bids"]
    place = "ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY bids DESC) AS place"
    ranked = f"({flink(counts, size_us, size_us, ('s1.window_start', 's1.window_end'))})"
    texts = {
        "headrace": _most(headrace(counts, size_us, size_us)),
        "spark": select(
            ["window.start AS window_start", "window.end AS window_end", *hottest],
            f"({spark(counts, size_us, size_us, ('s1.window AS window',))})",
            group=["window"],
        ),
        "flink": select(["window_end", "category", "bids"], f"({select(['*', place], ranked)})", "place <= 1"),
        "duckdb": select(["? AS window_end", *hottest], f"({duckdb(counts, ())})", having="COUNT(*) > 0"),
    }
    return BenchQuery(name, _CHAIN.streams, texts, size_us, size_us)
