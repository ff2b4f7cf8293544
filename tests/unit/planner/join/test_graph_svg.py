"""SVG of plan graphs: complete, and without overlaps."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from example_graphs import (
    TAIL,
    four_queries,
    normalize_queries,
    plan_first_batch,
    plan_transition,
    sliding_join_sql,
    two_queries,
    two_way,
)

from headrace.planner.explain.plan_graph import build_physical_graph
from headrace.planner.explain.render_graph import GraphEdgeKind, PhysicalGraph, render_svg

CYCLE = "R.a = S.a AND S.b = T.b AND T.c = U.c AND U.a = R.b"


def drawings() -> list[PhysicalGraph]:
    plans = [
        plan_first_batch(normalize_queries(**{"a query": sliding_join_sql("RSTU", CYCLE)})),
        plan_first_batch(
            normalize_queries(
                a=sliding_join_sql("RSTU", CYCLE), b=sliding_join_sql("RS", "R.c <= S.c"), c=sliding_join_sql("STU", TAIL)
            )
        ),
        plan_first_batch(normalize_queries(all_of_them=sliding_join_sql("RSTUV", "TRUE"))),
        plan_transition(),
    ]
    return [two_queries(), two_way("R.a = S.a"), four_queries(), *(build_physical_graph(plan, 3) for plan in plans)]


DRAWINGS = drawings()


def find_elements(inside: ET.Element, tag: str) -> list[ET.Element]:
    """Return all elements of a tag; fail if there are none, since a test without elements would check nothing."""
    found = inside.findall(f".//{{*}}{tag}")
    assert found
    return found


def find_wires(picture: ET.Element) -> list[ET.Element]:
    return [
        one for group in find_elements(picture, "g") for one in find_elements(group, "path") if "wire" in one.get("class", "")
    ]


Segment = tuple[float, float, float, float]


def split_wire(path: str) -> list[Segment]:
    """Return the straight segments of a wire: x, y of both ends."""
    x = y = 0.0
    found = []
    for command, text in re.findall(r"([MHVQ])([^MHVQ]*)", path):
        values = [float(one) for one in text.split()]
        to_x, to_y = (values[-1], y) if command == "H" else (x, values[-1]) if command == "V" else (values[-2], values[-1])
        if command in "HV":
            found.append((x, y, to_x, to_y))
        x, y = to_x, to_y
    return found


def overlap(one: Segment, two: Segment) -> bool:
    """Return whether two segments overlap in more than a point."""
    for axis in (0, 1):
        along = 1 - axis
        if one[axis] == one[axis + 2] == two[axis] == two[axis + 2]:
            a, b = sorted((one[along], one[along + 2])), sorted((two[along], two[along + 2]))
            return min(a[1], b[1]) > max(a[0], b[0])
    return False


@pytest.mark.parametrize("graph", DRAWINGS, ids=range(len(DRAWINGS)))
def test_the_svg_has_every_edge_in_the_style_of_its_kind(graph: PhysicalGraph) -> None:
    picture = ET.fromstring(render_svg(graph))
    groups = {group.find("{*}title").text.split(":")[0]: group for group in find_elements(picture, "g")}
    assert set(groups) == {edge.label for edge in graph.edges}
    for edge in graph.edges:
        styles = {one.get("class") for one in find_elements(groups[edge.label], "path")}
        style = edge.kind.replace(" ", "-")
        assert styles == {f"wire {style}{' there' * edge.is_local}", f"tip-{style}"}


@pytest.mark.parametrize("graph", DRAWINGS, ids=range(len(DRAWINGS)))
def test_wires_do_not_overlap(graph: PhysicalGraph) -> None:
    assert len(find_wires(ET.fromstring(render_svg(graph)))) >= len(graph.edges)
    parts = [part for wire in find_wires(ET.fromstring(render_svg(graph))) for part in split_wire(wire.get("d", ""))]
    assert [pair for pair in combinations(parts, 2) if overlap(*pair)] == []


@pytest.mark.parametrize("graph", DRAWINGS, ids=range(len(DRAWINGS)))
def test_texts_do_not_overlap_or_leave_the_svg(graph: PhysicalGraph) -> None:
    picture = ET.fromstring(render_svg(graph))
    boxes = [_box(one) for one in find_elements(picture, "text")]
    wide, high = float(picture.get("width", "0")), float(picture.get("height", "0"))
    assert all(left >= 0 and top >= 0 and right <= wide and bottom <= high for left, top, right, bottom in boxes)
    for one, two in combinations(boxes, 2):
        assert one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]


def visible_text(text: ET.Element) -> str:
    """Return the drawn text; a shortened text has its full text as title."""
    title = text.find("{*}title")
    return (text.text if title is None else title.tail) or ""


def _box(text: ET.Element) -> Segment:
    """Return the box of a text, for characters 6.7 wide and 10 high."""
    width = 6.7 * len(visible_text(text))
    x, y = float(text.get("x", "0")), float(text.get("y", "0"))
    left = x - width if text.get("text-anchor") == "end" else x
    return left, y - 9, left + width, y + 1


@pytest.mark.parametrize("graph", DRAWINGS, ids=range(len(DRAWINGS)))
def test_wires_do_not_cross_texts(graph: PhysicalGraph) -> None:
    picture = ET.fromstring(render_svg(graph))
    texts = [_box(one) for one in find_elements(picture, "text")]
    for wire in find_wires(picture):
        for x1, y1, x2, y2 in split_wire(wire.get("d", "")):
            for left, top, right, bottom in texts:
                beside = max(x1, x2) <= left or right <= min(x1, x2)
                apart = max(y1, y2) <= top or bottom <= min(y1, y2)
                assert beside or apart


def test_the_svg_contains_its_light_and_dark_styles() -> None:
    picture = render_svg(two_queries())
    assert "prefers-color-scheme:dark" in picture
    assert not re.search(r"href|url\(|<script|@import", picture)
    assert all(f"{kind}: " in picture for kind in GraphEdgeKind)
    assert picture == render_svg(two_queries())


def test_long_texts_are_shortened_and_have_a_title() -> None:
    text = f"R.a{' + R.b' * 20} < S.b"
    picture = render_svg(two_way(text))
    assert "…" in picture
    assert re.search(r"<title>probe [^<]*( \+ R.b\)){20} &lt; S.b</title>", picture)
