"""SVG rendering of physical graphs: inputs on the left, stores in the middle, outputs on the right, connected by wires.

Every edge has a row of its own at the nodes where it starts and ends; the row of a store shows the rule for incoming rows. Each
wire between the columns has a lane; wires that do not overlap share one. Rows of stores are offset by half a row from those of
inputs and outputs, so that no two wires coincide; labels stand beside the end of their wire, outside the lanes, and cover
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from headrace.sharing.multiway.graph import Edge, Graph, Keep, Kind, Node, Output, Rule, Store
from headrace.sharing.multiway.graph_text import named, told

_ROW, _LANE, _PAD, _CHARACTER, _LONGEST = 24.0, 14.0, 12.0, 6.7, 44
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
_MEANING = {Kind.SHUFFLE: "to any task", Kind.ALL: "a copy to every task", Kind.GROUP_BY: "to the task of the value"}
_THIN = "thin: local, no shuffle"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a box: its text, and the edge that enters or leaves there, with the side."""

    says: str = ""
    comes: Edge | None = None
    goes: Edge | None = None
    comes_right: bool = False


@dataclass(frozen=True, slots=True)
class _Box:
    """A node with its rows; `top` is the top of its head, rows are below."""

    node: Node
    name: str
    rows: tuple[_Row, ...]
    top: float = 0.0

    @property
    def height(self) -> float:
        return _ROW * (len(self.rows) + 1)

    def y(self, row_number: int) -> float:
        return self.top + _ROW * (row_number + 1.5)


