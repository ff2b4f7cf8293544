"""Generate theta joins in SLIDING windows: bands over chains of streams, and joins of TPC-H by inequalities.

CLASH answers TPC-H Q2 in three variants and Q3 in one: with all joins by equality, with all of them by other conditions (theta),
and with an equality between the two largest relations only (mixed). As a condition, an equality is written as two inequalities,
so that an engine cannot simply route a row to its partners; the results are the same.

Query n has the n-th part of the range of the first one, so that all queries store the same rows for different times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from headrace.bench.queries.query import BenchQuery
from headrace.bench.queries.sliding_joins import AliasedColumn, JoinEqualities, SlidingJoinSpec, build_sliding_join
from headrace.errors import HeadraceError
from headrace.model.time import parse_duration


@dataclass(frozen=True, slots=True)
class _TpchQuery:
    """The join of a query of TPC-H; `largest` is the position of the link between its two largest relations."""

    streams: tuple[tuple[str, str], ...]
    links: tuple[JoinEqualities, ...]
    outputs: tuple[AliasedColumn, ...]
    largest: int


_QUERIES: Mapping[str, _TpchQuery] = {
    "q2": _TpchQuery(
        (("part", "p"), ("partsupp", "ps"), ("supplier", "s"), ("nation", "n"), ("region", "r")),
        (
            ((("p", "p_partkey"), ("ps", "ps_partkey")),),
            ((("ps", "ps_suppkey"), ("s", "s_suppkey")),),
            ((("s", "s_nationkey"), ("n", "n_nationkey")),),
            ((("n", "n_regionkey"), ("r", "r_regionkey")),),
        ),
        (("s", "s_acctbal"), ("n", "n_name"), ("p", "p_partkey"), ("ps", "ps_supplycost"), ("r", "r_name")),
        0,
    ),
    "q3": _TpchQuery(
        (("customer", "c"), ("orders", "o"), ("lineitem", "l")),
        (((("c", "c_custkey"), ("o", "o_custkey")),), ((("o", "o_orderkey"), ("l", "l_orderkey")),)),
        (("l", "l_orderkey"), ("l", "l_extendedprice"), ("c", "c_acctbal")),
        1,
    ),
}
_VARIANTS = ("equal", "theta", "mixed")


@dataclass(frozen=True, slots=True)
class TpchQueries:
    """The join of TPC-H Q2 or Q3 in SLIDING windows, by equalities, by other conditions, or by both."""

    query: str = "q2"
    variant: str = "theta"
    size: str = "25 seconds"

    def __post_init__(self) -> None:
        """Reject unknown queries and variants."""
        for name, value, known in (("query", self.query, tuple(_QUERIES)), ("variant", self.variant, _VARIANTS)):
            if value not in known:
                raise HeadraceError(f"{name} is '{value}'", hint=f"write one of {', '.join(known)}")

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        join, range_us = _QUERIES[self.query], parse_duration(self.size)
        equalities = {"equal": set(range(len(join.links))), "theta": set(), "mixed": {join.largest}}[self.variant]
        widths = tuple(None if number in equalities else 0 for number in range(len(join.links)))
        return tuple(
            build_sliding_join(f"q{n}", SlidingJoinSpec(join.streams, join.links, join.outputs, max(1, range_us // n), widths))
            for n in range(1, count + 1)
        )


@dataclass(frozen=True, slots=True)
class BandJoins:
    """The chain of `ways` streams r1, r2 …, each within a band of the one before: the integers differ by `width` or less."""

    ways: int = 3
    width: int = 2
    size: str = "5 seconds"

    def __post_init__(self) -> None:
        """Reject chains that are none, and negative widths."""
        if not 2 <= self.ways <= 5 or self.width < 0:
            raise HeadraceError(
                f"a band join has ways = {self.ways}, width = {self.width}", hint="write 2 to 5 ways, and a width of 0 or more"
            )

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        names, range_us = [f"r{number}" for number in range(1, self.ways + 1)], parse_duration(self.size)
        links = tuple((((left, "b_mid"), (right, "a_mid")),) for left, right in pairwise(names))
        streams, outputs = tuple((name, name) for name in names), tuple((name, "value") for name in names)
        return tuple(
            build_sliding_join(
                f"q{n}", SlidingJoinSpec(streams, links, outputs, max(1, range_us // n), (self.width,) * len(links))
            )
            for n in range(1, count + 1)
        )
