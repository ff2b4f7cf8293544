"""The physical graph: where rows of inputs go, what happens to them there, and on which ways results come out.

Nodes are inputs, stores and the outputs of queries. An edge has a label, and a store goes by the label alone: rows that come
over it are kept, or probe what is kept, and what that makes is sent over further edges. There may be several edges between two
nodes, and cycles; no row ever goes round, for each edge belongs to one step of one starting input. Orders that begin alike are
one path as far as they are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.sharing.multiway.cost import copies
from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order, probe_orders
from headrace.sharing.multiway.relations import Attribute, Join, Predicate, input_relation
from headrace.sharing.multiway.trees import Child, Tree, inputs_of, operators, relations_of, stores

Step = tuple[Join, Attribute | None]
Orders = Mapping[tuple[str | Join, str], Sequence[Step]]


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
    """Rows of a relation, in so many partitions: by the value of an attribute, or at random."""

    relation: Join
    partitioned_by: Attribute | None = None
    tasks: int = 1

    def __post_init__(self) -> None:
        """Check that the rows have the attribute, and that there is somebody to keep them."""
        if self.tasks < 1 or (self.partitioned_by is not None and self.partitioned_by.relation not in self.relation.relations):
            raise ValueError("a store has a task or more, and is partitioned by an attribute of its own inputs")

    def __str__(self) -> str:
        """Return the relation's name, with the attribute and the number of partitions."""
        by = "" if self.partitioned_by is None else f"[{self.partitioned_by}]"
        return f"{self.relation}{by}" + (f" ×{self.tasks}" if self.tasks > 1 else "")


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
    """A way from node to node: `rows` says what travels, `by` the attribute whose value decides on the task."""

    label: str
    source: Node
    target: Node
    kind: Kind
    rows: Join
    by: Attribute | None = None

    @property
    def way(self) -> str:
        """The kind, with the attribute."""
        return str(self.kind) if self.by is None else f"{self.kind} {self.by}"


