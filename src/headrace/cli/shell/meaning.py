"""What one query shares with all others: found by planning them together, as a session would, without touching it.

Nothing is known here of rows that came, so a running session may have grouped queries otherwise where that is cheaper; what
it does now is in its own explanation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.cli.sharing import Sharing, share
from headrace.errors import HeadraceError
from headrace.model.expression import Expression
from headrace.model.stream import Stream
from headrace.plan.stacked import AnyQuery
from headrace.sharing.multiway.explained import told_stores
from headrace.sharing.parts import whole
from headrace.sharing.picture import kind_of
from headrace.sql import Catalog, bind_query


@dataclass(frozen=True, slots=True)
class Use:
    """A part of the pipeline that works for a query, and the other queries it works for."""

    what: str
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a query gives, and what it uses; `name` is empty if it was not added.

    No uses at all means that they cannot be told: the query is good, but calls functions that only its session knows.
    """

    name: str
    columns: Mapping[str, str]
    uses: tuple[Use, ...]


def uses_of(sql: str, streams: Sequence[Stream], others: Mapping[str, str]) -> tuple[Use, ...]:
    """Return what a query, which is known to be good, would use beside others, given as name → text."""
    plans = _bound({**others, "": sql}, Catalog.of(streams))
    if "" not in plans:
        return ()
    names, mine = list(plans), len(plans) - 1
    sharing = share(streams, plans)
    uses: dict[str, dict[str, None]] = {}
    for what, users in _parts(sharing):
        if mine in users:
            uses.setdefault(what, {}).update(dict.fromkeys(names[user] for user in sorted(users) if user != mine))
    return tuple(Use(what, tuple(found)) for what, found in uses.items())


def _bound(queries: Mapping[str, str], catalog: Catalog) -> dict[str, AnyQuery]:
    """Bind what can be bound here."""
    found = {}
    for name, sql in queries.items():
        try:
            found[name] = bind_query(sql, catalog)
        except HeadraceError:
            continue
    return found


def _parts(sharing: Sharing) -> Iterator[tuple[str, set[int]]]:
    """Yield every shared part of the pipeline with the numbers of the queries it works for."""
    for plan in sharing.plans:
        stream = "results of an inner query" if plan.stream.startswith("~") else plan.stream
        for operator in plan.operators:
            yield f"{kind_of(operator)}{_by(operator.keys)} of {stream}", {whole(one.query) for one in operator.members}
        for buckets in plan.buckets:
            yield f"rows of {stream} kept{_by(buckets.keys)} for joins", {whole(one.query) for one in buckets.members}
    if sharing.probes is not None:
        for told, users in told_stores(sharing.probes).values():
            yield told.partition(" · ")[0], {whole(number) for number in users}


def _by(keys: Sequence[Expression]) -> str:
    return f" by {', '.join(str(key) for key in keys)}" if keys else ""
