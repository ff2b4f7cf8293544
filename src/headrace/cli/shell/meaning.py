"""The sharing of one query with all others, found by planning them together without touching the session.

This plan uses no statistics, so a running session may have grouped queries differently where that is cheaper; the session's
own explanation shows its current plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.cli.sharing import SharedPlans, plan_queries
from headrace.errors import HeadraceError
from headrace.model.expression import Expression
from headrace.model.stream import Stream
from headrace.plan.stacked import AnyQuery
from headrace.sharing.multiway.explained import describe_stores
from headrace.sharing.parts import root_query_id
from headrace.sharing.picture import get_operator_kind
from headrace.sql import Catalog, bind_query


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """An operator that a query uses, and the other queries that use it."""

    operator: str
    shared_with: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuerySharing:
    """The output columns of a query and the operators it uses; `name` is empty if the query is not added.

    `uses` is empty if it is unknown: the query is valid, but calls UDFs that only its session has.
    """

    name: str
    columns: Mapping[str, str]
    uses: tuple[OperatorUse, ...]


def find_uses(sql: str, streams: Sequence[Stream], others: Mapping[str, str]) -> tuple[OperatorUse, ...]:
    """Return the operators that a valid query would use together with other queries, given as name → text."""
    plans = _bind_queries({**others, "": sql}, Catalog.of(streams))
    if "" not in plans:
        return ()
    names, query_index = list(plans), len(plans) - 1
    sharing = plan_queries(streams, plans)
    uses: dict[str, dict[str, None]] = {}
    for operator, users in _list_shared_parts(sharing):
        if query_index in users:
            uses.setdefault(operator, {}).update(dict.fromkeys(names[user] for user in sorted(users) if user != query_index))
    return tuple(OperatorUse(operator, tuple(shared_with)) for operator, shared_with in uses.items())


def _bind_queries(queries: Mapping[str, str], catalog: Catalog) -> dict[str, AnyQuery]:
    """Bind the queries; skip those that fail, for example because only the session has their UDFs."""
    plans = {}
    for name, sql in queries.items():
        try:
            plans[name] = bind_query(sql, catalog)
        except HeadraceError:
            continue
    return plans


def _list_shared_parts(sharing: SharedPlans) -> Iterator[tuple[str, set[int]]]:
    """Yield the text of every shared operator and state store with the ids of the queries that use it."""
    for plan in sharing.plans:
        stream = "results of an inner query" if plan.stream.startswith("~") else plan.stream
        for operator in plan.operators:
            yield (
                f"{get_operator_kind(operator)}{_format_keys(operator.keys)} of {stream}",
                {root_query_id(member.query_id) for member in operator.subscribers},
            )
        for buckets in plan.buckets:
            yield (
                f"join buffer of {stream}{_format_keys(buckets.keys)}",
                {root_query_id(member.query_id) for member in buckets.subscribers},
            )
    if sharing.probe_plan is not None:
        for store_text, users in describe_stores(sharing.probe_plan).values():
            yield store_text.partition(" · ")[0], {root_query_id(query_id) for query_id in users}


def _format_keys(keys: Sequence[Expression]) -> str:
    return f" by {', '.join(str(key) for key in keys)}" if keys else ""
