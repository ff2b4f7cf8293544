"""Drawing of the shared plan: queries in groups, wires to the groups, inner queries by the streams of their results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import headrace as hr
from headrace.planner.explain.plan_diagram import PlanBox, PlanDiagram
from headrace.planner.explain.plan_drawing import DrawnBox, PlanDrawing, draw_plan_diagram


def make_diagram(*operators: str, **queries: str) -> PlanDiagram:
    """Return a stream with operators; `q="ab"` is a query over the operators a and b."""
    boxes = [PlanBox("stream s", "stream", "s", "s", "", tuple(queries))]
    boxes += [
        PlanBox(key, "aggregation", "s", key, "", tuple(name for name, used in queries.items() if key in used))
        for key in operators
    ]
    boxes += [PlanBox(f"query {name}", "query", "", name, "", (name,)) for name in queries]
    connections = [("stream s", key) for key in operators]
    connections += [(key, f"query {name}") for key in operators for name, used in queries.items() if key in used]
    return PlanDiagram(tuple(boxes), tuple(connections))


def find_box(drawing: PlanDrawing, key: str) -> DrawnBox:
    return next(box for box in drawing.boxes if box.id == key)


def list_segments(path: str) -> Iterator[tuple[float, float, float, float]]:
    """Yield the straight segments of a path: x, y of both ends."""
    x = y = 0.0
    for command, text in re.findall(r"([MHVQ])([^MHVQ]*)", path):
        values = [float(value) for value in text.split()]
        to_x, to_y = (values[-1], y) if command == "H" else (x, values[-1]) if command == "V" else (values[-2], values[-1])
        if command in "HV":
            yield x, y, to_x, to_y
        x, y = to_x, to_y


def check_drawing(drawing: PlanDrawing) -> None:
    """Assert that boxes lie inside the drawing and do not overlap, and that wires lead from box to box and cross none."""
    for one, two in combinations(drawing.boxes, 2):
        beside = one.x + one.width <= two.x or two.x + two.width <= one.x
        assert beside or one.y + one.height <= two.y or two.y + two.height <= one.y
    assert all(box.x + box.width <= drawing.width and box.y + box.height <= drawing.height for box in drawing.boxes)
    places = (*drawing.boxes, *drawing.groups)
    for wire in drawing.wires:
        segments = list(list_segments(wire.path))
        (start_x, start_y), (end_x, end_y) = segments[0][:2], segments[-1][2:]
        assert any(start_x == place.x + place.width and place.y < start_y < place.y + place.height for place in places)
        assert any(end_x == place.x and place.y < end_y < place.y + place.height for place in places)
    for x1, y1, x2, y2 in (segment for wire in drawing.wires for segment in list_segments(wire.path)):
        for box in drawing.boxes:
            beside = max(x1, x2) <= box.x or box.x + box.width <= min(x1, x2)
            assert beside or max(y1, y2) <= box.y or box.y + box.height <= min(y1, y2)


def test_queries_over_the_same_operators_form_a_group_with_one_wire() -> None:
    drawing = draw_plan_diagram(make_diagram("a", "b", q1="a", q2="a", q3="ab"))
    assert [group.queries for group in drawing.groups] == [("q1", "q2")]
    (group,) = drawing.groups
    for name in ("q1", "q2"):
        box = find_box(drawing, f"query {name}")
        assert group.x < box.x < box.x + box.width < group.x + group.width
        assert group.y < box.y < box.y + box.height < group.y + group.height
    carried = sorted(wire.queries for wire in drawing.wires)
    assert carried == [("q1", "q2"), ("q1", "q2", "q3"), ("q3",), ("q3",), ("q3",)]
    check_drawing(drawing)


def test_streams_are_left_of_operators_and_these_left_of_queries() -> None:
    drawing = draw_plan_diagram(make_diagram("a", q="a"))
    ends = [find_box(drawing, key) for key in ("stream s", "a", "query q")]
    assert [box.x for box in ends] == sorted({box.x for box in ends})
    assert (drawing.groups, drawing.omitted_queries) == ((), 0)


def test_many_queries_stand_side_by_side_and_more_than_300_are_omitted() -> None:
    drawing = draw_plan_diagram(make_diagram("a", "b", **{f"q{n}": "ab"[n % 2] for n in range(310)}))
    queries = [box for box in drawing.boxes if box.id.startswith("query")]
    assert (len(queries), drawing.omitted_queries) == (300, 10)
    assert len({box.x for box in queries}) == 4
    check_drawing(drawing)


def test_an_empty_diagram_has_an_empty_drawing() -> None:
    drawing = draw_plan_diagram(PlanDiagram((), ()))
    assert (drawing.boxes, drawing.groups, drawing.wires) == ((), (), ())


def test_a_query_over_many_operators_has_a_port_for_each() -> None:
    operators = [f"o{n}" for n in range(10)]
    boxes = [PlanBox(key, "aggregation", "s", key, "", ("q",)) for key in operators]
    query = PlanBox("query q", "query", "", "q", "", ("q",))
    drawing = draw_plan_diagram(PlanDiagram((*boxes, query), tuple((key, query.id) for key in operators)))
    ends = {wire.path.rpartition("H")[0].rpartition(" ")[2] for wire in drawing.wires}
    assert len(drawing.wires) == 10
    assert len(ends) == 10
    check_drawing(drawing)


def test_an_inner_query_leads_to_the_stream_of_its_results() -> None:
    inner = "SELECT a, COUNT(*) AS n FROM TUMBLE(s, '1 second') GROUP BY a"
    with hr.Session(backend="local") as session:
        session.create_stream("s", hr.MemorySource("a INT, time TIMESTAMP"), time="time")
        session.add(f"SELECT MAX(n) AS m FROM TUMBLE(({inner}), '4 seconds')", name="outer")
        session.add("SELECT a FROM s", name="flat")
        session.advance()
        diagram, drawing = session.statistics.draw_plan()
    kinds = {box.id: box.kind for box in diagram.boxes}
    by_kind = sorted((kinds[source], kinds[target]) for source, target in diagram.connections)
    assert by_kind == [
        ("aggregation", "query"),
        ("aggregation", "stream"),
        ("routing", "query"),
        ("stream", "aggregation"),
        ("stream", "aggregation"),
        ("stream", "routing"),
    ]
    assert {box.id for box in drawing.boxes} == set(kinds)
    assert sorted(wire.queries for wire in drawing.wires) == [("flat",), ("flat",), *[("outer",)] * 4]
    check_drawing(drawing)
