"""The plan of all live sliding joins: the state stores, and the stores that the rows of each relation probe.

Each relation has a tree of probes. New rows of the relation enter at the root; every probe finds partners in one store and passes
the joined rows to the probes below it, to the queries that are complete, and to the stores of materialized joins. Queries whose
orders have a common prefix share its probes; the query-set of each row tells which queries still need it.

Within a micro-batch, relations are ranked: rows of a relation see the new rows of relations ranked before it, and only earlier
rows of all others. Each result is therefore found exactly once, from its new row that is ranked last.
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
    """A step of a probe order: a relation, and the attribute that partitions its store."""

    relation: Join
    by: Attribute | None = None


Orders = Mapping[str, tuple[Target, ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision of an optimizer: the orders of all relations for each query (by id) and each materialized join.

    Conditions in `residual_texts` are residual predicates, so that queries with and without them share the join.
    """

    queries: Mapping[int, Orders]
    kept: Mapping[Join, Orders] = field(default_factory=dict)
    loose: frozenset[str] = frozenset()


class EdgeKind(Enum):
    """How rows reach the partitions of the next store."""

    STORED = "stored"  # new rows probe the partition in which they are stored
    LOCAL = "local"  # rows stay in their partition
    KEY = "key"  # to the partition of a value of the row
    ALL = "all"  # a copy to every partition


@dataclass(frozen=True, slots=True)
class Edge:
    """Routing to a store; `key` is the value over joined columns that determines the partition.

    `colocated_store` is the number of the store whose rows already lie in that partition.
    """

    kind: EdgeKind
    by: Expression | None = None
    store: int = -1


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A state store: rows of a relation, partitioned by an attribute or at random; filled from `from_batch` to `until_batch`."""

    number: int
    relation: Join
    by: Attribute | None
    key: Expression | None
    since: int
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """Joined rows of a probe enter the store of a materialized join, where they are visible from `level` on."""

    store: int
    edge: Edge
    level: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Find partners of arriving rows in a store, at a level of the job.

    `keys` are the equalities of the look-up: (of the arriving row, of the stored row). `before_batch` restricts partners to rows
    stored before that batch. `covered_relations` are the relations of the joined rows.
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
    """The plan of all sliding joins; the first of `ranked_relations` sees only rows of earlier batches.

    `used_since` maps stores of materialized joins, and queries, to the batch from which the rows in the store count for the
    query.
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
        """All probes, each with its starting relation."""
        for name, roots in self.roots.items():
            for root in roots:
                yield from ((name, probe) for probe in root.walk())

    @property
    def is_passing(self) -> bool:
        """Whether some stores or probes are needed only until rows from before a change expire."""
        return any(store.until is not None for store in self.stores) or any(probe.before is not None for _, probe in self.probes)

    def visible(self, relation: str) -> int:
        """Return, as bits by rank, the relations whose new rows are visible to rows of a relation."""
        return (1 << self.ranks.index(relation)) - 1

    def fresh(self, relation: str) -> int:
        """Return the bit of a relation, by rank."""
        return 1 << self.ranks.index(relation)

    def fed(self, relation: str) -> list[StoreSpec]:
        """Return the stores that new rows of a relation enter."""
        return [store for store in self.stores if store.relation == Join(frozenset({relation})) and store.until is None]

    def columns(self, relations: frozenset[str]) -> frozenset[str]:
        """Return the columns of some relations that any query reads."""
        all_columns = frozenset().union(*(query.columns for query in self.queries))
        return frozenset(name for name in all_columns if name.partition("\x1f")[0] in relations)
