"""Physical graph of sliding joins (CLASH): nodes are inputs, state stores and outputs of queries; edges carry rows between them.

An edge has a label, and a store acts by the label alone: it keeps the rows that arrive over the edge, or probes its rows with
them and sends the result over further edges. Two nodes may have several edges, and there may be cycles; no row loops, because
each edge belongs to one step of one starting input.

Renderings are text for a terminal, Mermaid, and SVG.

The SVG has inputs on the left, stores in the middle, outputs on the right, connected by wires (`graph_layout`). Every edge has a
row of its own at the nodes where it starts and ends; the row of a store shows the rule for incoming rows. Labels stand beside the
end of their wire, outside the lanes, and cover nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from headrace.planner.explain.graph_layout import (
    PADDING,
    LayeredGraph,
    LayoutBox,
    LayoutWire,
    PlacedBox,
    PlacedWire,
    Port,
    build_cornered_path,
    layout_graph,
)
from headrace.planner.join.join_graph import Attribute, JoinGraph


class GraphEdgeKind(StrEnum):
    """Tasks of the target node that an edge leads to: that of a value, every task, or any task."""

    GROUP_BY = "group by"
    ALL = "all"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class InputNode:
    """The source of the rows of an input."""

    name: str

    def __str__(self) -> str:
        """Return the input's name."""
        return self.name


@dataclass(frozen=True, slots=True)
class StoreNode:
    """A state store: rows of a relation in partitions, by an attribute or at random; from batch `from_batch` to `until_batch`.

    A store with an end is no longer filled, and probed only until its rows expire.
    """

    relation: JoinGraph
    partitioned_by: Attribute | None = None
    tasks: int = 1
    from_batch: int = 0
    until_batch: int | None = None

    def __post_init__(self) -> None:
        """Check that there is at least one task and that the rows have the attribute."""
        if self.tasks < 1 or (self.partitioned_by is not None and self.partitioned_by.relation not in self.relation.relations):
            raise ValueError("a store needs at least one task, and its partition attribute must belong to one of its inputs")

    def __str__(self) -> str:
        """Return the relation, the attribute, the number of partitions, and the end if there is one."""
        by = "" if self.partitioned_by is None else f"[{self.partitioned_by}]"
        ends = "" if self.until_batch is None else f" until batch {self.until_batch}"
        return f"{self.relation}{by}" + (f" ×{self.tasks}" if self.tasks > 1 else "") + ends


@dataclass(frozen=True, slots=True)
class OutputNode:
    """The sink of the results of a query."""

    query: str

    def __str__(self) -> str:
        """Return the query's name."""
        return self.query


GraphNode = InputNode | StoreNode | OutputNode


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge between nodes: `rows` is the relation that it carries, `by` the attribute whose value selects the task.

    `is_local` says that rows already lie in that task, so that no data is shuffled.
    """

    label: str
    source: GraphNode
    target: GraphNode
    kind: GraphEdgeKind
    rows: JoinGraph
    by: Attribute | None = None
    is_local: bool = False

    @property
    def routing_text(self) -> str:
        """The kind, with the attribute."""
        return (str(self.kind) if self.by is None else f"{self.kind} {self.by}") + (", local" if self.is_local else "")


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Store the rows that arrive over the edge."""

    edge: str


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """Join the rows that arrive over the edge with the stored rows for which all conditions hold, and send the result on.

    Conditions are texts; those of only some queries name them. With `before_batch`, only rows stored before that batch match. An
    edge of `sends` that ends at an output carries results of its query.
    """

    edge: str
    conditions: tuple[str, ...]
    sends: tuple[str, ...]
    before_batch: int | None = None


StoreRule = KeepRule | ProbeRule


