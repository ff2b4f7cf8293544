"""The plan of all live multi-way joins: which stores there are, and along which stores the rows of each relation go.

For each relation there is a tree of probes. Its root are the new rows of the relation; every probe looks for partners in one
store and hands what it found to the probes below it, to the queries that are complete, and to the stores of joins that are
kept. Queries whose orders begin alike share those probes; each row says by its query-set who is still interested.

Within a micro-batch, relations are ranked: rows of a relation see the new rows of those ranked before it, and of all others
only what was there before. So each result is found once, from the one of its new rows that is ranked last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headrace.model.expression import Expression
from headrace.sharing.multiway.asked import Asked
from headrace.sharing.multiway.relations import Attribute, Join


@dataclass(frozen=True, slots=True)
class Target:
    """A step of a probe order: a relation, and by which attribute its store is partitioned."""

    relation: Join
    by: Attribute | None = None


Orders = Mapping[str, tuple[Target, ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What an optimizer decided: for each query (by id), and each join that is kept, the orders of their relations.

    Conditions whose text is `loose` are not what relations are joined by, so that queries with and without them share.
    """

    queries: Mapping[int, Orders]
    kept: Mapping[Join, Orders] = field(default_factory=dict)
    loose: frozenset[str] = frozenset()


class EdgeKind(Enum):
    """How rows reach the partitions of the next store."""

    STORED = "stored"  # the rows that came to be stored lie where they are to probe
    LOCAL = "local"  # rows stay where they are
    KEY = "key"  # to the partition that a value of theirs names
    ALL = "all"  # a copy to every partition


@dataclass(frozen=True, slots=True)
class Edge:
    """The way to a store; `by` is the value, over joined columns, that names the partition; `store` whose rows lie right."""

    kind: EdgeKind
    by: Expression | None = None
    store: int = -1


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Rows of a relation, partitioned by an attribute, or anyhow; filled from batch `since` on, up to `until`."""

    number: int
    relation: Join
    by: Attribute | None
    key: Expression | None
    since: int
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows found by a probe go into the store of a join that is kept; they are there from `level` on."""

    store: int
    edge: Edge
    level: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Look for partners of arriving rows in a store, at a level of the job.

    `keys` are the equalities that partners are looked up by: (of the arriving row, of the stored row). `before` restricts
    partners to those stored before that batch. `covered` are the relations of the rows it makes.
    """

    number: int
    store: int
    before: int | None
    keys: tuple[tuple[Expression, Expression], ...]
    edge: Edge
    level: int
    users: frozenset[int]
    covered: frozenset[str]
    ends: tuple[int, ...] = ()
    feeds: tuple[Feed, ...] = ()
    children: tuple[Probe, ...] = ()

    def walk(self) -> Iterator[Probe]:
        """Yield this probe and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """All of it: `ranks` are the relations, first the one that sees only what was there before.

    `uses` has, for stores of joins that are kept, since which batch rows in them are meant for which query.
    """

    queries: tuple[Asked, ...]
    ranks: tuple[str, ...]
    streams: Mapping[str, str]
    stores: tuple[StoreSpec, ...]
    roots: Mapping[str, tuple[Probe, ...]]
    uses: Mapping[int, Mapping[int, int]]
    levels: int
    next_store: int
    choice: Choice

    @property
    def probes(self) -> Iterator[tuple[str, Probe]]:
        """All probes, each with the relation whose rows it began with."""
        for name, roots in self.roots.items():
            for root in roots:
                yield from ((name, one) for one in root.walk())

    @property
    def is_passing(self) -> bool:
        """Whether some of it is only needed until rows from before a change have expired."""
        return any(one.until is not None for one in self.stores) or any(one.before is not None for _, one in self.probes)

    def visible(self, relation: str) -> int:
        """Return, as bits by rank, the relations whose new rows are seen by rows of a relation."""
        return (1 << self.ranks.index(relation)) - 1

    def fresh(self, relation: str) -> int:
        """Return the bit of a relation."""
        return 1 << self.ranks.index(relation)

    def fed(self, relation: str) -> list[StoreSpec]:
        """Return the stores that new rows of a relation go into."""
        return [one for one in self.stores if one.relation == Join(frozenset({relation})) and one.until is None]

    def columns(self, relations: frozenset[str]) -> frozenset[str]:
        """Return the columns of some relations that anybody looks at."""
        every = frozenset().union(*(one.columns for one in self.queries))
        return frozenset(name for name in every if name.partition("\x1f")[0] in relations)
