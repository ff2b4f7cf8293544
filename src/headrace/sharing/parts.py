"""A query in the pipeline: one live query, or one more for each windowed query inside of it.

Parts are live queries like all others and share with them; only where their results go is different: they are rows of a
stream that other parts read. `depths` says how many exchanges lie before such a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.stream import Stream
from headrace.plan.join import JoinQuery
from headrace.plan.logical import LogicalQuery
from headrace.plan.stacked import MAX_PARTS, AnyQuery, StackedQuery, beginnings, own
from headrace.plan.unfolded import Unfolded
from headrace.sharing.arrangement import canonical
from headrace.sharing.changelog import Addition
from headrace.sharing.shared_plan import LiveQuery
from headrace.sharing.slicing import NEVER

_PARTS = 1 << 40  # ids of parts are above all others


@dataclass(frozen=True, slots=True)
class Part:
    """What is added to the pipeline; `results` is the stream its results are, None for the query itself."""

    addition: Addition
    results: Stream | None = None


def parts_of(number: int, name: str, query: AnyQuery, since: int = NEVER) -> list[Part]:
    """Return the parts of a query that sees rows from `since` on, inner ones first; the last has the query's own id."""
    if not isinstance(query, StackedQuery):
        return [Part(Addition(number, name, _ready(query), since))]
    mine, made = own(query, number), query.unfolded
    begins = [NEVER if one is None else one for one in beginnings(mine, None if since == NEVER else since)]
    found = [
        Part(Addition(_PARTS + number * MAX_PARTS + n, f"{name}/{n + 1}", _ready(one.plan), begin, one.name, made), one.stream)
        for n, (one, begin) in enumerate(zip(mine.inner, begins, strict=False))
    ]
    return [*found, Part(Addition(number, name, _ready(mine.outer), begins[-1], unfolded=made))]


def unfolded_of(live: Iterable[LiveQuery]) -> tuple[Unfolded, ...]:
    """Return the streams that are to be made of declared ones, each once, those that others are made of first."""
    return tuple({one.name: one for query in live for one in query.unfolded}.values())


def made_of(live: Iterable[LiveQuery]) -> frozenset[str]:
    """Return the names of all streams that live queries make, or have made for them."""
    return frozenset(name for query in live for name in (query.feeds, *(one.name for one in query.unfolded)))


def whole(part: int) -> int:
    """Return the id of the query that a part is of; that of a query itself is its own."""
    return part if part < _PARTS else (part - _PARTS) // MAX_PARTS


def depths(live: Iterable[LiveQuery]) -> dict[str, int]:
    """Return for each stream of results after how many exchanges its rows are there."""
    makers: dict[str, list[LiveQuery]] = {}
    for query in live:
        if query.feeds:
            makers.setdefault(query.feeds, []).append(query)
    found: dict[str, int] = {}

    def depth(stream: str) -> int:
        if stream not in found and stream in makers:
            found[stream] = 1 + max(one.levels + max(map(depth, one.plan.streams)) for one in makers[stream])
        return found.get(stream, 0)

    for stream in makers:
        depth(stream)
    return found


def level(plan: LogicalQuery, depth: Mapping[str, int]) -> int:
    """Return after how many exchanges the windows of a query are evaluated."""
    return max(depth.get(stream, 0) for stream in plan.streams)


def _ready(plan: LogicalQuery) -> LogicalQuery:
    return canonical(plan) if isinstance(plan, JoinQuery) else plan
