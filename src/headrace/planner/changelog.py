"""Changes to the set of live queries, applied to the stream at an exact event time.

New queries reuse the bits of removed ones, lowest first. Window joins and sliding joins number their bits apart, because no row
belongs to both; so the width of a query-set is the greatest number of joins of its kind, and `compact_bits` reduces it after
removals.

A query in the pipeline is one live query, plus one for each windowed query nested in it. These parts are live queries and share
operators with all others; their results are rows of a derived stream that other parts read. `compute_stream_depths` counts the
shuffles before such a stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from headrace.model.stream import Stream
from headrace.model.time import MIN_TIME
from headrace.plan.derived import (
    MAX_INNER_QUERIES,
    AnyQuery,
    NestedQuery,
    RowStream,
    compute_start_times,
    isolate_inner_queries,
)
from headrace.plan.logical import LogicalQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.join.window_join_plan import canonicalize_join
from headrace.planner.query_bits import FormerBit, choose_bit_limit, move_bits
from headrace.planner.shared_plan import LiveQuery

_BitSpace: TypeAlias = type[WindowJoinQuery | SlidingJoinQuery] | None  # only rows of joins have query-sets as bits


@dataclass(frozen=True, slots=True)
class QueryAddition:
    """A query to add. It sees rows from event time `since` on; its results form the stream `output_stream`, if that is not empty.

    `unnested` are the unnested streams that it reads.
    """

    id: int
    name: str
    plan: LogicalQuery
    since: int
    output_stream: str = ""
    unnested: tuple[RowStream, ...] = ()


@dataclass(frozen=True, slots=True)
class Changelog:
    """Additions and removals (by id) that take effect together."""

    additions: tuple[QueryAddition, ...] = ()
    removals: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return bool(self.additions or self.removals)


def apply_changelog(live: Sequence[LiveQuery], changelog: Changelog) -> tuple[LiveQuery, ...]:
    """Return the live queries after a change; additions take the lowest free bits in the order of their ids."""
    remaining = [query for query in live if query.id not in changelog.removals]
    free = {kind: _iter_free_bits(remaining, kind) for kind in (WindowJoinQuery, SlidingJoinQuery, None)}
    remaining += [
        LiveQuery(
            addition.id,
            addition.name,
            addition.plan,
            addition.since,
            next(free[_find_bit_space(addition.plan)]),
            (),
            addition.output_stream,
            (),
            addition.unnested,
        )
        for addition in sorted(changelog.additions, key=lambda each: each.id)
        if addition.id not in changelog.removals
    ]
    return tuple(sorted(remaining, key=lambda query: query.id))


def compact_bits(live: Sequence[LiveQuery], batch: int) -> tuple[LiveQuery, ...]:
    """Return the live queries with fewer words of bits, from a batch on, where that pays; their order is kept."""
    bits: dict[_BitSpace, dict[int, int]] = defaultdict(dict)
    for query in live:
        bits[_find_bit_space(query.plan)][query.id] = query.bit
    moved: dict[int, int] = {}
    for kind in (WindowJoinQuery, SlidingJoinQuery):
        limit = choose_bit_limit(bits[kind].values())
        if limit is not None:
            moved |= move_bits(bits[kind], limit)
    return tuple(_move_query(query, moved[query.id], batch) if query.id in moved else query for query in live)


def _move_query(query: LiveQuery, bit: int, batch: int) -> LiveQuery:
    """Return a query with another bit; that of a window join before is known from the plans of its epochs."""
    former = (FormerBit(query.bit, batch),) if isinstance(query.plan, SlidingJoinQuery) else ()
    return replace(query, bit=bit, former_bits=(*query.former_bits, *former))


def _find_bit_space(plan: LogicalQuery) -> _BitSpace:
    """Return the kind of queries among which the bit of a query is unique."""
    return next((kind for kind in (WindowJoinQuery, SlidingJoinQuery) if isinstance(plan, kind)), None)


def _iter_free_bits(live: Iterable[LiveQuery], kind: _BitSpace) -> Iterator[int]:
    """Yield the free bits, ascending; most batches ask for none, so the bits that are taken are collected with the first."""
    taken = {query.bit for query in live if _find_bit_space(query.plan) is kind}
    yield from (bit for bit in count() if bit not in taken)


_FIRST_PART_ID = 1 << 40  # above all query ids


@dataclass(frozen=True, slots=True)
class QueryPart:
    """A query part to add to the pipeline; `result_stream` is the stream of its results, None for the query itself."""

    addition: QueryAddition
    result_stream: Stream | None = None


def split_query(query_id: int, name: str, query: AnyQuery, since: int = MIN_TIME) -> list[QueryPart]:
    """Return the parts of a query that sees rows from `since` on, inner ones first; the last part has the query's own id."""
    if not isinstance(query, NestedQuery):
        return [QueryPart(QueryAddition(query_id, name, _canonicalize_plan(query), since))]
    own_query, unnested = isolate_inner_queries(query, query_id), query.unnested
    starts = [
        MIN_TIME if start is None else start for start in compute_start_times(own_query, None if since == MIN_TIME else since)
    ]
    inner_parts = [
        QueryPart(
            QueryAddition(
                _FIRST_PART_ID + query_id * MAX_INNER_QUERIES + n,
                f"{name}/{n + 1}",
                _canonicalize_plan(inner.plan),
                start,
                inner.name,
                unnested,
            ),
            inner.stream,
        )
        for n, (inner, start) in enumerate(zip(own_query.inner, starts, strict=False))
    ]
    return [
        *inner_parts,
        QueryPart(QueryAddition(query_id, name, _canonicalize_plan(own_query.outer), starts[-1], unnested=unnested)),
    ]


