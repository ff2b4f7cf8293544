"""Every set of queries a scenario can ask for, by name; a set is its options and gives any number of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from headrace.bench.queries.aggregations import Fields, Purchases
from headrace.bench.queries.auctions import HotCat, Hppa, Nexmark
from headrace.bench.queries.joins import Complex, FieldJoins, PatternJoins, PurchasesAds
from headrace.bench.queries.multiway import ChainJoins, TpchJoins
from headrace.bench.queries.profit import Profit
from headrace.bench.query import BenchQuery
from headrace.errors import HeadraceError
from headrace.model.duration import parse_duration


class QuerySet(Protocol):
    """Queries, without end or as many as there are: the first n are the same for any count, and are called q1 … qn."""

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""


@dataclass(frozen=True, slots=True)
class Written:
    """One text for each dialect, written by hand; it can be asked for once only."""

    streams: tuple[str, ...]
    sql: Mapping[str, str]
    size: str
    slide: str = ""

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the query."""
        if count > 1:
            raise HeadraceError(f"{count} queries are asked for, but one is written", hint="use a generator, or ask for 1 query")
        size = parse_duration(self.size)
        slide = parse_duration(self.slide) if self.slide else size
        return (BenchQuery("q1", tuple(self.streams), dict(self.sql), size, slide),)[:count]


GENERATORS: Mapping[str, type[Any]] = {
    "purchases": Purchases,
    "fields": Fields,
    "purchases_ads": PurchasesAds,
    "field_joins": FieldJoins,
    "pattern_joins": PatternJoins,
    "complex": Complex,
    "profit": Profit,
    "nexmark": Nexmark,
    "hppa": Hppa,
    "hot_cat": HotCat,
    "tpch_joins": TpchJoins,
    "chain": ChainJoins,
    "written": Written,
}


def query_set(generator: str, options: Mapping[str, Any]) -> QuerySet:
    """Return a set by name, or refuse the name, an option it does not have, or a value it cannot take."""
    if generator not in GENERATORS:
        raise HeadraceError(f"unknown generator of queries '{generator}'", detail=f"generators: {', '.join(GENERATORS)}")
    known = {field.name: field for field in fields(GENERATORS[generator])}
    for name, value in options.items():
        if name not in known:
            raise HeadraceError(f"generator '{generator}' has no option '{name}'", detail=f"options: {', '.join(known)}")
        if not _fits(value, str(known[name].type)):
            raise HeadraceError(f"option '{name}' of generator '{generator}' is {value!r}, but must be {known[name].type}")
    try:
        made: QuerySet = GENERATORS[generator](**{name: _frozen(value) for name, value in options.items()})
    except TypeError as error:
        raise HeadraceError(f"generator '{generator}' lacks an option", detail=str(error)) from error
    made.queries(1)  # lengths of time are read here
    return made


def options_of(made: QuerySet) -> dict[str, Any]:
    """Return all options of a set, also those that were not given."""
    return asdict(made)  # type: ignore[call-overload, no-any-return]


def _fits(value: object, wanted: str) -> bool:
    kinds = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
    if wanted in kinds:
        return isinstance(value, kinds[wanted]) and (wanted == "bool" or not isinstance(value, bool))
    return isinstance(value, list | tuple if wanted.startswith("tuple") else Mapping)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