@dataclass(frozen=True, slots=True)
class PhysicalGraph:
    """Nodes, edges in the order of their labels, and the rule of each edge that ends at a store, in the same order."""

    inputs: tuple[InputNode, ...]
    stores: tuple[StoreNode, ...]
    outputs: tuple[OutputNode, ...]
    edges: tuple[GraphEdge, ...]
    rules: tuple[StoreRule, ...]

    def get_edge(self, label: str) -> GraphEdge:
        """Return the edge with a label."""
        return next(edge for edge in self.edges if edge.label == label)

    def list_outgoing(self, node: GraphNode) -> tuple[GraphEdge, ...]:
        """Return the edges that start at a node."""
        return tuple(edge for edge in self.edges if edge.source == node)

    def list_incoming(self, node: GraphNode) -> tuple[GraphEdge, ...]:
        """Return the edges that end at a node."""
        return tuple(edge for edge in self.edges if edge.target == node)

    def list_rules(self, store: StoreNode) -> tuple[StoreRule, ...]:
        """Return the rules of the edges that end at a store."""
        labels = {edge.label for edge in self.list_incoming(store)}
        return tuple(rule for rule in self.rules if rule.edge in labels)


_MERMAID_ARROWS = {GraphEdgeKind.GROUP_BY: "==>", GraphEdgeKind.ALL: "-.->", GraphEdgeKind.SHUFFLE: "-->"}
_MERMAID_COLOURS = {GraphEdgeKind.GROUP_BY: "#8250df", GraphEdgeKind.ALL: "#0969da", GraphEdgeKind.SHUFFLE: "#1a7f37"}
_MERMAID_ENTITIES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": " "})


def name_nodes(graph: PhysicalGraph) -> dict[GraphNode, str]:
    """Return a unique name for each node: stores of the same inputs with different predicates are numbered."""
    names: dict[GraphNode, str] = {}
    nodes: tuple[GraphNode, ...] = (*graph.inputs, *graph.stores, *graph.outputs)
    for node in nodes:
        kind = type(node)
        same_names = [name for other, name in names.items() if type(other) is kind and str(other) == str(node)]
        names[node] = f"{node} #{len(same_names) + 1}" if same_names else str(node)
    return names


def format_rule(rule: StoreRule) -> str:
    """Return the action of a rule, without the edges that it sends over."""
    if isinstance(rule, KeepRule):
        return "keep"
    before = "" if rule.before_batch is None else f" before batch {rule.before_batch}"
    return f"probe{before} {' and '.join(rule.conditions)}" if rule.conditions else f"probe{before} with all"


def render_text(graph: PhysicalGraph) -> str:
    """Return a graph as terminal text: each node with its edges, each store with its rules. Equal graphs give equal text."""
    lines = [*_format_inputs(graph), *_format_stores(graph), *_format_outputs(graph)]
    return "\n".join(lines or ["no joins in SLIDING windows"]) + "\n"


def _format_inputs(graph: PhysicalGraph) -> list[str]:
    lines = []
    for node in graph.inputs:
        lines += [f"input {node}", *_format_sent_edges(graph, [edge.label for edge in graph.list_outgoing(node)], "  ")]
    return lines


def _format_stores(graph: PhysicalGraph) -> list[str]:
    names, lines = name_nodes(graph), []
    for store in graph.stores:
        lines.append(f"store {names[store]}")
        for rule in graph.list_rules(store):
            lines.append(f"  {rule.edge}: {format_rule(rule)}, of {graph.get_edge(rule.edge).rows}")
            lines += [] if isinstance(rule, KeepRule) else _format_sent_edges(graph, rule.sends, "    ")
    return lines


def _format_outputs(graph: PhysicalGraph) -> list[str]:
    names, lines = name_nodes(graph), []
    for node in graph.outputs:
        lines.append(f"output {node}")
        lines += [f"  {edge.label}: {edge.rows}, from {names[edge.source]}" for edge in graph.list_incoming(node)]
    return lines


def _format_sent_edges(graph: PhysicalGraph, labels: list[str] | tuple[str, ...], indent: str) -> list[str]:
    names, edges = name_nodes(graph), [graph.get_edge(label) for label in labels]
    return [f"{indent}→ {edge.label} {edge.routing_text} → {names[edge.target]}" for edge in edges]


