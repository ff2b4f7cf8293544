"""The plan of probes that is in force as a physical graph, with everything that is only there until old rows have expired."""

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
    """Return the graph of a plan for so many partitions; an empty one of no plan. Equal plans give equal graphs."""
    if plan is None:
        return Graph((), (), (), (), ())
    specs = {one.number: one for one in plan.stores}
    nodes = {n: graph.Store(one.relation, one.by, partitions, one.since, one.until) for n, one in specs.items()}
    drawing = _Drawing(plan, partitions, specs, nodes, {one.id: Output(one.name) for one in plan.queries})
    for name in sorted(plan.ranks):
        drawing.add_input(name)
    outputs = tuple(sorted(drawing.outputs.values(), key=str))
    inputs = tuple(map(Input, sorted(plan.ranks)))
    edges, rules = tuple(drawing.edges.values()), drawing.rules
    stores = sorted(nodes.values(), key=lambda one: (len(one.relation.relations), str(one), one.since))
    return Graph(inputs, tuple(stores), outputs, edges, tuple(rules[one.label] for one in edges if one.label in rules))


def conditions_at(plan: ProbePlan, probe: Probe) -> dict[Expression, list[Asked]]:
    """Return what must hold between arriving and stored rows of a probe, each with the queries that ask for it."""
    stored = next(one for one in plan.stores if one.number == probe.store).relation.relations
    found: dict[Expression, list[Asked]] = defaultdict(list)
    for query in plan.queries:
        for condition in query.conditions if query.id in probe.users else ():
            needs = relations_of(condition)
            if needs <= probe.covered and not needs <= probe.covered - stored and not needs <= stored:
                found[condition].append(query)
    return found


def told_conditions(plan: ProbePlan, probe: Probe) -> tuple[str, ...]:
    """Return the conditions of a probe for people: first those of all queries that use it, then the others with their queries."""
    found = {shown(one): [query.name for query in asking] for one, asking in conditions_at(plan, probe).items()}
    everybody = sorted(text for text, names in found.items() if len(names) == len(probe.users))
    some = sorted((text, names) for text, names in found.items() if len(names) < len(probe.users))
    return (*everybody, *(f"{text} for {listed(names)}" for text, names in some))


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A graph under construction: what leads from one store to the same end with the same rows is one edge."""

    plan: ProbePlan
    partitions: int
    specs: Mapping[int, StoreSpec]
    stores: Mapping[int, graph.Store]
    outputs: Mapping[int, Output]
    edges: dict[object, graph.Edge] = field(default_factory=dict)
    rules: dict[str, graph.Rule] = field(default_factory=dict)

    def add_input(self, name: str) -> None:
        """Add the ways of new rows of a relation: to where they are kept, then along its probes."""
        rows = input_relation(name)
        for one in self.plan.fed(name):
            self._keep(Input(name), one, rows, is_there=False)
        for probe in self.plan.roots[name]:
            self._probe(Input(name), probe, rows)

    def _probe(self, source: graph.Node, probe: Probe, rows: Join) -> str:
        """Add a probe and all below it; return the label of the edge that leads to it."""
        here = self.stores[probe.store]
        kind, by = self._way(probe)
        edge = self._edge(probe.number, graph.Edge("", source, here, kind, rows, by, _stays(probe.edge.kind)))
        made = Join(probe.covered)
        sends = [self._feed(here, feed, made) for feed in probe.feeds]
        sends += [self._end(here, number, made) for number in probe.ends]
        sends += [self._probe(here, child, made) for child in probe.children]
        self.rules[edge.label] = graph.Probe(edge.label, told_conditions(self.plan, probe), tuple(sends), probe.before)
        return edge.label

    def _way(self, probe: Probe) -> tuple[Kind, Attribute | None]:
        """Return how rows find the partitions that they probe."""
        if probe.edge.kind is EdgeKind.ALL:
            return Kind.ALL, None
        key = self.specs[probe.store].key
        value = next((left for left, right in probe.keys if right == key), None)
        return (Kind.SHUFFLE, None) if value is None or self.partitions == 1 else (Kind.GROUP_BY, attribute_of(value))

    def _feed(self, here: graph.Store, feed: Feed, rows: Join) -> str:
        return self._keep(here, self.specs[feed.store], rows, is_there=_stays(feed.edge.kind))

    def _keep(self, source: graph.Node, store: StoreSpec, rows: Join, *, is_there: bool) -> str:
        by = store.by if self.partitions > 1 else None
        kind = Kind.SHUFFLE if by is None else Kind.GROUP_BY
        way = graph.Edge("", source, self.stores[store.number], kind, rows, by, is_there)
        edge = self._edge(way, way)
        self.rules[edge.label] = Keep(edge.label)
        return edge.label

    def _end(self, here: graph.Store, query: int, rows: Join) -> str:
        way = graph.Edge("", here, self.outputs[query], Kind.SHUFFLE, rows)
        return self._edge(way, way).label

    def _edge(self, key: object, edge: graph.Edge) -> graph.Edge:
        return self.edges.setdefault(key, replace(edge, label=f"s{len(self.edges)}"))


def _stays(kind: EdgeKind) -> bool:
    return kind in (EdgeKind.STORED, EdgeKind.LOCAL)
