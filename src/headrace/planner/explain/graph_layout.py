"""Layout of layered graphs, for the plan on the web page and the SVG of the physical graph.

A layered graph has boxes in levels, which become columns from left to right, and wires between them. A wire leads from the right
side of its starts to the left side of its ends, one level further; or back to the right side of its own level. Between two
columns every wire has a vertical lane; wires that do not overlap share one:

    ┌───┐               ┌───┐
    │ a ├─────┐ ┌──────▶│ c │      a → d in the first lane,
    └───┘     │ │       └───┘      b → c in the second
    ┌───┐     │ │       ┌───┐
    │ b ├─────┼─┘ ┌────▶│ d │
    └───┘     └───┘     └───┘

No two wires coincide. Every start and every end has a port of its own, and boxes are placed such that a wire that leaves a box
never runs along another wire that enters a box of the next level. `insert_passages` leads wires over several levels through free
places of the levels between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

LANE_WIDTH, PADDING = 14.0, 12.0
_CORNER_RADIUS = 5.0
_ORDER_SWEEPS = 4


_WireHeight = tuple[tuple[int, float], str]
"""The number of a space between columns with a height in it, and the key of the wire that is there."""


@dataclass(frozen=True, slots=True)
class LayoutBox:
    """A node with its size. `height` is a multiple of the grid; `width` is the least, since boxes of a level are equally wide."""

    key: str
    level: int
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Port:
    """A place where a wire starts or ends: `offset` below the top of a box, equal modulo the grid for all ports of a graph."""

    box: str
    offset: float


@dataclass(frozen=True, slots=True)
class LayoutWire:
    """An edge with its ports; `label_width` is the width of the text beside its ends."""

    key: str
    starts: tuple[Port, ...]
    ends: tuple[Port, ...]
    label_width: float = 0.0


@dataclass(frozen=True, slots=True)
class LayeredGraph:
    """Boxes, in their order from top to bottom within each level, and wires.

    `grid` is the vertical distance of ports, `spacing`, a multiple of it, that of boxes. The boxes of level `anchor` are stacked,
    those of the other levels are placed beside the boxes that they are connected to.
    """

    boxes: tuple[LayoutBox, ...]
    wires: tuple[LayoutWire, ...]
    grid: float
    spacing: float
    anchor: int = 0

    @property
    def levels(self) -> dict[int, list[LayoutBox]]:
        """The boxes of each level, without gaps between the levels."""
        levels: dict[int, list[LayoutBox]] = {
            number: [] for number in range(max((box.level for box in self.boxes), default=-1) + 1)
        }
        for box in self.boxes:
            levels[box.level].append(box)
        return levels


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box with its place; `left` and `width` are those of its column."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PlacedWire:
    """A wire from `start` over `lane` to `end`, all horizontal positions, with the heights of its ports.

    It returns to the side where it starts if `end` is `start`.
    """

    start: float
    start_heights: tuple[float, ...]
    lane: float
    end: float
    end_heights: tuple[float, ...]

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest height."""
        return _find_span((*self.start_heights, *self.end_heights))

    @property
    def is_backward(self) -> bool:
        """Whether the wire returns to the side where it starts."""
        return self.end < self.lane


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The places of all boxes and wires by key, and the right and lower edge of the boxes."""

    boxes: Mapping[str, PlacedBox]
    wires: Mapping[str, PlacedWire]
    right: float
    bottom: float


def layout_graph(graph: LayeredGraph) -> GraphLayout:
    """Return the places of boxes and wires; equal graphs have equal layouts."""
    levels = graph.levels
    level_of = {box.key: box.level for box in graph.boxes}
    tops = _place_boxes(graph, levels)
    boxes: dict[str, PlacedBox] = {}
    wires: dict[str, PlacedWire] = {}
    leaving_wires: dict[int, list[LayoutWire]] = defaultdict(list)
    for wire in graph.wires:
        leaving_wires[level_of[wire.starts[0].box]].append(wire)
    left, right = PADDING, PADDING
    for level, column in levels.items():
        right = left + max((box.width for box in column), default=0.0)
        boxes |= {box.key: PlacedBox(left, tops[box.key], right - left, box.height) for box in column}
        backward = [wire for wire in leaving_wires[level] if level_of[wire.ends[0].box] == level]
        forward = [wire for wire in leaving_wires[level] if level_of[wire.ends[0].box] > level]
        leaving = [*backward, *forward]
        first_lane = right + (_measure_labels(backward) if backward else PADDING)
        lanes = _assign_lanes(leaving, tops, graph.grid / 2)
        left = first_lane + LANE_WIDTH * (max(lanes.values(), default=-1) + 1) + _measure_labels(forward)
        for wire in leaving:
            lane = first_lane + LANE_WIDTH * (lanes[wire.key] + 0.5)
            end = right if level_of[wire.ends[0].box] == level else left
            wires[wire.key] = PlacedWire(right, _find_heights(wire.starts, tops), lane, end, _find_heights(wire.ends, tops))
    bottom = max((tops[box.key] + box.height for box in graph.boxes), default=0.0)
    return GraphLayout(boxes, wires, right, bottom)


def _place_boxes(graph: LayeredGraph, levels: Mapping[int, Sequence[LayoutBox]]) -> dict[str, float]:
    """Return the tops of all boxes: those of the anchor one below the other, then level by level to the left and to the right."""
    placement = _Placement({box.key: box.level for box in graph.boxes})
    for wire in graph.wires:
        placement.add_wire(wire)
    for level in [*range(graph.anchor, -1, -1), *range(graph.anchor + 1, len(levels))] if levels else ():
        free_top = graph.grid
        for box in levels[level]:
            preferred = None
            if level < graph.anchor:
                preferred = placement.align_first_end(box)
            elif level > graph.anchor:
                preferred = placement.center_on_starts(box)
            step = graph.grid / 2
            top = max(free_top, step * round((free_top if preferred is None else preferred) / step))
            while placement.has_conflict(box, top):
                top += step
            placement.place_box(box, top)
            free_top = top + box.height + graph.spacing
    return placement.tops


@dataclass(frozen=True, slots=True)
class _Placement:
    """Boxes that have a place, by their tops, and the heights at which wires enter and leave the space between two columns.

    The space right of level n has number n. `left_heights` are on its left: starts, and ends of wires that return.
    `right_heights` are ends on its right. A height on the left must not equal one of another wire on the right.
    """

    level_of: Mapping[str, int]
    leaving: dict[str, list[tuple[float, LayoutWire]]] = field(default_factory=lambda: defaultdict(list))
    entering: dict[str, list[tuple[float, LayoutWire]]] = field(default_factory=lambda: defaultdict(list))
    tops: dict[str, float] = field(default_factory=dict)
    left_heights: dict[tuple[int, float], str] = field(default_factory=dict)
    right_heights: dict[tuple[int, float], str] = field(default_factory=dict)

    def add_wire(self, wire: LayoutWire) -> None:
        for start in wire.starts:
            self.leaving[start.box].append((start.offset, wire))
        for end in wire.ends:
            self.entering[end.box].append((end.offset, wire))

    def align_first_end(self, box: LayoutBox) -> float | None:
        """Return the top at which the first wire that leads to a placed box is straight."""
        ends = ((offset, end) for offset, wire in self.leaving[box.key] for end in wire.ends if end.box in self.tops)
        return next((self.tops[end.box] + end.offset - offset for offset, end in ends), None)

    def center_on_starts(self, box: LayoutBox) -> float | None:
        """Return the top at which the ends at the box are in the middle of the starts of their wires."""
        tops = [
            self.tops[start.box] + start.offset - offset
            for offset, wire in self.entering[box.key]
            for start in wire.starts
            if start.box in self.tops
        ]
        return fmean(tops) if tops else None

    def has_conflict(self, box: LayoutBox, top: float) -> bool:
        """Return whether a wire of the box would run along another wire."""
        left, right = self._list_heights(box, top)
        return any(self.right_heights.get(height, key) != key for height, key in left) or any(
            self.left_heights.get(height, key) != key for height, key in right
        )

    def place_box(self, box: LayoutBox, top: float) -> None:
        self.tops[box.key] = top
        left, right = self._list_heights(box, top)
        self.left_heights.update(left)
        self.right_heights.update(right)

    def _list_heights(self, box: LayoutBox, top: float) -> tuple[list[_WireHeight], list[_WireHeight]]:
        """Return the heights of a box at which wires are on the left and on the right of a space between columns."""
        left = [((box.level, top + offset), wire.key) for offset, wire in self.leaving[box.key]]
        right = []
        for offset, wire in self.entering[box.key]:
            if self.level_of[wire.starts[0].box] == box.level:  # it returns to the right side
                left.append(((box.level, top + offset), wire.key))
            else:
                right.append(((box.level - 1, top + offset), wire.key))
        return left, right


def _assign_lanes(wires: Sequence[LayoutWire], tops: Mapping[str, float], clearance: float) -> dict[str, int]:
    """Return a lane for each wire, short wires first; wires in one lane do not overlap."""
    spans = {wire.key: _find_span(_find_heights((*wire.starts, *wire.ends), tops)) for wire in wires}
    lane_spans: list[list[tuple[float, float]]] = []
    lanes: dict[str, int] = {}
    for key, (low, high) in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[1], item[0])):
        if low == high:  # a straight wire needs no lane
            lanes[key] = 0
            continue
        fits = (
            number
            for number, taken in enumerate(lane_spans)
            if all(high + clearance < start or end < low - clearance for start, end in taken)
        )
        lane = next(fits, len(lane_spans))
        lane_spans[lane:] = lane_spans[lane:] or [[]]
        lane_spans[lane].append((low, high))
        lanes[key] = lane
    return lanes


def _find_heights(ports: Iterable[Port], tops: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(tops[port.box] + port.offset for port in ports)


def _find_span(heights: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(heights)
    return ordered[0], ordered[-1]


def _measure_labels(wires: Iterable[LayoutWire]) -> float:
    return max((wire.label_width for wire in wires), default=0.0) + 2 * PADDING


def build_cornered_path(start: float, begins: float, middle: float, ends: float, end: float) -> str:
    """Return the SVG path from `start` at height `begins` over lane `middle` to `end` at height `ends`, with round corners."""
    if begins == ends:
        return f"M{start:g} {begins:g}H{end:g}"
    radius = min(_CORNER_RADIUS, abs(ends - begins) / 2)
    down, facing = (radius if ends > begins else -radius), (radius if end > middle else -radius)
    return (
        f"M{start:g} {begins:g}H{middle - radius:g}Q{middle:g} {begins:g} {middle:g} {begins + down:g}"
        f"V{ends - down:g}Q{middle:g} {ends:g} {middle + facing:g} {ends:g}H{end:g}"
    )


def assign_levels(keys: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the level of each node of an acyclic graph: the greatest number of edges that lead to it."""
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        sources[target].append(source)
    levels: dict[str, int] = {}

    def find_level(key: str) -> int:
        if key not in levels:
            levels[key] = 1 + max(map(find_level, sources[key]), default=-1)
        return levels[key]

    return {key: find_level(key) for key in keys}