def render_mermaid(graph: PhysicalGraph) -> str:
    """Return a graph as a Mermaid flowchart: inputs, stores as cylinders, outputs; edges by kind, labelled with their rows."""
    names = name_nodes(graph)
    ids = {node: f"n{number}" for number, node in enumerate(names)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[node]}(["{_escape_mermaid(names[node])}"])' for node in graph.inputs]
    lines += [f'  {ids[node]}[("{_escape_mermaid(names[node])}")]' for node in graph.stores]
    lines += [f'  {ids[node]}[["{_escape_mermaid(names[node])}"]]' for node in graph.outputs]
    for edge in graph.edges:
        label = _escape_mermaid(f"{edge.label}: {edge.rows}" + ("" if edge.by is None else f" by {edge.by}"))
        lines.append(f'  {ids[edge.source]} {_MERMAID_ARROWS[edge.kind]}|"{label}"| {ids[edge.target]}')
    for kind in GraphEdgeKind:
        numbers = [str(number) for number, edge in enumerate(graph.edges) if edge.kind is kind]
        lines += [f"  linkStyle {','.join(numbers)} stroke:{_MERMAID_COLOURS[kind]}"] if numbers else []
    return "\n".join(lines) + "\n"


def _escape_mermaid(text: str) -> str:
    return text.translate(_MERMAID_ENTITIES)


_ROW_HEIGHT, _CHARACTER_WIDTH, _MAX_TEXT_LENGTH = 24.0, 6.7, 44
_STYLE = """
.hr-graph text{font:11px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2328}
.hr-graph .quiet{fill:#59636e}.hr-graph .name{font-weight:700;font-size:12px}
.hr-graph .paper{fill:#fff}.hr-graph .box{fill:#f6f8fa;stroke:#818b98}.hr-graph .head{fill:#e6eaef}
.hr-graph .wire{fill:none;stroke-width:1.6}.hr-graph .there{stroke-width:.8}
.hr-graph .group-by{stroke:#8250df;stroke-dasharray:7 3}.hr-graph .all{stroke:#0969da;stroke-dasharray:2 3}
.hr-graph .shuffle{stroke:#1a7f37}
.hr-graph .tip-group-by{fill:#8250df}.hr-graph .tip-all{fill:#0969da}.hr-graph .tip-shuffle{fill:#1a7f37}
@media (prefers-color-scheme:dark){
.hr-graph text{fill:#e6edf3}.hr-graph .quiet{fill:#9198a1}.hr-graph .paper{fill:#0d1117}
.hr-graph .box{fill:#161b22;stroke:#6e7681}.hr-graph .head{fill:#262c36}
.hr-graph .group-by{stroke:#c297ff}.hr-graph .all{stroke:#6cb6ff}.hr-graph .shuffle{stroke:#56d364}
.hr-graph .tip-group-by{fill:#c297ff}.hr-graph .tip-all{fill:#6cb6ff}.hr-graph .tip-shuffle{fill:#56d364}}
"""
_KIND_LEGENDS = {
    GraphEdgeKind.SHUFFLE: "to any task",
    GraphEdgeKind.ALL: "a copy to every task",
    GraphEdgeKind.GROUP_BY: "to the task of the value",
}
_LOCAL_LEGEND = "thin: local, no shuffle"
_STORE_LEVEL = 1


@dataclass(frozen=True, slots=True)
class _BoxRow:
    """A row of a box: its text, and the edge that enters or leaves there, with the side."""

    text: str = ""
    incoming: GraphEdge | None = None
    outgoing: GraphEdge | None = None
    enters_right: bool = False


@dataclass(frozen=True, slots=True)
class _NodeBox:
    """A node with its rows, which are below its head."""

    key: str
    level: int
    name: str
    rows: tuple[_BoxRow, ...]

    @property
    def layout_box(self) -> LayoutBox:
        lengths = [len(self.name) + 1, *(len(_shorten_text(row.text)) + 6 for row in self.rows)]
        return LayoutBox(self.key, self.level, _CHARACTER_WIDTH * max(lengths) + 2 * PADDING, _ROW_HEIGHT * (len(self.rows) + 1))


