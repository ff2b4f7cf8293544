"""Changes to the set of live queries, applied to the stream at an exact event time.

New queries reuse the bits of removed ones, lowest first, so the width of a query-set is the number of live queries. A
changelog-set holds the bits that denote the same query before and after a change. Query-sets from before and after a change may
be compared on those bits only; over several changes, on the AND of their changelog-sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.plan.logical import LogicalQuery
from headrace.plan.unfolded import UnnestedStream
from headrace.sharing.shared_plan import LiveQuery


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
    unnested: tuple[UnnestedStream, ...] = ()


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
    taken = {query.bit for query in remaining}
    free = (bit for bit in range(len(remaining) + len(changelog.additions) + 1) if bit not in taken)
    remaining += [
        LiveQuery(
            addition.id,
            addition.name,
            addition.plan,
            addition.since,
            next(free),
            (),
            addition.output_stream,
            (),
            addition.unnested,
        )
        for addition in sorted(changelog.additions, key=lambda each: each.id)
        if addition.id not in changelog.removals
    ]
    return tuple(sorted(remaining, key=lambda query: query.id))


def to_query_set(bits: Iterable[int]) -> int:
    """Return the bit mask with these bits."""
    mask = 0
    for bit in bits:
        mask |= 1 << bit
    return mask


def compute_changelog_set(before: Sequence[LiveQuery], after: Sequence[LiveQuery]) -> int:
    """Return the bits that denote the same query before and after a change."""
    ids = {query.bit: query.id for query in before}
    return to_query_set(query.bit for query in after if ids.get(query.bit) == query.id)


def intersect_changelog_sets(sets: Iterable[int]) -> int:
    """Return the bits that are unchanged over several successive changes; −1 (all bits) for no change."""
    mask = -1
    for unchanged in sets:
        mask &= unchanged
    return mask