def insert_passages(graph: LayeredGraph) -> LayeredGraph:
    """Split wires that skip levels: in each level between, a box without width lets them pass.

    The parts of a wire have its key, followed by `@` and the level at which they start.
    """
    level_of = {box.key: box.level for box in graph.boxes}
    boxes, wires = list(graph.boxes), []
    pending = list(graph.wires)
    while pending:
        wire = pending.pop(0)
        level = level_of[wire.starts[0].box] + 1
        far = tuple(end for end in wire.ends if level_of[end.box] > level)
        if far:
            passage = Port(f"{wire.key.partition('@')[0]}@{level}", graph.grid / 2)
            boxes.append(LayoutBox(passage.box, level, 0.0, graph.grid))
            level_of[passage.box] = level
            near = tuple(end for end in wire.ends if end not in far)
            pending.append(LayoutWire(passage.box, (passage,), far, wire.label_width))
            wire = replace(wire, ends=(*near, passage))
        wires.append(wire)
    return replace(graph, boxes=tuple(boxes), wires=tuple(wires))


def order_boxes(graph: LayeredGraph) -> LayeredGraph:
    """Return the graph with the boxes of each level ordered by the middle of their neighbours, for few crossings."""
    levels = graph.levels
    before: dict[str, list[str]] = defaultdict(list)
    after: dict[str, list[str]] = defaultdict(list)
    for wire in graph.wires:
        for start in wire.starts:
            after[start.box] += [end.box for end in wire.ends]
            for end in wire.ends:
                before[end.box].append(start.box)
    ranks: dict[str, float] = {}
    for column in levels.values():
        ranks |= _rank_boxes(column)
    for sweep in range(_ORDER_SWEEPS):
        neighbours = after if sweep % 2 else before
        for level in sorted(levels, reverse=bool(sweep % 2)):
            middles = {box.key: fmean(ranks[key] for key in neighbours[box.key] or [box.key]) for box in levels[level]}
            levels[level].sort(key=lambda box: middles[box.key])
            ranks |= _rank_boxes(levels[level])
    return replace(graph, boxes=tuple(box for column in levels.values() for box in column))