def render_svg(graph: PhysicalGraph) -> str:
    """Return a graph as a self-contained SVG for light and dark pages. Equal graphs give equal pictures."""
    boxes = _build_boxes(graph)
    layout = layout_graph(
        LayeredGraph(
            tuple(box.layout_box for box in boxes), _build_wires(graph, boxes), _ROW_HEIGHT, _ROW_HEIGHT, anchor=_STORE_LEVEL
        )
    )
    parts = [_draw_box(box, layout.boxes[box.key]) for box in boxes]
    inner = [edge for edge in graph.edges if edge.source in graph.inputs]
    outer = [edge for edge in graph.edges if edge.source not in graph.inputs]
    parts += [_draw_wire(edge, layout.wires[edge.label]) for edge in (*inner, *outer)]
    return _build_svg(parts, layout.right + PADDING, layout.bottom + _ROW_HEIGHT)


def _build_boxes(graph: PhysicalGraph) -> list[_NodeBox]:
    rows_by_node: dict[GraphNode, tuple[_BoxRow, ...]] = {
        **{node: tuple(_BoxRow(outgoing=edge) for edge in graph.list_outgoing(node)) for node in graph.inputs},
        **{node: _build_store_rows(graph, node) for node in graph.stores},
        **{node: tuple(_BoxRow("results", edge) for edge in graph.list_incoming(node)) for node in graph.outputs},
    }
    names = name_nodes(graph)
    return [_NodeBox(f"n{n}", _get_level(node), names[node], rows) for n, (node, rows) in enumerate(rows_by_node.items())]


def _get_level(node: GraphNode) -> int:
    return 0 if isinstance(node, InputNode) else _STORE_LEVEL if isinstance(node, StoreNode) else _STORE_LEVEL + 1


def _build_wires(graph: PhysicalGraph, boxes: Sequence[_NodeBox]) -> tuple[LayoutWire, ...]:
    """Return the edges with a port for each row; an edge has several starts if several rules send over it."""
    starts: dict[str, list[Port]] = defaultdict(list)
    ends: dict[str, list[Port]] = defaultdict(list)
    for box in boxes:
        for index, row in enumerate(box.rows):
            port = Port(box.key, _ROW_HEIGHT * (index + 1.5))
            if row.outgoing:
                starts[row.outgoing.label].append(port)
            if row.incoming:
                ends[row.incoming.label].append(port)
    return tuple(
        LayoutWire(edge.label, tuple(starts[edge.label]), tuple(ends[edge.label]), _CHARACTER_WIDTH * len(_format_label(edge)))
        for edge in graph.edges
    )


def _is_backward_edge(edge: GraphEdge) -> bool:
    return isinstance(edge.source, StoreNode) and isinstance(edge.target, StoreNode)


def _build_store_rows(graph: PhysicalGraph, store: StoreNode) -> tuple[_BoxRow, ...]:
    rules = sorted(graph.list_rules(store), key=lambda rule: not isinstance(rule, KeepRule))
    return tuple(row for rule in rules for row in _iter_rule_rows(graph, rule))


def _iter_rule_rows(graph: PhysicalGraph, rule: StoreRule) -> Iterable[_BoxRow]:
    """Yield the row of the incoming edge and one for each outgoing edge; opposite edges share one row."""
    incoming = graph.get_edge(rule.edge)
    outgoing = [] if isinstance(rule, KeepRule) else [graph.get_edge(label) for label in rule.sends]
    if _is_backward_edge(incoming) or not outgoing:
        yield _BoxRow(format_rule(rule), incoming, enters_right=_is_backward_edge(incoming))
    else:
        yield _BoxRow(format_rule(rule), incoming, outgoing.pop(0))
    for edge in outgoing:
        yield _BoxRow(outgoing=edge)


def _format_label(edge: GraphEdge) -> str:
    return _shorten_text(f"{edge.label} {edge.rows}" + ("" if edge.by is None else f" by {edge.by}"))


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[: _MAX_TEXT_LENGTH - 1]}…"


def _draw_box(box: _NodeBox, place: PlacedBox) -> str:
    left, top, width = place.left, place.top, place.width
    parts = [
        f'<rect class="box" x="{left:g}" y="{top:g}" width="{width:g}" height="{place.height:g}" rx="5"/>',
        f'<path class="head" d="{_head_path(left, top, width)}"/>',
        _draw_text(left + PADDING, top + _ROW_HEIGHT / 2 + 4, box.name, "name"),
    ]
    for index, row in enumerate(box.rows):
        baseline = top + _ROW_HEIGHT * (index + 1.5) + 4
        if row.text:
            parts.append(_draw_text(left + PADDING, baseline, row.text))
        label = row.outgoing.label if row.outgoing else row.incoming.label if row.incoming and row.enters_right else ""
        if label:
            parts.append(_draw_text(left + width - 7, baseline, label, "quiet", "end"))
    return "".join(parts)


