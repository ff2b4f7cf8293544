"""Physical graph of the current plan of sliding joins, including transitional probes and stores until old rows expire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.model.expression import Expression
from headrace.planner.explain import render_graph
from headrace.planner.explain.render_graph import (
    GraphEdgeKind,
    InputNode,
    KeepRule,
    OutputNode,
    PhysicalGraph,
    render_mermaid,
    render_svg,
    render_text,
)
from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation
from headrace.planner.join.normalized_join import NormalizedJoin, format_expression, to_attribute
from headrace.planner.join.sliding_join_plan import ProbeStep, RoutingKind, SlidingJoinPlan, StoreFeed, StoreSpec

_MAX_LISTED = 8

GRAPH_FORMATS: Mapping[str, Callable[[PhysicalGraph], str]] = {"text": render_text, "mermaid": render_mermaid, "svg": render_svg}


def build_physical_graph(plan: SlidingJoinPlan | None, partitions: int) -> PhysicalGraph:
    """Return the graph of a plan for `partitions` partitions; an empty graph without a plan. Equal plans give equal graphs."""
    if plan is None:
        return PhysicalGraph((), (), (), (), ())
    specs = {spec.number: spec for spec in plan.stores}
    nodes = {
        n: render_graph.StoreNode(spec.relation, spec.partitioned_by, partitions, spec.from_batch, spec.until_batch)
        for n, spec in specs.items()
    }
    builder = _GraphBuilder(plan, partitions, specs, nodes, {query.id: OutputNode(query.name) for query in plan.queries})
    for name in sorted(plan.ranked_relations):
        builder.add_input(name)
    outputs = tuple(sorted(builder.outputs.values(), key=str))
    inputs = tuple(map(InputNode, sorted(plan.ranked_relations)))
    edges, rules = tuple(builder.edges.values()), builder.rules
    stores = sorted(nodes.values(), key=lambda node: (len(node.relation.relations), str(node), node.from_batch))
    return PhysicalGraph(inputs, tuple(stores), outputs, edges, tuple(rules[edge.label] for edge in edges if edge.label in rules))


def find_probe_conditions(plan: SlidingJoinPlan, probe: ProbeStep) -> dict[Expression, list[NormalizedJoin]]:
    """Return the conditions between arriving and stored rows of a probe, each with the queries that have it."""
    stored = next(spec for spec in plan.stores if spec.number == probe.store_number).relation.relations
    queries_by_condition: dict[Expression, list[NormalizedJoin]] = defaultdict(list)
    for query in plan.queries:
        for condition in query.conditions if query.id in probe.query_ids else ():
            if query.is_due(condition, probe.covered_relations - stored, stored):
                queries_by_condition[condition].append(query)
    return queries_by_condition


def format_probe_conditions(plan: SlidingJoinPlan, probe: ProbeStep) -> tuple[str, ...]:
    """Return the conditions of a probe as text: first those of all its queries, then the others with their queries."""
    names_by_text = {
        format_expression(condition): [query.name for query in queries]
        for condition, queries in find_probe_conditions(plan, probe).items()
    }
    common = sorted(text for text, names in names_by_text.items() if len(names) == len(probe.query_ids))
    partial = sorted((text, names) for text, names in names_by_text.items() if len(names) < len(probe.query_ids))
    return (*common, *(f"{text} for {format_list(names)}" for text, names in partial))


@dataclass(frozen=True, slots=True)
class _GraphBuilder:
    """A graph under construction: paths from one store to the same target with the same rows share one edge."""

    plan: SlidingJoinPlan
    partitions: int
    specs: Mapping[int, StoreSpec]
    stores: Mapping[int, render_graph.StoreNode]
    outputs: Mapping[int, OutputNode]
    edges: dict[object, render_graph.GraphEdge] = field(default_factory=dict)
    rules: dict[str, render_graph.StoreRule] = field(default_factory=dict)

    def add_input(self, name: str) -> None:
        """Add the edges of new rows of a relation: to the stores that they fill, then along its probes."""
        rows = input_relation(name)
        for store in self.plan.find_filled_stores(name):
            self._add_keep(InputNode(name), store, rows, is_local=False)
        for probe in self.plan.root_probes[name]:
            self._add_probe(InputNode(name), probe, rows)

    def _add_probe(self, source: render_graph.GraphNode, probe: ProbeStep, rows: JoinGraph) -> str:
        """Add a probe and all below it; return the label of its incoming edge."""
        store = self.stores[probe.store_number]
        kind, by = self._find_routing(probe)
        edge = self._add_edge(
            probe.number, render_graph.GraphEdge("", source, store, kind, rows, by, _is_local(probe.routing.kind))
        )
        result = JoinGraph(probe.covered_relations)
        sends = [self._add_feed(store, feed, result) for feed in probe.feeds]
        sends += [self._add_output(store, number, result) for number in probe.completed_queries]
        sends += [self._add_probe(store, child, result) for child in probe.children]
        self.rules[edge.label] = render_graph.ProbeRule(
            edge.label, format_probe_conditions(self.plan, probe), tuple(sends), probe.before_batch
        )
        return edge.label

    def _find_routing(self, probe: ProbeStep) -> tuple[GraphEdgeKind, Attribute | None]:
        """Return how rows reach the partitions that they probe."""
        if probe.routing.kind is RoutingKind.BROADCAST:
            return GraphEdgeKind.ALL, None
        key = self.specs[probe.store_number].partition_key
        value = next((left for left, right in probe.keys if right == key), None)
        return (
            (GraphEdgeKind.SHUFFLE, None)
            if value is None or self.partitions == 1
            else (GraphEdgeKind.GROUP_BY, to_attribute(value))
        )

    def _add_feed(self, source: render_graph.StoreNode, feed: StoreFeed, rows: JoinGraph) -> str:
        return self._add_keep(source, self.specs[feed.store_number], rows, is_local=_is_local(feed.routing.kind))

    def _add_keep(self, source: render_graph.GraphNode, store: StoreSpec, rows: JoinGraph, *, is_local: bool) -> str:
        by = store.partitioned_by if self.partitions > 1 else None
        kind = GraphEdgeKind.SHUFFLE if by is None else GraphEdgeKind.GROUP_BY
        template = render_graph.GraphEdge("", source, self.stores[store.number], kind, rows, by, is_local)
        edge = self._add_edge(template, template)
        self.rules[edge.label] = KeepRule(edge.label)
        return edge.label

    def _add_output(self, source: render_graph.StoreNode, query: int, rows: JoinGraph) -> str:
        template = render_graph.GraphEdge("", source, self.outputs[query], GraphEdgeKind.SHUFFLE, rows)
        return self._add_edge(template, template).label

    def _add_edge(self, key: object, edge: render_graph.GraphEdge) -> render_graph.GraphEdge:
        return self.edges.setdefault(key, replace(edge, label=f"s{len(self.edges)}"))


def _is_local(kind: RoutingKind) -> bool:
    return kind in (RoutingKind.STORED, RoutingKind.LOCAL)


def format_list(parts: Sequence[str]) -> str:
    """Return the parts separated by commas; of a long list, the first ones and the number of the others."""
    shown = ", ".join(parts[:_MAX_LISTED]) or "none"
    return shown if len(parts) <= _MAX_LISTED else f"{shown} … and {len(parts) - _MAX_LISTED} more"


def format_partition_keys(keys: Sequence[Expression]) -> str:
    """Return by what rows of a join buffer are partitioned."""
    return f"by {format_list([str(key) for key in keys])}" if keys else "spread evenly"


def pluralize(word: str, count: int) -> str:
    """Return the singular or plural form for a count."""
    return word if count == 1 else ("queries" if word == "query" else f"{word}s")


def format_users(names: Sequence[str]) -> str:
    """Return the number and the names of the queries that use an operator."""
    return f"{len(names)} {pluralize('query', len(names))}: {format_list(names)}"
