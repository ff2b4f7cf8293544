"""The plan of all live sliding joins: the state stores, and the stores that the rows of each relation probe.

Each relation has a tree of probes. New rows of the relation enter at the root; every probe finds partners in one store and passes
the joined rows to the probes below it, to the queries that are complete, and to the stores of materialized joins. Queries whose
orders have a common prefix share its probes; the query-set of each row tells which queries still need it.

Within a micro-batch, relations are ranked: rows of a relation see the new rows of relations ranked before it, and only earlier
rows of all others. Each result is therefore found exactly once, from its new row that is ranked last.

A new query may be backfilled from the state of other queries:

    d   added ├──────────────────────────────▶
    q                    added, with backfill ├──▶     sees all rows that d saw, and emits results that are new from now on

All inputs but one then need a live query whose stored rows include those that it would have (`backfill`).

Outer joins find the pairs of rows like others. When the watermark has passed all possible partners of a row, the row probes the
store of the other relation once more: if it finds no partner there, it never had one (`UnmatchedStep`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from headrace.model.expression import Expression
from headrace.model.record import record
from headrace.planner.join.join_graph import Attribute, JoinGraph
from headrace.planner.join.normalized_join import NormalizedJoin


@record("probe-target")
@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A step of a probe order: a relation, and the attribute that partitions its store."""

    relation: JoinGraph
    partitioned_by: Attribute | None = None


OrdersByRelation = Mapping[str, tuple[ProbeTarget, ...]]


@record("probe-order-choice")
@dataclass(frozen=True, slots=True)
class ProbeOrderChoice:
    """The decision of an optimizer: the orders of all relations for each query (by id) and each materialized join.

    Conditions in `residual_texts` are residual predicates, so that queries with and without them share the join.
    """

    queries: Mapping[int, OrdersByRelation]
    materialized: Mapping[JoinGraph, OrdersByRelation] = field(default_factory=dict)
    residual_texts: frozenset[str] = frozenset()


@record("routing-kind")
class RoutingKind(Enum):
    """How rows reach the partitions of the next store."""

    STORED = "stored"  # new rows probe the partition in which they are stored
    LOCAL = "local"  # rows stay in their partition
    KEY = "key"  # to the partition of a value of the row
    BROADCAST = "all"  # a copy to every partition


@record("probe-routing")
@dataclass(frozen=True, slots=True)
class ProbeRouting:
    """Routing to a store; `key` is the value over joined columns that determines the partition.

    `colocated_store` is the number of the store whose rows already lie in that partition.
    """

    kind: RoutingKind
    key: Expression | None = None
    colocated_store: int = -1


@record("store-spec")
@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A state store: rows of a relation, partitioned by an attribute or at random; filled from `from_batch` to `until_batch`."""

    number: int
    relation: JoinGraph
    partitioned_by: Attribute | None
    partition_key: Expression | None
    from_batch: int
    until_batch: int | None = None


@record("store-feed")
@dataclass(frozen=True, slots=True)
class StoreFeed:
    """Joined rows of a probe enter the store of a materialized join, where they are visible from `level` on."""

    store_number: int
    routing: ProbeRouting
    level: int


@record("probe-step")
@dataclass(frozen=True, slots=True)
class ProbeStep:
    """Find partners of arriving rows in a store, at a level of the job.

    `keys` are the equalities of the look-up: (of the arriving row, of the stored row). `before_batch` restricts partners to rows
    stored before that batch. `covered_relations` are the relations of the joined rows.
    """

    number: int
    store_number: int
    before_batch: int | None
    keys: tuple[tuple[Expression, Expression], ...]
    routing: ProbeRouting
    level: int
    query_ids: frozenset[int]
    covered_relations: frozenset[str]
    completed_queries: tuple[int, ...] = ()
    feeds: tuple[StoreFeed, ...] = ()
    children: tuple[ProbeStep, ...] = ()

    def walk(self) -> Iterator[ProbeStep]:
        """Yield this probe and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@record("unmatched-step")
