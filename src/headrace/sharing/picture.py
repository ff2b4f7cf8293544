"""Diagram of the shared plan as boxes and connections for the web page: streams lead to operators, operators to their queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.sharing.explain import bucket_lines, operator_lines
from headrace.sharing.multiway.explained import told_stores
from headrace.sharing.multiway.probes import ProbePlan
from headrace.sharing.parts import whole
from headrace.sharing.shared_plan import LiveQuery, Member, Operator, Sessions, Store, StreamPlan


@dataclass(frozen=True, slots=True)
class Box:
    """A stream, an operator or a query; `queries` are the names of the queries that use it."""

    id: str
    kind: str
    stream: str
    label: str
    detail: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes, and connections between them by id."""

    boxes: tuple[Box, ...]
    lines: tuple[tuple[str, str], ...]


def picture(live: Sequence[LiveQuery], plans: Iterable[StreamPlan], probes: ProbePlan | None = None) -> Picture:
    """Return the diagram; equal plans give equal diagrams."""
    drawing = _Drawing({query.id: query.name for query in live}, [], {})
    for plan in sorted(plans, key=lambda each: (each.stream.startswith("~"), each.stream)):
        drawing.stream(plan)
    if probes is not None:
        drawing.probes(probes)
    for query in live:
        if query.feeds:
            drawing.line(_query(query.id), f"stream {query.feeds}")
        drawing.query(query)
    return Picture(tuple(drawing.boxes), tuple(drawing.lines))


@dataclass(frozen=True, slots=True)
class _Drawing:
    names: Mapping[int, str]
    boxes: list[Box]
    lines: dict[tuple[str, str], None]

    def line(self, source: str, target: str) -> None:
        self.lines[source, target] = None

    def stream(self, plan: StreamPlan) -> None:
        box_id = f"stream {plan.stream}"
        readers = self._users(member.query for member in plan.members)
        label = "results of a query" if plan.stream.startswith("~") else plan.stream
        self.boxes.append(Box(box_id, "stream", plan.stream, label, f"columns: {', '.join(sorted(plan.columns))}", readers))
        for number, operator in enumerate(plan.operators):
            kind, description = kind_of(operator), operator_lines(operator, self.names, plan.stats)
            self._operator(plan.stream, f"{box_id} {kind} {number}", kind, description, operator.members)
        for number, buckets in enumerate(plan.buckets):
            self._operator(
                plan.stream, f"{box_id} buckets {number}", "buckets", bucket_lines(buckets, self.names), buckets.members
            )

    def _operator(self, stream: str, box_id: str, kind: str, description: Sequence[str], members: Sequence[Member]) -> None:
        label, detail = description[0].partition(" · ")[0], "\n".join(line.strip() for line in description[1:])
        query_ids = [member.query for member in members]
        self.boxes.append(Box(box_id, kind, stream, label, detail, self._users(query_ids)))
        self.line(f"stream {stream}", box_id)
        for query_id in query_ids:
            self.line(box_id, _query(query_id))

    def probes(self, plan: ProbePlan) -> None:
        """Add the state stores of sliding joins; the physical graph shows which probes visit them."""
        for store, (description, query_ids) in told_stores(plan).items():
            box_id = f"store {store.number}"
            label, _, detail = description.partition(" · ")
            self.boxes.append(Box(box_id, "store", "", label, detail, self._users(query_ids)))
            for relation in sorted(store.relation.relations):
                stream = plan.streams[relation]
                self.line(f"stream {stream}", box_id)
            for query_id in query_ids:
                self.line(box_id, _query(query_id))

    def query(self, query: LiveQuery) -> None:
        box_id = _query(query.id)
        if box_id not in {box.id for box in self.boxes}:
            self.boxes.append(Box(box_id, "query", "", query.name, "", (query.name,)))

    def _users(self, query_ids: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.names.get(query_id, str(query_id)) for query_id in query_ids))


def kind_of(operator: Operator) -> str:
    """Return the kind of an operator as one word."""
    return "aggregation" if isinstance(operator, Store) else ("sessions" if isinstance(operator, Sessions) else "routing")


def _query(query_id: int) -> str:
    """Return the id of the box of a query; parts of a query share the box of the query itself."""
    return f"query {whole(query_id)}"
