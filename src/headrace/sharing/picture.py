"""The shared plan as boxes and lines: what a page draws. Streams lead to operators, operators to the queries they work for."""

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
    """A stream, an operator or a query; `queries` are the names of those it is there for."""

    id: str
    kind: str
    stream: str
    label: str
    detail: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes, and lines from one to another by their ids."""

    boxes: tuple[Box, ...]
    lines: tuple[tuple[str, str], ...]


def picture(live: Sequence[LiveQuery], plans: Iterable[StreamPlan], probes: ProbePlan | None = None) -> Picture:
    """Return the picture; equal plans give equal pictures."""
    drawing = _Drawing({query.id: query.name for query in live}, [], {})
    for plan in sorted(plans, key=lambda one: (one.stream.startswith("~"), one.stream)):
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

    def line(self, begin: str, end: str) -> None:
        self.lines[begin, end] = None

    def stream(self, plan: StreamPlan) -> None:
        own = f"stream {plan.stream}"
        readers = self._users(member.query for member in plan.members)
        label = "results of a query" if plan.stream.startswith("~") else plan.stream
        self.boxes.append(Box(own, "stream", plan.stream, label, f"columns: {', '.join(sorted(plan.columns))}", readers))
        for number, operator in enumerate(plan.operators):
            kind, told = kind_of(operator), operator_lines(operator, self.names, plan.stats)
            self._operator(plan.stream, f"{own} {kind} {number}", kind, told, operator.members)
        for number, buckets in enumerate(plan.buckets):
            self._operator(plan.stream, f"{own} buckets {number}", "buckets", bucket_lines(buckets, self.names), buckets.members)

    def _operator(self, stream: str, own: str, kind: str, told: Sequence[str], members: Sequence[Member]) -> None:
        label, detail = told[0].partition(" · ")[0], "\n".join(line.strip() for line in told[1:])
        users = [member.query for member in members]
        self.boxes.append(Box(own, kind, stream, label, detail, self._users(users)))
        self.line(f"stream {stream}", own)
        for number in users:
            self.line(own, _query(number))

    def probes(self, plan: ProbePlan) -> None:
        """Draw the stores of joins in SLIDING windows: which probes look into them is what a graph of its own is for."""
        for store, (told, users) in told_stores(plan).items():
            own = f"store {store.number}"
            label, _, detail = told.partition(" · ")
            self.boxes.append(Box(own, "store", "", label, detail, self._users(users)))
            for relation in sorted(store.relation.relations):
                stream = plan.streams[relation]
                self.line(f"stream {stream}", own)
            for number in users:
                self.line(own, _query(number))

    def query(self, query: LiveQuery) -> None:
        own = _query(query.id)
        if own not in {box.id for box in self.boxes}:
            self.boxes.append(Box(own, "query", "", query.name, "", (query.name,)))

    def _users(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.names.get(number, str(number)) for number in numbers))


def kind_of(operator: Operator) -> str:
    """Return what an operator does, in one word."""
    return "aggregation" if isinstance(operator, Store) else ("sessions" if isinstance(operator, Sessions) else "routing")


def _query(number: int) -> str:
    """Return the id of a query's box: parts of a query are in that of the whole."""
    return f"query {whole(number)}"
