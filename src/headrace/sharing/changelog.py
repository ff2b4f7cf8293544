"""Changes to the set of live queries, woven into the stream at an exact event time.

Bits of removed queries are given to new ones (lowest first), so query-sets stay as short as the number of live queries.
The changelog-set says which bits still mean the same query as before; sets of rows from before and after a change may be
compared on those bits only, and over several changes on the AND of their sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.plan.logical import LogicalQuery
from headrace.plan.unfolded import Unfolded
from headrace.sharing.shared_plan import LiveQuery


@dataclass(frozen=True, slots=True)
class Addition:
    """A query to add; `since` is the event time from which it sees rows, `feeds` the stream its results are, if they are one.

    `unfolded` are the streams it reads that are to be made of declared ones.
    """

    id: int
    name: str
    plan: LogicalQuery
    since: int
    feeds: str = ""
    unfolded: tuple[Unfolded, ...] = ()


@dataclass(frozen=True, slots=True)
class Changelog:
    """Additions and removals (by id) that take effect together."""

    additions: tuple[Addition, ...] = ()
    removals: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.additions or self.removals)


def apply(live: Sequence[LiveQuery], changelog: Changelog) -> tuple[LiveQuery, ...]:
    """Return the live queries after a change; additions take the lowest free bits in order of their id."""
    kept = [query for query in live if query.id not in changelog.removals]
    taken = {query.bit for query in kept}
    free = (bit for bit in range(len(kept) + len(changelog.additions) + 1) if bit not in taken)
    kept += [
        LiveQuery(a.id, a.name, a.plan, a.since, next(free), (), a.feeds, (), a.unfolded)
        for a in sorted(changelog.additions, key=lambda one: one.id)
        if a.id not in changelog.removals
    ]
    return tuple(sorted(kept, key=lambda query: query.id))


def query_set(bits: Iterable[int]) -> int:
    """Return the set of these bits."""
    found = 0
    for bit in bits:
        found |= 1 << bit
    return found


def changelog_set(before: Sequence[LiveQuery], after: Sequence[LiveQuery]) -> int:
    """Return the bits that mean the same query before and after."""
    ids = {query.bit: query.id for query in before}
    return query_set(query.bit for query in after if ids.get(query.bit) == query.id)


def unchanged_over(sets: Iterable[int]) -> int:
    """Return the bits unchanged over several changes in a row; −1 (all bits) over none."""
    found = -1
    for one in sets:
        found &= one
    return found
