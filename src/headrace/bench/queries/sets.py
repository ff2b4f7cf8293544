"""Create query generators by the names that scenario files use; a generator consists of its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from headrace.bench.queries.aggregations import FieldAggregations, PurchaseAggregations
from headrace.bench.queries.nexmark import HighestBidQueries, HotCategoryQueries, NexmarkAggregations
from headrace.bench.queries.profit import ProfitQueries
from headrace.bench.queries.query import BenchQuery
from headrace.bench.queries.sliding_joins import ChainJoins, TpchJoins
from headrace.bench.queries.theta_joins import BandJoins, TpchQueries
from headrace.bench.queries.window_joins import ComplexQueries, FieldJoins, PatternJoins, PurchaseAdJoins
from headrace.errors import HeadraceError
from headrace.model.time import parse_duration


class QueryGenerator(Protocol):
    """A finite or endless sequence of queries named q1 … qn; the first n do not depend on the requested count."""

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""


@dataclass(frozen=True, slots=True)
class HandwrittenQuery:
    """A single query with a hand-written text for each dialect."""

    streams: tuple[str, ...]
    sql: Mapping[str, str]
    size: str
    slide: str = ""

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the query if `count` is 1; reject larger counts."""
        if count > 1:
            raise HeadraceError(
                f"{count} queries are requested, but generator 'written' has one", hint="use another generator, or 1 query"
            )
        size = parse_duration(self.size)
        slide = parse_duration(self.slide) if self.slide else size
        return (BenchQuery("q1", tuple(self.streams), dict(self.sql), size, slide),)[:count]


QUERY_GENERATORS: Mapping[str, type[Any]] = {
    "purchases": PurchaseAggregations,
    "fields": FieldAggregations,
    "purchases_ads": PurchaseAdJoins,
    "field_joins": FieldJoins,
    "pattern_joins": PatternJoins,
    "complex": ComplexQueries,
    "profit": ProfitQueries,
    "nexmark": NexmarkAggregations,
    "hppa": HighestBidQueries,
    "hot_cat": HotCategoryQueries,
    "tpch_joins": TpchJoins,
    "chain": ChainJoins,
    "bands": BandJoins,
    "tpch_query": TpchQueries,
    "written": HandwrittenQuery,
}


def make_query_generator(generator: str, options: Mapping[str, Any]) -> QueryGenerator:
    """Return the named generator; raise HeadraceError for an unknown name, an unknown option or an invalid value."""
    if generator not in QUERY_GENERATORS:
        raise HeadraceError(f"unknown query generator '{generator}'", detail=f"generators: {', '.join(QUERY_GENERATORS)}")
    known = {field.name: field for field in fields(QUERY_GENERATORS[generator])}
    for name, value in options.items():
        if name not in known:
            raise HeadraceError(f"generator '{generator}' has no option '{name}'", detail=f"options: {', '.join(known)}")
        if not _has_type(value, str(known[name].type)):
            raise HeadraceError(f"option '{name}' of generator '{generator}' is {value!r}, but must be {known[name].type}")
    try:
        result: QueryGenerator = QUERY_GENERATORS[generator](**{name: _freeze_list(value) for name, value in options.items()})
    except TypeError as error:
        raise HeadraceError(f"generator '{generator}' lacks an option", detail=str(error)) from error
    result.queries(1)  # reject invalid durations now
    return result


def options_of(generator: QueryGenerator) -> dict[str, Any]:
    """Return all options of a generator, including defaults."""
    return asdict(generator)  # type: ignore[call-overload, no-any-return]


def _has_type(value: object, expected: str) -> bool:
    kinds = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
    if expected in kinds:
        return isinstance(value, kinds[expected]) and (expected == "bool" or not isinstance(value, bool))
    return isinstance(value, list | tuple if expected.startswith("tuple") else Mapping)


def _freeze_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