def _head_path(left: float, top: float, width: float) -> str:
    corner, below = left + 1, top + _ROW_HEIGHT - 1
    return f"M{corner:g} {below:g}v{-(_ROW_HEIGHT - 6):g}q0-4 4-4h{width - 10:g}q4 0 4 4v{_ROW_HEIGHT - 6:g}z"


def _draw_wire(edge: GraphEdge, wire: PlacedWire) -> str:
    """Draw a wire: out of its box, along its lane, to its end, with a tip there and the label above."""
    (end_height,) = wire.end_heights
    style = edge.kind.replace(" ", "-")
    facing = -1 if wire.is_backward else 1
    title = f"{edge.label}: {edge.rows}, {edge.routing_text}, {edge.source} → {edge.target}"
    thin = " there" if edge.is_local else ""
    junctions = [height for height in wire.start_heights if height not in wire.span]
    paths = _build_wire_paths(wire, end_height, wire.end - facing * 6, junctions)
    parts = [f'<path class="wire {style}{thin}" d="{path}"/>' for path in paths]
    parts += [f'<circle class="tip-{style}" cx="{wire.lane:g}" cy="{y:g}" r="2.6"/>' for y in junctions]
    parts.append(f'<path class="tip-{style}" d="M{wire.end:g} {end_height:g}l{-facing * 8} -4v8z"/>')
    anchor = "start" if wire.is_backward else "end"
    parts.append(_draw_text(wire.end - facing * 10, end_height - 4, _format_label(edge), anchor=anchor))
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def _build_wire_paths(wire: PlacedWire, end_height: float, end: float, junctions: Sequence[float]) -> list[str]:
    """Return the path from the start of a wire over its lane to its end; a start on the opposite side joins it there.

    A start in between ends at the lane. Nothing is drawn twice: dashes would fill the gaps of one another.
    """
    facing = 1 if end > wire.lane else -1
    turning = [height for height in wire.start_heights if height in wire.span]
    ends = [end, *[wire.lane + facing * 5] * (len(turning) - 1)]
    paths = [build_cornered_path(wire.start, y, wire.lane, end_height, x) for y, x in zip(turning, ends, strict=True)]
    return paths + [f"M{wire.start:g} {y:g}H{wire.lane:g}" for y in junctions]


def _draw_text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    short = _shorten_text(text)
    title = "" if short == text else f"<title>{escape(text)}</title>"
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{title}{escape(short)}</text>'


def _draw_legend(top: float) -> tuple[str, float]:
    """Return the legend of edge kinds, and its right end."""
    parts, x = [], PADDING
    for kind, meaning in _KIND_LEGENDS.items():
        style = kind.replace(" ", "-")
        parts.append(
            f'<path class="wire {style}" d="M{x:g} {top:g}h30"/><path class="tip-{style}" d="M{x + 38:g} {top:g}l-8 -4v8z"/>'
        )
        text = f"{kind}: {meaning}"
        parts.append(_draw_text(x + 46, top + 4, text))
        x += 46 + _CHARACTER_WIDTH * len(text) + 2 * PADDING
    parts.append(_draw_text(x, top + 4, _LOCAL_LEGEND))
    return "".join(parts), x + _CHARACTER_WIDTH * len(_LOCAL_LEGEND) + 2 * PADDING


def _build_svg(parts: Sequence[str], width: float, bottom: float) -> str:
    legend, legend_right = _draw_legend(bottom)
    wide, high = round(max(width, legend_right)), round(bottom + _ROW_HEIGHT)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hr-graph" role="img" aria-label="physical graph" '
        f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"><style>{_STYLE}</style>'
        f'<rect class="paper" width="{wide}" height="{high}"/>{"".join(parts)}{legend}</svg>\n'
    )
