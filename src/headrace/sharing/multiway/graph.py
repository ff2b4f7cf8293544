"""Physical graph of sliding joins (CLASH): nodes are inputs, state stores and outputs of queries; edges carry rows between them.

An edge has a label, and a store acts by the label alone: it keeps the rows that arrive over the edge, or probes its rows with
them and sends the result over further edges. Two nodes may have several edges, and there may be cycles; no row loops, because
each edge belongs to one step of one starting input.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.sharing.multiway.relations import Attribute, JoinGraph


class GraphEdgeKind(StrEnum):
    """Tasks of the target node that an edge leads to: that of a value, every task, or any task."""

    GROUP_BY = "group by"
    ALL = "all"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class InputNode:
    """The source of the rows of an input."""

    name: str

    def __str__(self) -> str:
        """Return the input's name."""
        return self.name


@dataclass(frozen=True, slots=True)
class StoreNode:
    """A state store: rows of a relation in partitions, by an attribute or at random; from batch `from_batch` to `until_batch`.

    A store with an end is no longer filled, and probed only until its rows expire.
    """

    relation: JoinGraph
    partitioned_by: Attribute | None = None
    tasks: int = 1
    from_batch: int = 0
    until_batch: int | None = None

    def __post_init__(self) -> None:
        """Check that there is at least one task and that the rows have the attribute."""
        if self.tasks < 1 or (self.partitioned_by is not None and self.partitioned_by.relation not in self.relation.relations):
            raise ValueError("a store needs at least one task, and its partition attribute must belong to one of its inputs")

    def __str__(self) -> str:
        """Return the relation, the attribute, the number of partitions, and the end if there is one."""
        by = "" if self.partitioned_by is None else f"[{self.partitioned_by}]"
        ends = "" if self.until_batch is None else f" until batch {self.until_batch}"
        return f"{self.relation}{by}" + (f" ×{self.tasks}" if self.tasks > 1 else "") + ends


@dataclass(frozen=True, slots=True)
class OutputNode:
    """The sink of the results of a query."""

    query: str

    def __str__(self) -> str:
        """Return the query's name."""
        return self.query


GraphNode = InputNode | StoreNode | OutputNode


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge between nodes: `rows` is the relation that it carries, `by` the attribute whose value selects the task.

    `is_local` says that rows already lie in that task, so that no data is shuffled.
    """

    label: str
    source: GraphNode
    target: GraphNode
    kind: GraphEdgeKind
    rows: JoinGraph
    by: Attribute | None = None
    is_local: bool = False

    @property
    def routing_text(self) -> str:
        """The kind, with the attribute."""
        return (str(self.kind) if self.by is None else f"{self.kind} {self.by}") + (", local" if self.is_local else "")


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Store the rows that arrive over the edge."""

    edge: str


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """Join the rows that arrive over the edge with the stored rows for which all conditions hold, and send the result on.

    Conditions are texts; those of only some queries name them. With `before_batch`, only rows stored before that batch match. An
    edge of `sends` that ends at an output carries results of its query.
    """

    edge: str
    conditions: tuple[str, ...]
    sends: tuple[str, ...]
    before_batch: int | None = None


StoreRule = KeepRule | ProbeRule


@dataclass(frozen=True, slots=True)
class PhysicalGraph:
    """Nodes, edges in the order of their labels, and the rule of each edge that ends at a store, in the same order."""

    inputs: tuple[InputNode, ...]
    stores: tuple[StoreNode, ...]
    outputs: tuple[OutputNode, ...]
    edges: tuple[GraphEdge, ...]
    rules: tuple[StoreRule, ...]

    def get_edge(self, label: str) -> GraphEdge:
        """Return the edge with a label."""
        return next(edge for edge in self.edges if edge.label == label)

    def list_outgoing(self, node: GraphNode) -> tuple[GraphEdge, ...]:
        """Return the edges that start at a node."""
        return tuple(edge for edge in self.edges if edge.source == node)

    def list_incoming(self, node: GraphNode) -> tuple[GraphEdge, ...]:
        """Return the edges that end at a node."""
        return tuple(edge for edge in self.edges if edge.target == node)

    def list_rules(self, store: StoreNode) -> tuple[StoreRule, ...]:
        """Return the rules of the edges that end at a store."""
        labels = {edge.label for edge in self.list_incoming(store)}
        return tuple(rule for rule in self.rules if rule.edge in labels)
