"""Layout of layered graphs: boxes do not overlap, wires do not run along one another, and passages lead past other levels."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.planner.explain.graph_layout import (
    GraphLayout,
    LayeredGraph,
    LayoutBox,
    LayoutWire,
    PlacedWire,
    Port,
    assign_levels,
    build_cornered_path,
    find_middle_offset,
    insert_passages,
    layout_graph,
    order_boxes,
    spread_ends,
)
from support.examples import scale_examples

GRID = 8.0
Segment = tuple[float, float, float, float]


def make_box(key: str, level: int, rows: int = 3) -> LayoutBox:
    return LayoutBox(key, level, 50.0, GRID * rows)


def list_segments(wire: PlacedWire) -> list[Segment]:
    if wire.span[0] == wire.span[1]:
        return [(wire.start, wire.span[0], wire.end, wire.span[0])]
    return [
        *((wire.start, y, wire.lane, y) for y in wire.start_heights),
        (wire.lane, wire.span[0], wire.lane, wire.span[1]),
        *((wire.lane, y, wire.end, y) for y in wire.end_heights),
    ]


def overlap(one: Segment, two: Segment) -> bool:
    """Return whether two segments, each horizontal or vertical, coincide in more than a point."""
    for axis, along in ((0, 1), (1, 0)):
        if one[axis] == one[axis + 2] == two[axis] == two[axis + 2]:
            (low, high), (from_, to) = sorted((one[along], one[along + 2])), sorted((two[along], two[along + 2]))
            return min(high, to) > max(low, from_)
    return False


def check_layout(graph: LayeredGraph) -> GraphLayout:
    layout = layout_graph(graph)
    level_of = {box.key: box.level for box in graph.boxes}
    for (key, box), (other_key, other) in combinations(layout.boxes.items(), 2):
        if level_of[key] == level_of[other_key]:
            assert (box.left, box.width) == (other.left, other.width)
            assert box.top + box.height <= other.top or other.top + other.height <= box.top
        elif level_of[key] < level_of[other_key]:
            assert box.left + box.width <= other.left
    for wire in graph.wires:
        placed = layout.wires[wire.key]
        starts, ends = ([layout.boxes[port.box] for port in ports] for ports in (wire.starts, wire.ends))
        assert [box.top + port.offset for box, port in zip(starts, wire.starts, strict=True)] == list(placed.start_heights)
        assert [box.top + port.offset for box, port in zip(ends, wire.ends, strict=True)] == list(placed.end_heights)
        assert all(box.left + box.width == placed.start for box in starts)
        assert all((box.left + box.width if placed.is_backward else box.left) == placed.end for box in ends)
    segments = [(key, segment) for key, wire in layout.wires.items() for segment in list_segments(wire)]
    assert [pair for pair in combinations(segments, 2) if pair[0][0] != pair[1][0] and overlap(pair[0][1], pair[1][1])] == []
    return layout


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> LayeredGraph:
    """Graphs as plan drawings have them: one wire for each source, to any boxes of later levels."""
    count = draw(st.integers(1, 14))
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    edges = sorted({(f"b{min(pair)}", f"b{max(pair)}") for pair in pairs if pair[0] != pair[1]})
    levels = assign_levels([f"b{n}" for n in range(count)], edges)
    targets = {key: [end for start, end in edges if start == key] for key in levels}
    rows = {key: 2 + sum(key in ends for ends in targets.values()) + draw(st.integers(0, 3)) for key in levels}
    wires = [
        LayoutWire(f"w{key}", (Port(key, find_middle_offset(GRID * rows[key], GRID)),), tuple(Port(end, 0.0) for end in ends))
        for key, ends in targets.items()
        if ends
    ]
    graph = LayeredGraph(tuple(make_box(key, level, rows[key]) for key, level in levels.items()), tuple(wires), GRID, GRID)
    passed = spread_ends(order_boxes(insert_passages(graph)))
    return LayeredGraph(passed.boxes, passed.wires, GRID, GRID, anchor=draw(st.integers(0, max(levels.values()))))


@settings(max_examples=scale_examples(150), deadline=None)
@given(acyclic_graphs())
def test_no_boxes_overlap_and_no_wires_coincide(graph: LayeredGraph) -> None:
    level_of = {box.key: box.level for box in graph.boxes}
    assert all(level_of[end.box] == level_of[wire.starts[0].box] + 1 for wire in graph.wires for end in wire.ends)
    assert check_layout(graph) == layout_graph(graph)


@settings(max_examples=scale_examples(100), deadline=None)
@given(st.data())
def test_wires_with_several_starts_and_wires_that_return_do_not_coincide(data: st.DataObject) -> None:
    """Graphs as physical graphs have them: each port is a row of its box."""
    boxes = [make_box(f"{level}{n}", level, 6) for level in range(3) for n in range(data.draw(st.integers(1, 3)))]
    free = {box.key: {side: [GRID * (row + 1.5) for row in range(5)] for side in ("left", "right")} for box in boxes}

    def take(level: int, side: str) -> Port | None:
        candidates = [box.key for box in boxes if box.level == level and free[box.key][side]]
        if not candidates:
            return None
        key = data.draw(st.sampled_from(candidates))
        return Port(key, free[key][side].pop(0))

    wires = []
    for number in range(data.draw(st.integers(0, 14))):
        level, returns = data.draw(st.integers(0, 1)), data.draw(st.booleans())
        starts = [port for _ in range(data.draw(st.integers(1, 2))) if (port := take(level, "right"))]
        end = take(level, "right") if returns else take(level + 1, "left")
        if starts and end:
            wires.append(LayoutWire(f"s{number}", tuple(starts), (end,), label_width=20.0))
    check_layout(LayeredGraph(tuple(boxes), tuple(wires), GRID, GRID, anchor=data.draw(st.integers(0, 2))))


def test_a_wire_to_one_box_is_straight() -> None:
    boxes = (make_box("a", 0), make_box("b", 1, 5))
    for anchor in (0, 1):
        wire = LayoutWire("w", (Port("a", 12.0),), (Port("b", 12.0),))
        placed = check_layout(LayeredGraph(boxes, (wire,), GRID, GRID, anchor)).wires["w"]
        assert placed.start_heights == placed.end_heights
        assert build_cornered_path(placed.start, placed.span[0], placed.lane, placed.span[1], placed.end).count("H") == 1


def test_a_wire_over_several_levels_has_a_passage_in_each() -> None:
    boxes = (make_box("a", 0), make_box("b", 1), make_box("c", 2), make_box("d", 3))
    wires = (
        LayoutWire("w", (Port("a", 12.0),), (Port("b", 4.0), Port("d", 12.0))),
        LayoutWire("v", (Port("b", 12.0),), (Port("c", 12.0),)),
    )
    passed = insert_passages(LayeredGraph(boxes, wires, GRID, GRID))
    assert [(box.key, box.level) for box in passed.boxes[4:]] == [("w@1", 1), ("w@2", 2)]
    ends = {wire.key: [end.box for end in wire.ends] for wire in passed.wires}
    assert ends == {"w": ["b", "w@1"], "v": ["c"], "w@1": ["w@2"], "w@2": ["d"]}
    check_layout(passed)


def test_boxes_are_ordered_to_avoid_crossings() -> None:
    boxes = tuple(make_box(key, level) for level, keys in enumerate(("ab", "cd")) for key in keys)
    wires = tuple(LayoutWire(start, (Port(start, 12.0),), (Port(end, 12.0),)) for start, end in ("ad", "bc"))
    assert [box.key for box in order_boxes(LayeredGraph(boxes, wires, GRID, GRID)).boxes] == ["a", "b", "d", "c"]


def test_levels_are_longest_paths() -> None:
    assert assign_levels("dabc", [("a", "b"), ("b", "c"), ("a", "c")]) == {"a": 0, "b": 1, "c": 2, "d": 0}


def test_a_graph_without_boxes_has_no_size() -> None:
    layout = layout_graph(LayeredGraph((), (), GRID, GRID))
    assert (layout.boxes, layout.wires, layout.bottom) == ({}, {}, 0.0)
