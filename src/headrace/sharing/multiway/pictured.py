"""Physical graph of the current plan of sliding joins, including transitional probes and stores until old rows expire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headrace.model.expression import Expression
from headrace.sharing.multiway import graph
from headrace.sharing.multiway.asked import Asked, attribute_of, relations_of, shown
from headrace.sharing.multiway.graph import Graph, Input, Keep, Kind, Output
from headrace.sharing.multiway.graph_svg import to_svg
from headrace.sharing.multiway.graph_text import to_mermaid, to_text
from headrace.sharing.multiway.probes import EdgeKind, Feed, Probe, ProbePlan, StoreSpec
from headrace.sharing.multiway.relations import Attribute, Join, input_relation
from headrace.sharing.wording import listed

FORMS: Mapping[str, Callable[[Graph], str]] = {"text": to_text, "mermaid": to_mermaid, "svg": to_svg}


def pictured(plan: ProbePlan | None, partitions: int) -> Graph:
    """Return the graph of a plan for `partitions` partitions; an empty graph without a plan. Equal plans give equal graphs."""
    if plan is None:
        return Graph((), (), (), (), ())
    specs = {spec.number: spec for spec in plan.stores}
    nodes = {n: graph.Store(spec.relation, spec.by, partitions, spec.since, spec.until) for n, spec in specs.items()}
    builder = _Drawing(plan, partitions, specs, nodes, {query.id: Output(query.name) for query in plan.queries})
    for name in sorted(plan.ranks):
        builder.add_input(name)
    outputs = tuple(sorted(builder.outputs.values(), key=str))
    inputs = tuple(map(Input, sorted(plan.ranks)))
    edges, rules = tuple(builder.edges.values()), builder.rules
    stores = sorted(nodes.values(), key=lambda node: (len(node.relation.relations), str(node), node.since))
    return Graph(inputs, tuple(stores), outputs, edges, tuple(rules[edge.label] for edge in edges if edge.label in rules))


def conditions_at(plan: ProbePlan, probe: Probe) -> dict[Expression, list[Asked]]:
    """Return the conditions between arriving and stored rows of a probe, each with the queries that have it."""
    stored = next(spec for spec in plan.stores if spec.number == probe.store).relation.relations
    queries_by_condition: dict[Expression, list[Asked]] = defaultdict(list)
    for query in plan.queries:
        for condition in query.conditions if query.id in probe.users else ():
            referenced = relations_of(condition)
            if referenced <= probe.covered and not referenced <= probe.covered - stored and not referenced <= stored:
                queries_by_condition[condition].append(query)
    return queries_by_condition


def told_conditions(plan: ProbePlan, probe: Probe) -> tuple[str, ...]:
    """Return the conditions of a probe as text: first those of all its queries, then the others with their queries."""
    names_by_text = {
        shown(condition): [query.name for query in queries] for condition, queries in conditions_at(plan, probe).items()
    }
    common = sorted(text for text, names in names_by_text.items() if len(names) == len(probe.users))
    partial = sorted((text, names) for text, names in names_by_text.items() if len(names) < len(probe.users))
    return (*common, *(f"{text} for {listed(names)}" for text, names in partial))


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A graph under construction: paths from one store to the same target with the same rows share one edge."""

    plan: ProbePlan
    partitions: int
    specs: Mapping[int, StoreSpec]
    stores: Mapping[int, graph.Store]
    outputs: Mapping[int, Output]
    edges: dict[object, graph.Edge] = field(default_factory=dict)
    rules: dict[str, graph.Rule] = field(default_factory=dict)

    def add_input(self, name: str) -> None:
        """Add the edges of new rows of a relation: to the stores that they fill, then along its probes."""
        rows = input_relation(name)
        for store in self.plan.fed(name):
            self._keep(Input(name), store, rows, is_there=False)
        for probe in self.plan.roots[name]:
            self._probe(Input(name), probe, rows)

    def _probe(self, source: graph.Node, probe: Probe, rows: Join) -> str:
        """Add a probe and all below it; return the label of its incoming edge."""
        store = self.stores[probe.store]
        kind, by = self._way(probe)
        edge = self._edge(probe.number, graph.Edge("", source, store, kind, rows, by, _stays(probe.edge.kind)))
        result = Join(probe.covered)
        sends = [self._feed(store, feed, result) for feed in probe.feeds]
        sends += [self._end(store, number, result) for number in probe.ends]
        sends += [self._probe(store, child, result) for child in probe.children]
        self.rules[edge.label] = graph.Probe(edge.label, told_conditions(self.plan, probe), tuple(sends), probe.before)
        return edge.label

    def _way(self, probe: Probe) -> tuple[Kind, Attribute | None]:
        """Return how rows reach the partitions that they probe."""
        if probe.edge.kind is EdgeKind.ALL:
            return Kind.ALL, None
        key = self.specs[probe.store].key
        value = next((left for left, right in probe.keys if right == key), None)
        return (Kind.SHUFFLE, None) if value is None or self.partitions == 1 else (Kind.GROUP_BY, attribute_of(value))

    def _feed(self, source: graph.Store, feed: Feed, rows: Join) -> str:
        return self._keep(source, self.specs[feed.store], rows, is_there=_stays(feed.edge.kind))

    def _keep(self, source: graph.Node, store: StoreSpec, rows: Join, *, is_there: bool) -> str:
        by = store.by if self.partitions > 1 else None
        kind = Kind.SHUFFLE if by is None else Kind.GROUP_BY
        template = graph.Edge("", source, self.stores[store.number], kind, rows, by, is_there)
        edge = self._edge(template, template)
        self.rules[edge.label] = Keep(edge.label)
        return edge.label

    def _end(self, source: graph.Store, query: int, rows: Join) -> str:
        template = graph.Edge("", source, self.outputs[query], Kind.SHUFFLE, rows)
        return self._edge(template, template).label

    def _edge(self, key: object, edge: graph.Edge) -> graph.Edge:
        return self.edges.setdefault(key, replace(edge, label=f"s{len(self.edges)}"))


def _stays(kind: EdgeKind) -> bool:
    return kind in (EdgeKind.STORED, EdgeKind.LOCAL)
