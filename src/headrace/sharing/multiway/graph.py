"""Physical graph of sliding joins (CLASH): nodes are inputs, state stores and outputs of queries; edges carry rows between them.

An edge has a label, and a store acts by the label alone: it keeps the rows that arrive over the edge, or probes its rows with
them and sends the result over further edges. Two nodes may have several edges, and there may be cycles; no row loops, because
each edge belongs to one step of one starting input.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.sharing.multiway.relations import Attribute, Join


class Kind(StrEnum):
    """Tasks of the target node that an edge leads to: that of a value, every task, or any task."""

    GROUP_BY = "group by"
    ALL = "all"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class Input:
    """The source of the rows of an input."""

    name: str

    def __str__(self) -> str:
        """Return the input's name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Store:
    """A state store: rows of a relation in partitions, by an attribute or at random; from batch `from_batch` to `until_batch`.

    A store with an end is no longer filled, and probed only until its rows expire.
    """

    relation: Join
    partitioned_by: Attribute | None = None
    tasks: int = 1
    since: int = 0
    until: int | None = None

    def __post_init__(self) -> None:
        """Check that there is at least one task and that the rows have the attribute."""
        if self.tasks < 1 or (self.partitioned_by is not None and self.partitioned_by.relation not in self.relation.relations):
            raise ValueError("a store needs at least one task, and its partition attribute must belong to one of its inputs")

    def __str__(self) -> str:
        """Return the relation, the attribute, the number of partitions, and the end if there is one."""
        by = "" if self.partitioned_by is None else f"[{self.partitioned_by}]"
        ends = "" if self.until is None else f" until batch {self.until}"
        return f"{self.relation}{by}" + (f" ×{self.tasks}" if self.tasks > 1 else "") + ends


@dataclass(frozen=True, slots=True)
class Output:
    """The sink of the results of a query."""

    query: str

    def __str__(self) -> str:
        """Return the query's name."""
        return self.query


Node = Input | Store | Output


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between nodes: `rows` is the relation that it carries, `by` the attribute whose value selects the task.

    `is_local` says that rows already lie in that task, so that no data is shuffled.
    """

    label: str
    source: Node
    target: Node
    kind: Kind
    rows: Join
    by: Attribute | None = None
    is_there: bool = False

    @property
    def way(self) -> str:
        """The kind, with the attribute."""
        return (str(self.kind) if self.by is None else f"{self.kind} {self.by}") + (", local" if self.is_there else "")


@dataclass(frozen=True, slots=True)
class Keep:
    """Store the rows that arrive over the edge."""

    edge: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Join the rows that arrive over the edge with the stored rows for which all conditions hold, and send the result on.

    Conditions are texts; those of only some queries name them. With `before_batch`, only rows stored before that batch match. An
    edge of `sends` that ends at an output carries results of its query.
    """

    edge: str
    conditions: tuple[str, ...]
    sends: tuple[str, ...]
    before: int | None = None


Rule = Keep | Probe


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, edges in the order of their labels, and the rule of each edge that ends at a store, in the same order."""

    inputs: tuple[Input, ...]
    stores: tuple[Store, ...]
    outputs: tuple[Output, ...]
    edges: tuple[Edge, ...]
    rules: tuple[Rule, ...]

    def edge(self, label: str) -> Edge:
        """Return the edge with a label."""
        return next(edge for edge in self.edges if edge.label == label)

    def outgoing(self, node: Node) -> tuple[Edge, ...]:
        """Return the edges that start at a node."""
        return tuple(edge for edge in self.edges if edge.source == node)

    def incoming(self, node: Node) -> tuple[Edge, ...]:
        """Return the edges that end at a node."""
        return tuple(edge for edge in self.edges if edge.target == node)

    def rules_at(self, store: Store) -> tuple[Rule, ...]:
        """Return the rules of the edges that end at a store."""
        labels = {edge.label for edge in self.incoming(store)}
        return tuple(rule for rule in self.rules if rule.edge in labels)