@dataclass(frozen=True, slots=True)
class UnmatchedStep:
    """Find the rows of an outer relation that have no partner, once no partner can come any more.

    The rows are those in a store, stored before a batch if `before_batch` is set. Each probe finds partners in one store. If some
    of these lie in other partitions, rows wait in their own partition, at `collect_level`, for what the probes find.
    """

    number: int
    relation: str
    store_number: int
    before_batch: int | None
    query_ids: frozenset[int]
    probes: tuple[ProbeStep, ...]
    collect_level: int


@record("sliding-join-plan")
@dataclass(frozen=True, slots=True)
class SlidingJoinPlan:
    """The plan of all sliding joins; the first of `ranked_relations` sees only rows of earlier batches.

    `used_since` maps stores of materialized joins, and queries, to the batch from which the rows in the store count for the
    query.
    """

    queries: tuple[NormalizedJoin, ...]
    ranked_relations: tuple[str, ...]
    streams: Mapping[str, str]
    stores: tuple[StoreSpec, ...]
    root_probes: Mapping[str, tuple[ProbeStep, ...]]
    used_since: Mapping[int, Mapping[int, int]]
    last_level: int
    next_store_number: int
    choice: ProbeOrderChoice
    unmatched_steps: tuple[UnmatchedStep, ...] = ()

    @property
    def probes(self) -> Iterator[tuple[str, ProbeStep]]:
        """All probes, each with its starting relation."""
        for name, roots in self.root_probes.items():
            for root in roots:
                yield from ((name, probe) for probe in root.walk())

    @property
    def is_transitional(self) -> bool:
        """Whether some stores or probes are needed only until rows from before a change expire."""
        return any(store.until_batch is not None for store in self.stores) or any(
            before is not None
            for before in (
                *(probe.before_batch for _, probe in self.probes),
                *(step.before_batch for step in self.unmatched_steps),
                *(probe.before_batch for step in self.unmatched_steps for probe in step.probes),
            )
        )

    def find_outer_users(self, store_number: int) -> frozenset[int]:
        """Return the queries that find rows without a partner by a store."""
        return frozenset().union(
            *(step.query_ids for step in self.unmatched_steps if step.store_number == store_number),
            *(probe.query_ids for step in self.unmatched_steps for probe in step.probes if probe.store_number == store_number),
        )

    def assign_delta_bits(self) -> dict[str, int]:
        """Return a bit for each relation, such that those in one query have different ones; other relations may share a bit.

        Joined rows tell by these bits which of their rows are new, in one word however many relations there are.
        """
        neighbors: dict[str, set[str]] = {name: set() for name in self.ranked_relations}
        for query in self.queries:
            for name in query.inputs:
                neighbors[name] |= query.inputs.keys() - {name}
        bits: dict[str, int] = {}
        for name in self.ranked_relations:
            taken = {bits[other] for other in neighbors[name] if other in bits}
            bits[name] = next(bit for bit in count() if bit not in taken)
        return bits

    def find_visible_relations(self, start: str, stored: frozenset[str]) -> frozenset[str]:
        """Return the relations among those of a store whose new rows are visible to the rows of a relation."""
        rank = self.ranked_relations.index(start)
        return frozenset(self.ranked_relations[:rank]) & stored

    def find_filled_stores(self, relation: str) -> list[StoreSpec]:
        """Return the stores that new rows of a relation enter."""
        return [
            store for store in self.stores if store.relation == JoinGraph(frozenset({relation})) and store.until_batch is None
        ]

    def find_needed_columns(self, relations: frozenset[str]) -> frozenset[str]:
        """Return the columns of some relations that any query reads."""
        all_columns = frozenset().union(*(query.columns for query in self.queries))
        return frozenset(name for name in all_columns if name.partition("\x1f")[0] in relations)
