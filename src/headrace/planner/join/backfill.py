"""Backfills of a new sliding join from the state of live queries (CLASH, 7.2.4).

All inputs but one need a live query, a *source*, whose stored rows include those that the new query would have: the same relation
and selection, no shorter range and lateness, and all columns that it reads. New rows of the remaining input then find all their
partners immediately:

    r   ────────── stored for a live query ──┬──▶
    t                                        ├──▶   new rows of t join with all stored rows of r

The query sees rows from `since` on, the latest event time from which all sources have kept all rows. A source that reads all
streams of the query has evicted no row that the query needs: its watermark is never ahead. Of another one, those rows count that
its own retention has kept for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.planner.join.normalized_join import NormalizedJoin, format_expression, normalize_join, relation_of_column
from headrace.planner.shared_plan import Backfill, LiveQuery


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """The backfills of a new query, one for each input that has one, and a note for the user; no backfills if impossible."""

    backfills: tuple[Backfill, ...]
    note: str


def plan_backfills(
    new: LiveQuery,
    live: Iterable[LiveQuery],
    first_batches: Mapping[int, int],
    find_watermark: Callable[[Sequence[str]], int],
) -> BackfillPlan:
    """Return the backfills of a new query; `find_watermark` returns the watermark of a query over some streams."""
    target = normalize_join(new)
    others = [normalize_join(query) for query in live if isinstance(query.plan, SlidingJoinQuery) and query.id != new.id]
    backfills: dict[str, Backfill] = {}
    names: dict[str, str] = {}
    obstacles: dict[str, str] = {}
    for relation in target.inputs:
        reasons = {other.id: _find_obstacle(other, target, relation, find_watermark) for other in others}
        sources = [other for other in others if reasons[other.id] is None]
        if not sources:
            of_readers = [reason for other in others if relation in other.inputs and (reason := reasons[other.id]) is not None]
            obstacles[relation] = min(
                of_readers, default=f"no live join in SLIDING windows reads {target.inputs[relation].stream}"
            )
            continue
        since = {other.id: _find_first_kept(other, target, relation, find_watermark) for other in sources}
        source = min(sources, key=lambda other: (since[other.id], first_batches[other.id], other.id))
        backfills[relation] = Backfill(
            relation, source.id, source.bit, first_batches[source.id], since[source.id], source.former_bits
        )
        names[relation] = source.name
    missing = "; ".join(f"{relation}: {reason}" for relation, reason in obstacles.items())
    if len(obstacles) > 1 or not backfills:
        return BackfillPlan((), f"not backfilled, because more than one input has no stored rows ({missing})")
    note = "backfilled: " + ", ".join(f"{relation} from {name}" for relation, name in names.items())
    return BackfillPlan(tuple(backfills.values()), f"{note}; new rows only: {missing}" if missing else note)


def _find_obstacle(
    source: NormalizedJoin, target: NormalizedJoin, relation: str, find_watermark: Callable[[Sequence[str]], int]
) -> str | None:
    """Return why the rows that are stored for a query do not serve as an input of another one; None if they do."""
    if relation not in source.inputs:
        return f"{source.name} does not read it"
    available, wanted = source.inputs[relation], target.inputs[relation]
    stored_columns = {name for name in source.columns if relation_of_column(name) == relation}
    missing = {name for name in target.columns if relation_of_column(name) == relation} - stored_columns
    if (available.stream, available.predicate) != (wanted.stream, wanted.predicate):
        return f"{source.name} selects other rows"
    if available.length + source.lateness < wanted.length + target.lateness or available.lateness < wanted.lateness:
        return f"{source.name} stores rows for a shorter time"
    if missing:
        return f"{source.name} does not store {format_expression(min(missing))}"
    if not set(target.streams) <= set(source.streams) and find_watermark(source.streams) == MAX_TIME:
        return f"{source.name} has evicted all rows, because its streams have ended"
    return None


def _find_first_kept(
    source: NormalizedJoin, target: NormalizedJoin, relation: str, find_watermark: Callable[[Sequence[str]], int]
) -> int:
    """Return the event time from which the source has kept all rows that it saw."""
    watermark = find_watermark(source.streams)
    if set(target.streams) <= set(source.streams) or watermark == MIN_TIME:
        return source.since
    return max(source.since, watermark - source.lateness - source.inputs[relation].length)
