"""The physical graph: where rows of inputs go, what happens to them there, and on which ways results come out.

Nodes are inputs, stores and the outputs of queries. An edge has a label, and a store goes by the label alone: rows that come
over it are kept, or probe what is kept, and what that makes is sent over further edges. There may be several edges between two
nodes, and cycles; no row ever goes round, for each edge belongs to one step of one starting input.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.sharing.multiway.relations import Attribute, Join


class Kind(StrEnum):
    """Which tasks of the node at its end an edge leads to: that of a value, every one, or any one."""

    GROUP_BY = "group by"
    ALL = "all"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class Input:
    """Where rows of an input come in."""

    name: str

    def __str__(self) -> str:
        """Return the input's name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Store:
    """Rows of a relation, in so many partitions: by the value of an attribute, or at random; those of batches `since` … `until`.

    A store with an end is filled no more, and probed only until its rows have expired.
    """

    relation: Join
    partitioned_by: Attribute | None = None
    tasks: int = 1
    since: int = 0
    until: int | None = None

    def __post_init__(self) -> None:
        """Check that the rows have the attribute, and that there is somebody to keep them."""
        if self.tasks < 1 or (self.partitioned_by is not None and self.partitioned_by.relation not in self.relation.relations):
            raise ValueError("a store has a task or more, and is partitioned by an attribute of its own inputs")

    def __str__(self) -> str:
        """Return the relation's name, with the attribute, the number of partitions, and the end if there is one."""
        by = "" if self.partitioned_by is None else f"[{self.partitioned_by}]"
        ends = "" if self.until is None else f" until batch {self.until}"
        return f"{self.relation}{by}" + (f" ×{self.tasks}" if self.tasks > 1 else "") + ends


@dataclass(frozen=True, slots=True)
class Output:
    """Where results of a query come out."""

    query: str

    def __str__(self) -> str:
        """Return the query's name."""
        return self.query


Node = Input | Store | Output


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from node to node: `rows` says what goes there, `by` the attribute whose value decides on the task.

    `is_there` if rows lie in that task already, so that nothing travels.
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
        return (str(self.kind) if self.by is None else f"{self.kind} {self.by}") + (", already there" if self.is_there else "")


@dataclass(frozen=True, slots=True)
class Keep:
    """Rows that come over the edge are kept."""

    edge: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows that come over the edge find the kept rows for which all conditions hold; what that makes is sent on.

    Conditions are texts; those that only some queries have name them. With `before`, only rows count that were kept before
    that batch. An edge of `sends` that ends at an output carries results of its query.
    """

    edge: str
    conditions: tuple[str, ...]
    sends: tuple[str, ...]
    before: int | None = None


Rule = Keep | Probe


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, edges in the order of their labels, and for each edge that ends at a store its rule, in the same order."""

    inputs: tuple[Input, ...]
    stores: tuple[Store, ...]
    outputs: tuple[Output, ...]
    edges: tuple[Edge, ...]
    rules: tuple[Rule, ...]

    def edge(self, label: str) -> Edge:
        """Return the edge with a label."""
        return next(one for one in self.edges if one.label == label)

    def outgoing(self, node: Node) -> tuple[Edge, ...]:
        """Return the edges that begin at a node."""
        return tuple(one for one in self.edges if one.source == node)

    def incoming(self, node: Node) -> tuple[Edge, ...]:
        """Return the edges that end at a node."""
        return tuple(one for one in self.edges if one.target == node)

    def rules_at(self, store: Store) -> tuple[Rule, ...]:
        """Return what a store does with what comes in."""
        labels = {one.label for one in self.incoming(store)}
        return tuple(rule for rule in self.rules if rule.edge in labels)