def spread_ends(graph: LayeredGraph) -> LayeredGraph:
    """Return the graph with the ends at each box around its middle, in the order of the boxes where their wires start."""
    ranks = {box.key: rank for rank, box in enumerate(graph.boxes)}
    heights = {box.key: box.height for box in graph.boxes}
    entering: dict[str, list[LayoutWire]] = defaultdict(list)
    for wire in sorted(graph.wires, key=lambda wire: ranks[wire.starts[0].box]):
        for end in wire.ends:
            entering[end.box].append(wire)
    offsets = {
        (wire.key, box): find_middle_offset(heights[box], graph.grid) + graph.grid * (number - (len(wires) - 1) // 2)
        for box, wires in entering.items()
        for number, wire in enumerate(wires)
    }
    wires = (replace(wire, ends=tuple(Port(end.box, offsets[wire.key, end.box]) for end in wire.ends)) for wire in graph.wires)
    return replace(graph, wires=tuple(wires))


def find_middle_offset(height: float, grid: float) -> float:
    """Return the offset of a port in the middle of a box, an odd multiple of half a grid."""
    return grid * (round(height / grid / 2 - 0.5) + 0.5)


def _rank_boxes(column: Sequence[LayoutBox]) -> dict[str, float]:
    return {box.key: (number + 0.5) / len(column) for number, box in enumerate(column)}