def collect_unnested_streams(live: Iterable[LiveQuery]) -> tuple[RowStream, ...]:
    """Return the distinct unnested streams that live queries read, each after the streams that it is derived from."""
    return tuple({stream.name: stream for query in live for stream in query.unnested}.values())


def list_derived_streams(live: Iterable[LiveQuery]) -> frozenset[str]:
    """Return the names of all derived streams: results of live queries, and unnested streams."""
    return frozenset(name for query in live for name in (query.output_stream, *(stream.name for stream in query.unnested)))


def root_query_id(part: int) -> int:
    """Return the id of the query that a part belongs to; the id of a query itself is returned unchanged."""
    return part if part < _FIRST_PART_ID else (part - _FIRST_PART_ID) // MAX_INNER_QUERIES


def compute_stream_depths(live: Iterable[LiveQuery], sliding_join_levels: int = 0) -> dict[str, int]:
    """Return, for each stream of results, the number of shuffles before its rows exist.

    `sliding_join_levels` is the number of shuffles after the first one that joins in SLIDING windows take.
    """
    makers: dict[str, list[LiveQuery]] = {}
    for query in live:
        if query.output_stream:
            makers.setdefault(query.output_stream, []).append(query)
    depth_by_stream: dict[str, int] = {}

    def depth(stream: str) -> int:
        if stream not in depth_by_stream and stream in makers:
            depth_by_stream[stream] = 1 + max(
                _count_shuffles(maker, sliding_join_levels) + max(map(depth, maker.plan.streams)) for maker in makers[stream]
            )
        return depth_by_stream.get(stream, 0)

    for stream in makers:
        depth(stream)
    return depth_by_stream


def _count_shuffles(maker: LiveQuery, sliding_join_levels: int) -> int:
    return sliding_join_levels if isinstance(maker.plan, SlidingJoinQuery) else maker.extra_shuffles


def compute_query_level(plan: LogicalQuery, depth: Mapping[str, int]) -> int:
    """Return the number of shuffles before the windows of a query are evaluated."""
    return max(depth.get(stream, 0) for stream in plan.streams)


def count_window_levels(
    live: Iterable[LiveQuery], stream_levels: Mapping[str, int], fetched_inputs: Mapping[int, tuple[int, ...]]
) -> int:
    """Return the number of shuffles after the first one until all queries in windows have their results."""
    return max(
        (q.extra_shuffles + len(fetched_inputs.get(q.id, ())) + compute_query_level(q.plan, stream_levels) for q in live),
        default=0,
    )


def _canonicalize_plan(plan: LogicalQuery) -> LogicalQuery:
    return canonicalize_join(plan) if isinstance(plan, WindowJoinQuery) else plan
