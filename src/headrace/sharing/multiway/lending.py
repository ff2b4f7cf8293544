"""Backfill of a new sliding join from the state of other queries.

    d   added ├──────────────────────────────▶
    q                    added, with backfill ├──▶     sees all rows that d saw, and emits results that are new from now on

Every input of the query needs a live query whose stored rows include those it would have: the same relation and selection, no
shorter range, all columns that it reads, and all of its streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.plan.multiway import SlidingJoinQuery
from headrace.sharing.multiway.asked import NormalizedJoin, normalize_join, relation_of_column
from headrace.sharing.multiway.loan import Backfill
from headrace.sharing.shared_plan import LiveQuery


def plan_backfills(new: LiveQuery, live: Iterable[LiveQuery], first_batches: Mapping[int, int]) -> tuple[Backfill, ...]:
    """Return the backfills of each input of a new query; none if for one input no live query covers it."""
    new_join = normalize_join(new)
    others = [normalize_join(query) for query in live if isinstance(query.plan, SlidingJoinQuery) and query.id != new.id]
    backfills = []
    for relation in new_join.inputs:
        sources = [other for other in others if relation in other.inputs and _covers_input(other, new_join, relation)]
        if not sources:
            return ()
        source = min(sources, key=lambda other: (other.since, first_batches[other.id], other.id))
        backfills.append(Backfill(relation, source.id, source.bit, first_batches[source.id], source.since))
    return tuple(backfills)


def _covers_input(source: NormalizedJoin, target: NormalizedJoin, relation: str) -> bool:
    available, wanted = source.inputs[relation], target.inputs[relation]
    stored_columns = {name for name in source.columns if relation_of_column(name) == relation}
    return (
        (available.stream, available.predicate) == (wanted.stream, wanted.predicate)
        and available.length + source.lateness >= wanted.length + target.lateness
        and available.lateness >= wanted.lateness
        and set(target.streams) <= set(source.streams)  # the source's watermark is never ahead: it evicted no row too early
        and {name for name in target.columns if relation_of_column(name) == relation} <= stored_columns
    )
