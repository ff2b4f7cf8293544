"""The sharing of one query with all others, found by planning them together without touching the session.

This plan uses no statistics, so a running session may have grouped queries differently where that is cheaper; the session's
own explanation shows its current plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.cli.sharing import Sharing, share
from headrace.errors import HeadraceError
from headrace.model.expression import Expression
from headrace.model.stream import Stream
from headrace.plan.stacked import AnyQuery
from headrace.sharing.multiway.explained import describe_stores
from headrace.sharing.parts import root_query_id
from headrace.sharing.picture import get_operator_kind
from headrace.sql import Catalog, bind_query


@dataclass(frozen=True, slots=True)
class Use:
    """An operator that a query uses, and the other queries that use it."""

    what: str
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """The output columns of a query and the operators it uses; `name` is empty if the query is not added.

    `uses` is empty if it is unknown: the query is valid, but calls UDFs that only its session has.
    """

    name: str
    columns: Mapping[str, str]
    uses: tuple[Use, ...]


def uses_of(sql: str, streams: Sequence[Stream], others: Mapping[str, str]) -> tuple[Use, ...]:
    """Return the operators that a valid query would use together with other queries, given as name → text."""
    plans = _bound({**others, "": sql}, Catalog.of(streams))
    if "" not in plans:
        return ()
    names, query_index = list(plans), len(plans) - 1
    sharing = share(streams, plans)
    uses: dict[str, dict[str, None]] = {}
    for operator, users in _parts(sharing):
        if query_index in users:
            uses.setdefault(operator, {}).update(dict.fromkeys(names[user] for user in sorted(users) if user != query_index))
    return tuple(Use(operator, tuple(shared_with)) for operator, shared_with in uses.items())


def _bound(queries: Mapping[str, str], catalog: Catalog) -> dict[str, AnyQuery]:
    """Bind the queries; skip those that fail, for example because only the session has their UDFs."""
    plans = {}
    for name, sql in queries.items():
        try:
            plans[name] = bind_query(sql, catalog)
        except HeadraceError:
            continue
    return plans


def _parts(sharing: Sharing) -> Iterator[tuple[str, set[int]]]:
    """Yield the text of every shared operator and state store with the ids of the queries that use it."""
    for plan in sharing.plans:
        stream = "results of an inner query" if plan.stream.startswith("~") else plan.stream
        for operator in plan.operators:
            yield (
                f"{get_operator_kind(operator)}{_by(operator.keys)} of {stream}",
                {root_query_id(member.query_id) for member in operator.subscribers},
            )
        for buckets in plan.buckets:
            yield (
                f"join buffer of {stream}{_by(buckets.keys)}",
                {root_query_id(member.query_id) for member in buckets.subscribers},
            )
    if sharing.probes is not None:
        for store_text, users in describe_stores(sharing.probes).values():
            yield store_text.partition(" · ")[0], {root_query_id(query_id) for query_id in users}


def _by(keys: Sequence[Expression]) -> str:
    return f" by {', '.join(str(key) for key in keys)}" if keys else ""