@dataclass(frozen=True, slots=True)
class Keep:
    """Rows that come over the edge are kept."""

    edge: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows that come over the edge find the kept rows for which all predicates hold; what that makes is sent on.

    An edge of `sends` that ends at an output carries results of its query.
    """

    edge: str
    predicates: tuple[Predicate, ...]
    sends: tuple[str, ...]


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


def build(queries: Mapping[str, Join], kept: Iterable[Store], orders: Orders) -> Graph:
    """Return the graph in which each order is a path from its input over stores to what it is for.

    The key of an order has what it computes and the input that starts: a query by its name, or a join that stores keep, as
    itself. A step names its store by relation and attribute. Raises ValueError for an order that leads elsewhere, and for a
    query or a kept join that lacks the order of one of its inputs.
    """
    found = tuple(sorted(kept, key=lambda one: (len(one.relation.relations), str(one), sorted(one.relation.predicates))))
    _check_complete(queries, found, orders)
    hops: list[_Hop] = []
    for (goal, start), steps in sorted(orders.items(), key=lambda item: _place(*item[0])):
        join = queries[goal] if isinstance(goal, str) else goal
        ends: list[Node] = [Output(goal)] if isinstance(goal, str) else [one for one in found if one.relation == goal]
        hops += [_Hop(_Path(start), one, *_kept(one)) for one in found if one.relation == input_relation(start)]
        hops += _walked(start, [_store(step, found) for step in steps], join, ends)
    return _assembled(hops, found)


def _place(goal: str | Join, start: str) -> tuple[str, bool, int, str, list[Predicate]]:
    """Return where an order comes: by input; first those for what is kept, smaller joins before larger ones."""
    if isinstance(goal, str):
        return start, True, 0, goal, []
    return start, False, len(goal.relations), str(goal), sorted(goal.predicates)


def _check_complete(queries: Mapping[str, Join], kept: Iterable[Store], orders: Orders) -> None:
    wanted: dict[str | Join, Join] = {one.relation: one.relation for one in kept if not one.relation.is_input}
    wanted.update(queries.items())
    for goal, join in wanted.items():
        missing = [name for name in sorted(join.relations) if (goal, name) not in orders]
        if missing:
            raise ValueError(f"there is no probe order of {missing[0]} for {goal}")
    for goal, _ in orders:
        if goal not in wanted:
            raise ValueError(f"there is no query and no store for the probe orders of {goal}")


@dataclass(frozen=True, slots=True)
class _Path:
    """Where rows have come: the input they started from, then stores, each with the rows that probing it makes."""

    start: str
    visited: tuple[tuple[Store, Join], ...] = ()

    @property
    def node(self) -> Input | Store:
        return self.visited[-1][0] if self.visited else Input(self.start)

    @property
    def rows(self) -> Join:
        return self.visited[-1][1] if self.visited else input_relation(self.start)


@dataclass(frozen=True, slots=True)
class _Hop:
    """What the end of a path makes is sent to a node: to be probed there, which leads on to `reached`, or to stay."""

    path: _Path
    target: Node
    kind: Kind
    by: Attribute | None
    reached: _Path | None = None

    @property
    def key(self) -> object:
        """Hops with the same key are one edge: rows that stay do so whichever path they came."""
        return self.reached or (self.path.node, self.target, self.path.rows)


def _walked(start: str, visits: Iterable[Store], join: Join, ends: Iterable[Node]) -> Iterator[_Hop]:
    """Yield the hops of an order: from store to store, and where it has made the join, to all its ends."""
    path = _Path(start)
    for store in visits:
        if path.rows.relations & store.relation.relations or not store.relation.predicates <= join.predicates:
            raise ValueError(f"a probe order of {start} for {join} does not go by {store}")
        made = join.within(path.rows.relations | store.relation.relations)
        reached = _Path(start, (*path.visited, (store, made)))
        yield _Hop(path, store, *_probed(store, path.rows, made), reached)
        path = reached
    if path.rows != join:
        raise ValueError(f"a probe order of {start} ends at {path.rows} and not at {join}")
    for end in ends:
        yield _Hop(path, end, *(_kept(end) if isinstance(end, Store) else (Kind.SHUFFLE, None)))


def _store(step: Step, kept: Iterable[Store]) -> Store:
    for one in kept:
        if (one.relation, one.partitioned_by) == step:
            return one
    raise ValueError(f"there is no store {Store(*step)}")


def _assembled(hops: Iterable[_Hop], kept: tuple[Store, ...]) -> Graph:
    """Return the graph of all hops: one edge for each key, labelled in the order they come."""
    edges: dict[object, Edge] = {}
    sends: dict[_Path, dict[str, None]] = {}
    for hop in hops:
        edge = Edge(f"s{len(edges)}", hop.path.node, hop.target, hop.kind, hop.path.rows, hop.by)
        sends.setdefault(hop.path, {})[edges.setdefault(hop.key, edge).label] = None
    nodes = {one for edge in edges.values() for one in (edge.source, edge.target)}
    inputs = sorted((one for one in nodes if isinstance(one, Input)), key=str)
    outputs = sorted((one for one in nodes if isinstance(one, Output)), key=str)
    rules = (_rule(key, edge, sends) for key, edge in edges.items() if isinstance(edge.target, Store))
    return Graph(tuple(inputs), kept, tuple(outputs), tuple(edges.values()), tuple(rules))


def _rule(key: object, edge: Edge, sends: Mapping[_Path, Iterable[str]]) -> Rule:
    if not isinstance(key, _Path):
        return Keep(edge.label)
    store = key.visited[-1][0]
    predicates = key.rows.predicates - edge.rows.predicates - store.relation.predicates
    return Probe(edge.label, tuple(sorted(predicates)), tuple(sends[key]))


def _kept(store: Store) -> tuple[Kind, Attribute | None]:
    """Return on what kind of edge rows go where they are kept: their own value of the attribute tells, else any task will do."""
    if store.tasks == 1 or store.partitioned_by is None:
        return Kind.SHUFFLE, None
    return Kind.GROUP_BY, store.partitioned_by


def _probed(store: Store, rows: Join, made: Join) -> tuple[Kind, Attribute | None]:
    """Return on what kind of edge rows go where they probe; `made` has the predicates between them and what is kept."""
    if store.tasks == 1:
        return Kind.SHUFFLE, None
    if copies(store.relation, store.partitioned_by, [rows], made, store.tasks) > 1:
        return Kind.ALL, None
    ties = sorted(one for one in made.between(store.relation.relations, rows.relations) if store.partitioned_by in one.sides)
    return Kind.GROUP_BY, next(side for side in ties[0].sides if side.relation in rows.relations)


def from_tree(tree: Tree, query: str, setting: Setting, search: Search = greedy_order) -> Graph:
    """Return the graph of a tree of operators that works off one query; tasks and attributes of stores are the setting's.

    Rows of an input climb the tree: through the probe order of the operator above them, then through that of its result.
    """
    kept = [Store(one, setting.partitioning.get(one), setting.tasks.get(one, 1)) for one in stores(tree, setting.join)]
    orders: dict[tuple[str | Join, str], tuple[Step, ...]] = {}
    for operator in operators(tree):
        goal = query if operator is tree else setting.part(operator.inputs)
        for name in operator.inputs:
            orders[goal, name] = _climbed(operator, name, setting, search)
    return build({query: setting.join}, kept, orders)


def _climbed(child: Child, name: str, setting: Setting, search: Search) -> tuple[Step, ...]:
    """Return the steps from an input up to what a child is."""
    if isinstance(child, str):
        return ()
    below = next(one for one in child.children if name in inputs_of(one))
    order = probe_orders(relations_of(child, setting.join), setting, search)[setting.part(inputs_of(below))]
    return (*_climbed(below, name, setting, search), *((one, setting.partitioning.get(one)) for one in order[1:]))
