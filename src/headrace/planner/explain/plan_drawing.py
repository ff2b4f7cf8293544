"""Places of the boxes and wires of a plan diagram, for the web page: streams on the left, queries on the right.

Queries that use the same operators form a group, and wires lead to the group: of 60 queries over one aggregation, one wire shows
what 60 would. Every operator has one wire, which branches to all that read its results.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.planner.explain.graph_layout import (
    PADDING,
    GraphLayout,
    LayeredGraph,
    LayoutBox,
    LayoutWire,
    PlacedBox,
    Port,
    assign_levels,
    build_cornered_path,
    find_middle_offset,
    insert_passages,
    layout_graph,
    order_boxes,
    spread_ends,
)
from headrace.planner.explain.plan_diagram import PlanBox, PlanDiagram

_MAX_QUERIES = 300  # more are not readable; the page lists all of them elsewhere
_MAX_QUERIES_IN_COLUMN, _MAX_ABREAST = 24, 4
_GRID = 8.0
_OPERATOR_SIZE, _STREAM_WIDTH = (208.0, 40.0), 150.0
_QUERY_HEIGHT, _WIDE_QUERY, _NARROW_QUERY = 24.0, 176.0, 104.0
_QUERY_GAP = 8.0


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """The place of a box of the diagram, by its id."""

    id: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """The frame around queries that use the same operators, with their names; also of one query with many wires."""

    queries: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class DrawnWire:
    """A branch of a wire as an SVG path, and the queries whose rows it carries."""

    path: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanDrawing:
    """The diagram with places; `omitted_queries` is the number of queries that are not drawn because there are too many."""

    width: float
    height: float
    boxes: tuple[DrawnBox, ...]
    groups: tuple[DrawnGroup, ...]
    wires: tuple[DrawnWire, ...]
    omitted_queries: int


@dataclass(frozen=True, slots=True)
class _QueryGroup:
    """Queries that use the same operators, in rows of `abreast`; several have a frame."""

    key: str
    queries: tuple[PlanBox, ...]
    sources: tuple[str, ...]
    abreast: int

    @property
    def margin(self) -> float:
        return _QUERY_GAP if len(self.queries) > 1 else 0.0

    @property
    def query_width(self) -> float:
        return _WIDE_QUERY if self.abreast == 1 else _NARROW_QUERY

    @property
    def size(self) -> tuple[float, float]:
        columns, rows = min(self.abreast, len(self.queries)), math.ceil(len(self.queries) / self.abreast)
        width = columns * (self.query_width + _QUERY_GAP) - _QUERY_GAP + 2 * self.margin
        height = rows * (_QUERY_HEIGHT + _QUERY_GAP) - _QUERY_GAP + 2 * self.margin
        return width, height

    def place_queries(self, left: float, top: float) -> Iterator[DrawnBox]:
        for number, query in enumerate(self.queries):
            row, column = divmod(number, self.abreast)
            x = left + self.margin + column * (self.query_width + _QUERY_GAP)
            y = top + self.margin + row * (_QUERY_HEIGHT + _QUERY_GAP)
            yield DrawnBox(query.id, x, y, self.query_width, _QUERY_HEIGHT)


def draw_plan_diagram(diagram: PlanDiagram) -> PlanDrawing:
    """Return the places of all boxes, for at most 300 queries; equal diagrams have equal drawings."""
    queries = [box for box in diagram.boxes if box.kind == "query"]
    drawn = queries[:_MAX_QUERIES]
    operators = {box.id: box for box in diagram.boxes if box.kind != "query"}
    groups = {group.key: group for group in _group_queries(drawn, diagram.connections)}
    edges = [(source, target) for source, target in diagram.connections if source in operators and target in operators]
    graph = _build_graph(operators, groups, edges)
    layout = layout_graph(graph)
    places = [(group, layout.boxes[key]) for key, group in groups.items()]
    users = {
        **{key: box.queries for key, box in operators.items()},
        **{key: tuple(query.label for query in group.queries) for key, group in groups.items()},
    }
    return PlanDrawing(
        layout.right + PADDING,
        layout.bottom + PADDING,
        (
            *(_draw_box(key, layout.boxes[key]) for key in operators),
            *(box for group, place in places for box in group.place_queries(place.left, place.top)),
        ),
        tuple(_draw_group(group, place) for group, place in places if place.height > _QUERY_HEIGHT),
        tuple(_draw_wires(graph, layout, users)),
        len(queries) - len(drawn),
    )


def _group_queries(queries: Sequence[PlanBox], connections: Iterable[tuple[str, str]]) -> list[_QueryGroup]:
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in connections:
        sources[target].append(source)
    members: dict[tuple[str, ...], list[PlanBox]] = defaultdict(list)
    for query in queries:
        members[tuple(sources[query.id])].append(query)
    abreast = min(_MAX_ABREAST, max(1, math.ceil(len(queries) / _MAX_QUERIES_IN_COLUMN)))
    return [_QueryGroup(f"group {n}", tuple(group), key, abreast) for n, (key, group) in enumerate(members.items())]


def _build_graph(
    operators: Mapping[str, PlanBox], groups: Mapping[str, _QueryGroup], edges: Sequence[tuple[str, str]]
) -> LayeredGraph:
    """Return the graph of operators and groups, its levels ordered; every source has one wire."""
    levels = assign_levels(operators, edges)
    last = max((level + 1 for level in levels.values()), default=0)
    targets: dict[str, list[str]] = defaultdict(list)
    for source, target in (*edges, *((source, key) for key, group in groups.items() for source in group.sources)):
        targets[source].append(target)
    entering = Counter(target for ends in targets.values() for target in ends)
    boxes = [_make_box(key, levels[key], _get_operator_size(box), entering[key]) for key, box in operators.items()]
    boxes += [_make_box(key, last, group.size, entering[key]) for key, group in groups.items()]
    heights = {box.key: box.height for box in boxes}
    wires = [
        LayoutWire(
            f"wire {source}", (Port(source, find_middle_offset(heights[source], _GRID)),), tuple(Port(key, 0.0) for key in ends)
        )
        for source, ends in targets.items()
    ]
    graph = LayeredGraph(tuple(boxes), tuple(wires), _GRID, _GRID)
    ordered = spread_ends(order_boxes(insert_passages(graph)))
    return replace(ordered, anchor=_find_tallest_level(ordered))


def _get_operator_size(box: PlanBox) -> tuple[float, float]:
    width, height = _OPERATOR_SIZE
    return (_STREAM_WIDTH if box.kind == "stream" else width), height


def _make_box(key: str, level: int, size: tuple[float, float], entering: int) -> LayoutBox:
    return LayoutBox(key, level, size[0], max(size[1], _GRID * (entering + 1)))


def _find_tallest_level(graph: LayeredGraph) -> int:
    heights = {level: sum(box.height + graph.spacing for box in column) for level, column in graph.levels.items()}
    return max(heights, key=lambda level: heights[level], default=0)


def _draw_box(key: str, place: PlacedBox) -> DrawnBox:
    return DrawnBox(key, place.left, place.top, place.width, place.height)


def _draw_group(group: _QueryGroup, place: PlacedBox) -> DrawnGroup:
    width, height = group.size
    return DrawnGroup(tuple(query.label for query in group.queries), place.left, place.top, width, max(height, place.height))


def _draw_wires(graph: LayeredGraph, layout: GraphLayout, users: Mapping[str, tuple[str, ...]]) -> Iterator[DrawnWire]:
    """Yield a path for each pair of boxes that a wire connects, through the passages between them."""
    wires = {wire.key: wire for wire in graph.wires}
    for wire in graph.wires:
        if wire.starts[0].box in users:
            for path, target in _follow_wire(wire, wires, layout):
                carried = set(users[wire.starts[0].box]) or set(users[target])
                yield DrawnWire(path, tuple(name for name in users[target] if name in carried))


def _follow_wire(wire: LayoutWire, wires: Mapping[str, LayoutWire], layout: GraphLayout) -> Iterator[tuple[str, str]]:
    placed = layout.wires[wire.key]
    for end, height in zip(wire.ends, placed.end_heights, strict=True):
        path = build_cornered_path(placed.start, placed.start_heights[0], placed.lane, height, placed.end)
        if end.box not in wires:
            yield path, end.box
        else:  # a passage: the next part continues the line
            for rest, target in _follow_wire(wires[end.box], wires, layout):
                yield f"{path}H{rest.partition('H')[2]}", target
