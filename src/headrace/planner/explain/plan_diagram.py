"""Diagram of the shared plan as boxes and connections for the web page: streams lead to operators, operators to their queries.

An operator of an inner query leads to the stream of its results instead, which leads to the operators that read it, so that there
are no cycles. `plan_drawing` has the places of the boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.planner.changelog import root_query_id
from headrace.planner.explain.text import describe_stores, format_join_buffer, format_operator
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.shared_plan import LiveQuery, SessionAggregation, SharedAggregation, SharedOperator, StreamPlan, Subscriber


@dataclass(frozen=True, slots=True)
class PlanBox:
    """A stream, an operator or a query; `queries` are the names of the queries that use it."""

    id: str
    kind: str
    stream: str
    label: str
    detail: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanDiagram:
    """Boxes, and connections between them by id."""

    boxes: tuple[PlanBox, ...]
    connections: tuple[tuple[str, str], ...]


def build_plan_diagram(
    live: Sequence[LiveQuery], plans: Iterable[StreamPlan], probes: SlidingJoinPlan | None = None
) -> PlanDiagram:
    """Return the diagram; equal plans give equal diagrams."""
    drawing = _DiagramBuilder({query.id: query.name for query in live}, {query.id: query.output_stream for query in live}, [], {})
    for plan in sorted(plans, key=lambda each: (each.stream.startswith("~"), each.stream)):
        drawing.add_stream(plan)
    if probes is not None:
        drawing.add_stores(probes)
    for query in live:
        drawing.add_query(query)
    return PlanDiagram(tuple(drawing.boxes), tuple(drawing.connections))


@dataclass(frozen=True, slots=True)
class _DiagramBuilder:
    query_names: Mapping[int, str]
    output_streams: Mapping[int, str]
    boxes: list[PlanBox]
    connections: dict[tuple[str, str], None]

    def connect(self, source: str, target: str) -> None:
        self.connections[source, target] = None

    def connect_results(self, source: str, query_ids: Iterable[int]) -> None:
        """Connect an operator to the queries that use it, or to the streams of their results."""
        for query_id in query_ids:
            stream = self.output_streams.get(query_id, "")
            self.connect(source, f"stream {stream}" if stream else _query_box_id(query_id))

    def add_stream(self, plan: StreamPlan) -> None:
        box_id = f"stream {plan.stream}"
        readers = self._list_query_names(member.query_id for member in plan.subscribers)
        label = "results of a query" if plan.stream.startswith("~") else plan.stream
        self.boxes.append(PlanBox(box_id, "stream", plan.stream, label, f"columns: {', '.join(sorted(plan.columns))}", readers))
        for number, operator in enumerate(plan.operators):
            kind, description = get_operator_kind(operator), format_operator(operator, self.query_names, plan.stats)
            self._add_operator(plan.stream, f"{box_id} {kind} {number}", kind, description, operator.subscribers)
        for number, buckets in enumerate(plan.join_buffers):
            self._add_operator(
                plan.stream,
                f"{box_id} buckets {number}",
                "buckets",
                format_join_buffer(buckets, plan.join_buffers, self.query_names),
                buckets.subscribers,
            )

    def _add_operator(
        self, stream: str, box_id: str, kind: str, description: Sequence[str], members: Sequence[Subscriber]
    ) -> None:
        label, detail = description[0].partition(" · ")[0], "\n".join(line.strip() for line in description[1:])
        query_ids = [member.query_id for member in members]
        self.boxes.append(PlanBox(box_id, kind, stream, label, detail, self._list_query_names(query_ids)))
        self.connect(f"stream {stream}", box_id)
        self.connect_results(box_id, query_ids)

    def add_stores(self, plan: SlidingJoinPlan) -> None:
        """Add the state stores of sliding joins; the physical graph shows which probes visit them."""
        for store, (description, query_ids) in describe_stores(plan).items():
            box_id = f"store {store.number}"
            label, _, detail = description.partition(" · ")
            self.boxes.append(PlanBox(box_id, "store", "", label, detail, self._list_query_names(query_ids)))
            for relation in sorted(store.relation.relations):
                stream = plan.streams[relation]
                self.connect(f"stream {stream}", box_id)
            self.connect_results(box_id, query_ids)

    def add_query(self, query: LiveQuery) -> None:
        box_id = _query_box_id(query.id)
        if box_id not in {box.id for box in self.boxes}:
            self.boxes.append(PlanBox(box_id, "query", "", query.name, "", (query.name,)))

    def _list_query_names(self, query_ids: Iterable[int]) -> tuple[str, ...]:
        """Return the names of the queries themselves, also for ids of their parts."""
        roots = dict.fromkeys(map(root_query_id, query_ids))
        return tuple(self.query_names.get(query_id, str(query_id)) for query_id in roots)


def get_operator_kind(operator: SharedOperator) -> str:
    """Return the kind of an operator as one word."""
    return (
        "aggregation"
        if isinstance(operator, SharedAggregation)
        else ("sessions" if isinstance(operator, SessionAggregation) else "routing")
    )


def _query_box_id(query_id: int) -> str:
    """Return the id of the box of a query; parts of a query share the box of the query itself."""
    return f"query {root_query_id(query_id)}"