@dataclass(frozen=True, slots=True)
class _Wire:
    """An edge from the heights of the rules that send over it to one height; `is_backward` if it returns to its starting side."""

    edge: Edge
    begins: tuple[float, ...]
    ends: float
    back: bool = False

    @property
    def span(self) -> tuple[float, float]:
        return min(*self.begins, self.ends), max(*self.begins, self.ends)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Horizontal positions of boxes and lanes, from left to right."""

    inputs: tuple[float, float]
    lanes_in: float
    stores: tuple[float, float]
    lanes_out: float
    outputs: tuple[float, float]


def to_svg(graph: Graph) -> str:
    """Return a graph as a self-contained SVG for light and dark pages. Equal graphs give equal pictures."""
    names = named(graph)
    stores = _stacked([_Box(store, names[store], _store_rows(graph, store)) for store in graph.stores], _ROW)
    inputs = _beside(
        [_Box(node, names[node], tuple(_Row(goes=edge) for edge in graph.outgoing(node))) for node in graph.inputs], stores
    )
    outputs = _beside([_Box(node, names[node], _output_rows(graph, node)) for node in graph.outputs], stores)
    start_heights, end_heights = _heights([*inputs, *stores, *outputs])
    wires = [_Wire(edge, start_heights[edge.label], end_heights[edge.label], _is_back(edge)) for edge in graph.edges]
    input_lanes = _lanes([wire for wire in wires if wire.edge.source in graph.inputs])
    output_lanes = _lanes([wire for wire in wires if wire.edge.source not in graph.inputs])
    columns = _columns(inputs, stores, outputs, input_lanes, output_lanes)
    parts = [_drawn_box(box, columns.inputs) for box in inputs]
    parts += [_drawn_box(box, columns.stores) for box in stores]
    parts += [_drawn_box(box, columns.outputs) for box in outputs]
    parts += [_drawn_wire(wire, lane, columns) for wire, lane in (*input_lanes.items(), *output_lanes.items())]
    bottom = max((box.top + box.height for box in (*inputs, *stores, *outputs)), default=0.0) + _ROW
    return _page(parts, columns.outputs[1] + _PAD, bottom)


def _is_back(edge: Edge) -> bool:
    return isinstance(edge.source, Store) and isinstance(edge.target, Store)


def _store_rows(graph: Graph, store: Store) -> tuple[_Row, ...]:
    rules = sorted(graph.rules_at(store), key=lambda rule: not isinstance(rule, Keep))
    return tuple(row for rule in rules for row in _rule_rows(graph, rule))


def _output_rows(graph: Graph, output: Output) -> tuple[_Row, ...]:
    return tuple(_Row("results", edge) for edge in graph.incoming(output))


def _rule_rows(graph: Graph, rule: Rule) -> Iterable[_Row]:
    """Yield the row of the incoming edge and one for each outgoing edge; opposite edges share one row."""
    incoming = graph.edge(rule.edge)
    outgoing = [] if isinstance(rule, Keep) else [graph.edge(label) for label in rule.sends]
    if _is_back(incoming) or not outgoing:
        yield _Row(told(rule), incoming, comes_right=_is_back(incoming))
    else:
        yield _Row(told(rule), incoming, outgoing.pop(0))
    for edge in outgoing:
        yield _Row(goes=edge)


def _stacked(boxes: Sequence[_Box], top: float) -> list[_Box]:
    """Place boxes below one another."""
    placed: list[_Box] = []
    for box in boxes:
        box_top = placed[-1].top + placed[-1].height + _ROW if placed else top
        placed.append(_Box(box.node, box.name, box.rows, box_top))
    return placed


def _beside(boxes: Sequence[_Box], stores: Sequence[_Box]) -> list[_Box]:
    """Place boxes beside the stores that they connect to, without overlaps."""
    start_heights, end_heights = _heights(stores)
    placed: list[_Box] = []
    for box in boxes:
        outgoing_tops = [end_heights[row.goes.label] - _ROW * (index + 1.5) for index, row in enumerate(box.rows) if row.goes]
        incoming_heights = [height for row in box.rows if row.comes for height in start_heights[row.comes.label]]
        preferred_top = outgoing_tops[0] if outgoing_tops else sum(incoming_heights) / len(incoming_heights) - box.height / 2
        free_top = placed[-1].top + placed[-1].height + _ROW if placed else _ROW / 2
        placed.append(_Box(box.node, box.name, box.rows, max(free_top, _ROW * (round(preferred_top / _ROW) - 0.5))))
    return placed


def _heights(boxes: Iterable[_Box]) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
    """Return the start heights and the end height of edges, by label."""
    start_heights: dict[str, tuple[float, ...]] = {}
    end_heights: dict[str, float] = {}
    for box in boxes:
        for index, row in enumerate(box.rows):
            if row.goes:
                start_heights[row.goes.label] = (*start_heights.get(row.goes.label, ()), box.y(index))
            if row.comes:
                end_heights[row.comes.label] = box.y(index)
    return start_heights, end_heights


def _lanes(wires: Sequence[_Wire]) -> dict[_Wire, int]:
    """Return a lane for each wire, short wires first; wires in one lane do not overlap."""
    lane_spans: list[list[tuple[float, float]]] = []
    lane_by_wire: dict[_Wire, int] = {}
    for wire in sorted(wires, key=lambda each: (each.span[1] - each.span[0], each.span, each.edge.label)):
        low, high = wire.span
        fits = (n for n, spans in enumerate(lane_spans) if all(high + _ROW / 2 < a or b < low - _ROW / 2 for a, b in spans))
        lane = next(fits, len(lane_spans))
        lane_spans[lane:] = lane_spans[lane:] or [[]]
        lane_spans[lane].append((low, high))
        lane_by_wire[wire] = lane
    return lane_by_wire


def _columns(
    inputs: Sequence[_Box],
    stores: Sequence[_Box],
    outputs: Sequence[_Box],
    input_lanes: dict[_Wire, int],
    output_lanes: dict[_Wire, int],
) -> _Columns:
    input_right = _PAD + _box_width(inputs)
    lanes_in = input_right + _PAD
    store_left = lanes_in + _LANE * _count(input_lanes) + _labels_width(input_lanes)
    store_right = store_left + _box_width(stores)
    lanes_out = store_right + _labels_width(wire for wire in output_lanes if wire.back)
    output_left = lanes_out + _LANE * _count(output_lanes) + _labels_width(wire for wire in output_lanes if not wire.back)
    return _Columns(
        (_PAD, input_right), lanes_in, (store_left, store_right), lanes_out, (output_left, output_left + _box_width(outputs))
    )


def _count(lanes: dict[_Wire, int]) -> int:
    return max(lanes.values(), default=-1) + 1


def _box_width(boxes: Iterable[_Box]) -> float:
    lengths = [len(box.name) + 1 for box in boxes] + [len(_short(row.says)) + 6 for box in boxes for row in box.rows]
    return _CHARACTER * max(lengths, default=0) + 2 * _PAD


def _labels_width(wires: Iterable[_Wire]) -> float:
    return _CHARACTER * max((len(_label(wire.edge)) for wire in wires), default=0) + 2 * _PAD


def _label(edge: Edge) -> str:
    return _short(f"{edge.label} {edge.rows}" + ("" if edge.by is None else f" by {edge.by}"))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _drawn_box(box: _Box, column: tuple[float, float]) -> str:
    left, width = column[0], column[1] - column[0]
    parts = [
        f'<rect class="box" x="{left:g}" y="{box.top:g}" width="{width:g}" height="{box.height:g}" rx="5"/>',
        f'<path class="head" d="{_head(left, box.top, width)}"/>',
        _text(left + _PAD, box.top + _ROW / 2 + 4, box.name, "name"),
    ]
    for index, row in enumerate(box.rows):
        baseline = box.y(index) + 4
        if row.says:
            parts.append(_text(left + _PAD, baseline, row.says))
        label = row.goes.label if row.goes else row.comes.label if row.comes and row.comes_right else ""
        if label:
            parts.append(_text(column[1] - 7, baseline, label, "quiet", "end"))
    return "".join(parts)


def _head(left: float, top: float, width: float) -> str:
    corner, below = left + 1, top + _ROW - 1
    return f"M{corner:g} {below:g}v{-(_ROW - 6):g}q0-4 4-4h{width - 10:g}q4 0 4 4v{_ROW - 6:g}z"


def _drawn_wire(wire: _Wire, lane: int, columns: _Columns) -> str:
    """Draw a wire: out of its box, along its lane, to its end, with a tip there and the label above."""
    from_input = not isinstance(wire.edge.source, Store)
    start = columns.inputs[1] if from_input else columns.stores[1]
    end = columns.stores[0] if from_input else columns.stores[1] if wire.back else columns.outputs[0]
    middle = (columns.lanes_in if from_input else columns.lanes_out) + _LANE * (lane + 0.5)
    style = wire.edge.kind.replace(" ", "-")
    facing = -1 if wire.back else 1
    title = f"{wire.edge.label}: {wire.edge.rows}, {wire.edge.way}, {wire.edge.source} → {wire.edge.target}"
    thin = " there" if wire.edge.is_there else ""
    parts = [f'<path class="wire {style}{thin}" d="{path}"/>' for path in _paths(wire, start, middle, end - facing * 6)]
    parts += [f'<circle class="tip-{style}" cx="{middle:g}" cy="{y:g}" r="2.6"/>' for y in _junctions(wire)]
    parts.append(f'<path class="tip-{style}" d="M{end:g} {wire.ends:g}l{-facing * 8} -4v8z"/>')
    parts.append(_text(end - facing * 10, wire.ends - 4, _label(wire.edge), anchor="start" if wire.back else "end"))
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def _paths(wire: _Wire, start: float, middle: float, end: float) -> list[str]:
    """Return the path from the start of a wire over its lane to its end; a start on the opposite side joins it there.

    A start in between ends at the lane. Nothing is drawn twice: dashes would fill the gaps of one another.
    """
    facing = 1 if end > middle else -1
    turning = [y for y in wire.begins if y in wire.span]
    ends = [end, *[middle + facing * 5] * (len(turning) - 1)]
    paths = [_cornered(start, y, middle, wire.ends, x) for y, x in zip(turning, ends, strict=True)]
    return paths + [f"M{start:g} {y:g}H{middle:g}" for y in _junctions(wire)]


def _junctions(wire: _Wire) -> list[float]:
    return [y for y in wire.begins if y not in wire.span]


def _cornered(start: float, begins: float, middle: float, ends: float, end: float) -> str:
    """Return the path from start over the lane to the end, with round corners. Heights differ: rows are half a row apart."""
    down, facing = 1 if ends > begins else -1, 1 if end > middle else -1
    return (
        f"M{start:g} {begins:g}H{middle - 5:g}Q{middle:g} {begins:g} {middle:g} {begins + down * 5:g}"
        f"V{ends - down * 5:g}Q{middle:g} {ends:g} {middle + facing * 5:g} {ends:g}H{end:g}"
    )


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    short = _short(text)
    title = "" if short == text else f"<title>{escape(text)}</title>"
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{title}{escape(short)}</text>'


def _legend(top: float) -> tuple[str, float]:
    """Return the legend of edge kinds, and its right end."""
    parts, x = [], _PAD
    for kind, meaning in _MEANING.items():
        style = kind.replace(" ", "-")
        parts.append(
            f'<path class="wire {style}" d="M{x:g} {top:g}h30"/><path class="tip-{style}" d="M{x + 38:g} {top:g}l-8 -4v8z"/>'
        )
        text = f"{kind}: {meaning}"
        parts.append(_text(x + 46, top + 4, text))
        x += 46 + _CHARACTER * len(text) + 2 * _PAD
    parts.append(_text(x, top + 4, _THIN))
    return "".join(parts), x + _CHARACTER * len(_THIN) + 2 * _PAD


def _page(parts: Sequence[str], width: float, bottom: float) -> str:
    legend, legend_right = _legend(bottom)
    wide, high = round(max(width, legend_right)), round(bottom + _ROW)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hr-graph" role="img" aria-label="physical graph" '
        f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"><style>{_STYLE}</style>'
        f'<rect class="paper" width="{wide}" height="{high}"/>{"".join(parts)}{legend}</svg>\n'
    )
